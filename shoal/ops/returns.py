"""Returns and advantages along the leading time axis; any further axes are carried along."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.types import Array


def _backward(increment: Array, carry: Array) -> Array:
    """Solve ``x_t = increment_t + carry_t * x_{t+1}``, ``x_T = 0``, in log(T) vectorised steps."""

    def join(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        (x_t, c_t), (x_tm1, c_tm1) = later, earlier
        return x_tm1 + c_tm1 * x_t, c_tm1 * c_t

    return jax.lax.associative_scan(join, (increment, carry), reverse=True)[0]


def discounted_returns(reward: Array, alive: Array, last: Array, next_value: Array, discount: Array) -> Array:
    """Discounted return from each step, [T, ...], bootstrapped with ``next_value`` where a trace is cut or ends.

    Sutton & Barto (2018), eq. 3.8; a truncated episode keeps the value of its true successor.
    """
    cut = last.astype(reward.dtype).at[-1].set(1.0)
    return _backward(reward + discount * alive * cut * next_value, discount * (1.0 - cut))


def finished(last: Array) -> Array:
    """1 where the episode that a step [T, ...] belongs to ends within the T steps, else 0."""
    ended = last.astype(jnp.float32)
    return _backward(ended, 1.0 - ended)


def from_start(x: Array, last: Array) -> tuple[Array, Array]:
    """``x`` [T, ...] at the first step of each step's episode, and 1 where that first step is among the T, else 0."""
    first = jnp.concatenate([jnp.zeros_like(last[:1]), last[:-1]]).astype(x.dtype)  # whether the first row starts one is not known

    def join(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        return later[0] + (1.0 - later[1]) * earlier[0], jnp.maximum(earlier[1], later[1])

    return jax.lax.associative_scan(join, (first * x, first))


def gae(reward: Array, alive: Array, last: Array, value: Array, next_value: Array, discount: Array, trace: Array) -> Array:
    """Generalised advantage estimates, [T, ...]. Schulman et al. (2016), eq. 16.

    Bootstraps with ``alive * next_value`` and cuts the trace at ``last``: truncation needs nothing else.
    """
    error = reward + discount * alive * next_value - value
    return _backward(error, discount * trace * (1.0 - last.astype(reward.dtype)))


def explained_variance(prediction: Array, target: Array, weight: Array) -> Array:
    """Share of the variance of ``target`` that ``prediction`` explains: 1 is perfect, 0 no better than the mean."""
    total = jnp.maximum(weight.sum(), 1.0)

    def variance(x: Array) -> Array:
        mean = (weight * x).sum() / total
        return (weight * (x - mean) ** 2).sum() / total

    return 1.0 - variance(target - prediction) / jnp.maximum(variance(target), 1e-8)
