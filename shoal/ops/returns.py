"""Returns and advantages along the leading time axis, any further axes carried along; and one-step targets of any shape."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.ops import blocks
from shoal.ops.dists import argmax
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


class Vtrace(NamedTuple):
    """What V-trace makes of steps, [T, ...]; the policy gradient weighs an action by ``ratio * advantage``."""

    target: Array  # v_s, of the value
    advantage: Array  # r_s + γ v_{s+1} - V(x_s)
    ratio: Array  # ρ_s: π / μ, at most rho_bar


def vtrace(reward: Array, alive: Array, last: Array, value: Array, next_value: Array, log_ratio: Array, discount: Array, trace: Array, *,
           rho_bar: Array, c_bar: Array) -> Vtrace:
    """Value targets and advantages of one policy, π, from steps [T, ...] of another, μ. Espeholt et al. (2018), eq. 1 and section 4.2.

    ``log_ratio`` is log π(a|x) - log μ(a|x). ``rho_bar`` decides whose value the targets lead to, from that of π (inf) to that of a policy
    near μ; ``c_bar`` how fast. ``trace``, λ, is a factor of c, and of v_{s+1} - V(x_{s+1}) in the advantage: with π = μ and bars of at
    least 1 both are those of ``gae``. Bootstraps with ``alive * next_value`` at every step and cuts the trace at ``last``.
    """
    ratio = jnp.exp(log_ratio)
    rho, c = jnp.minimum(ratio, rho_bar), trace * jnp.minimum(ratio, c_bar)
    error = reward + discount * alive * next_value - value
    onward = discount * (1.0 - last.astype(reward.dtype))
    gain = _backward(rho * error, onward * c)  # v_s - V(x_s)
    later = jnp.concatenate([gain[1:], jnp.zeros_like(gain[:1])])
    return Vtrace(value + gain, error + onward * trace * later, rho)


def explained_variance(prediction: Array, target: Array, weight: Array) -> Array:
    """Share of the variance of ``target`` that ``prediction`` explains: 1 is perfect, 0 no better than the mean."""
    prediction, target, weight = (x.reshape(-1) for x in (prediction, target, weight))
    count = jnp.maximum(blocks.total(weight), 1.0)

    def variance(x: Array) -> Array:
        mean = blocks.total(weight * x) / count
        return blocks.total(weight * (x - mean) ** 2) / count

    return 1.0 - variance(target - prediction) / jnp.maximum(variance(target), 1e-8)


# one-step targets: reward + discount · alive · value of the successor; a successor without an allowed action is worth 0


def td_target(reward: Array, alive: Array, next_value: Array, discount: Array) -> Array:
    """Sutton & Barto (2018), eq. 6.2."""
    return reward + discount * alive * next_value


def chosen(values: Array, action: Array) -> Array:
    """Of ``values`` [..., A] those of ``action`` [...]; a comparison, whose gradient is one too, where a gather's is a scatter."""
    return jnp.where(jnp.arange(values.shape[-1]) == action[..., None], values, 0.0).sum(axis=-1)


def best_value(values: Array, mask: Array | None = None) -> Array:
    """The most of ``values`` [..., A] among the actions that ``mask`` allows."""
    return chosen(values, best_action(values, mask))


def best_action(values: Array, mask: Array | None = None) -> Array:
    """The action of most value among those that ``mask`` allows, int32; -1, which is none, where it allows none."""
    if mask is None:
        return argmax(values)
    return jnp.where((mask > 0).any(axis=-1), argmax(jnp.where(mask > 0, values, -jnp.inf)), -1)


def q_target(reward: Array, alive: Array, next_values: Array, discount: Array, mask: Array | None = None) -> Array:
    """With the best of the successor's action values [..., A]. Watkins & Dayan (1992); Mnih et al. (2015), algorithm 1."""
    return td_target(reward, alive, best_value(next_values, mask), discount)


def double_q_target(reward: Array, alive: Array, next_values: Array, chooser: Array, discount: Array, mask: Array | None = None) -> Array:
    """As ``q_target``, with the action that ``chooser`` [..., A] values most. Van Hasselt, Guez & Silver (2016), eq. 4."""
    return td_target(reward, alive, chosen(next_values, best_action(chooser, mask)), discount)


def quantile_target(reward: Array, alive: Array, next_quantiles: Array, chooser: Array, discount: Array, mask: Array | None = None
                    ) -> Array:
    """Quantiles [..., N] of the return: the successor's [..., A, N] at the action that ``chooser`` [..., A] values most.

    Dabney et al. (2018), algorithm 1; the means of the same quantiles as chooser are theirs, another network's make it double.
    """
    action = best_action(chooser, mask)
    value = chosen(jnp.swapaxes(next_quantiles, -1, -2), action[..., None])
    return td_target(reward[..., None], alive[..., None], value, discount)


def soft_q_target(reward: Array, alive: Array, next_value: Array, log_prob: Array, temperature: Array, discount: Array) -> Array:
    """With the successor's value and the entropy of its sampled action: Q - α log π. Haarnoja et al. (2018b), eqs. 3 and 5."""
    return td_target(reward, alive, next_value - temperature * log_prob, discount)


def soft_value(log_probs: Array, values: Array, temperature: Array) -> Array:
    """Σ π (Q - α log π) over choices [..., A]: the expectation that SAC samples, and, negated, its policy loss.

    Christodoulou (2019), eqs. 10 and 12. An action that a mask took away has probability 0 and counts for nothing.
    """
    probs = jnp.exp(log_probs)
    return (probs * (values - temperature * log_probs)).sum(axis=-1)


def smoothed_action(action: Array, noise: Array, scale: Array, limit: Array, low: Array, high: Array) -> Array:
    """The target policy's ``action`` [..., D] with a little standard normal ``noise``, itself cut at ``limit``, kept in the box.

    Fujimoto, van Hoof & Meger (2018), section 5.3.
    """
    return (action + (scale * noise).clip(-limit, limit)).clip(low, high)
