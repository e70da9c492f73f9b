"""Ways to explore: one rule per function, over values or actions and noise that was drawn before.

All numbers are data and broadcast against the leading axes, so that every environment may have its own: an ``epsilon``
or a ``scale`` times ``1 - role.greedy`` acts greedily for whoever asks for that.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.ops.dists import argmax
from shoal.types import Array, Key, Tree


def coins(key: Key, shape: tuple[int, ...]) -> Array:
    """The noise of ``epsilon_greedy`` for ``shape`` actions, uniform in [0, 1), [*shape, 2]; consumes ``key``."""
    return jax.random.uniform(key, (*shape, 2))


def allowed(values: Array, mask: Array | None) -> Array:
    """``values`` [..., A] with -inf where ``mask`` is 0."""
    return values if mask is None else jnp.where(mask > 0, values, -jnp.inf)


def pick(choices: Array, draw: Array) -> Array:
    """One of the ``choices`` [..., A] that are true, each as likely, by a uniform ``draw`` [...] in [0, 1); 0 if none is."""
    count = choices.sum(axis=-1)
    place = jnp.minimum((draw * count).astype(jnp.int32), count - 1)
    return jnp.argmax(jnp.cumsum(choices, axis=-1) > place[..., None], axis=-1).astype(jnp.int32)


def epsilon_greedy(values: Array, noise: Array, epsilon: Array, mask: Array | None = None, *, random_ties: bool = False) -> Array:
    """With probability ``epsilon`` any action that ``mask`` [..., A] allows, else the one of most value. Watkins (1989).

    ``values`` [..., A], ``noise`` [..., 2] as of ``coins``. Of equal values the first is taken, or any with ``random_ties``.
    """
    usable, draw = allowed(values, mask), noise[..., 1]
    best = pick(usable == usable.max(axis=-1, keepdims=True), draw) if random_ties else argmax(usable)
    num = values.shape[-1]
    any_one = pick(mask > 0, draw) if mask is not None else jnp.minimum((draw * num).astype(jnp.int32), num - 1)
    return jnp.where(noise[..., 0] < epsilon, any_one, best)


def boltzmann(values: Array, noise: Array, temperature: Array, mask: Array | None = None) -> Array:
    """An action with probability proportional to exp(value / temperature); of temperature 0, the one of most value.

    ``values`` [..., A], ``noise`` Gumbel [..., A]: the Gumbel-max trick. Sutton & Barto (2018), eq. 2.11.
    """
    return argmax(allowed(values + jnp.expand_dims(temperature, -1) * noise, mask))


def upper_confidence(values: Array, counts: Array, width: Array, mask: Array | None = None) -> Array:
    """The action that may be best: of most value + width · √(ln Σ counts / count); untried ones come first, in order.

    ``values`` and ``counts`` [..., A]. Auer, Cesa-Bianchi & Fischer (2002), UCB1; Sutton & Barto (2018), eq. 2.10.
    """
    total = jnp.maximum(counts.sum(axis=-1, keepdims=True), 1)
    bonus = jnp.expand_dims(width, -1) * jnp.sqrt(jnp.log(total) / jnp.maximum(counts, 1))
    return argmax(allowed(jnp.where(counts > 0, values + bonus, jnp.inf), mask))


def lane_epsilon(rank: Array, base: Array, alpha: Array) -> Array:
    """ε of the lane at ``rank`` = i / N: base^(1 + alpha · rank), so that some lanes explore much and most little.

    Horgan et al. (2018), section 4.1, with 0.4 and 7. They have i / (N - 1), of which a single lane has none: with alpha · N / (N - 1)
    instead of alpha it is theirs exactly.
    """
    return base ** (1.0 + alpha * rank)


# continuous actions --------------------------------------------------------------------------------------------------


def gaussian(action: Array, noise: Array, scale: Array, low: Array, high: Array) -> Array:
    """``action`` [..., D] moved by standard normal ``noise`` times ``scale``, kept in the box. Fujimoto et al. (2018), section 6."""
    return (action + scale * noise).clip(low, high)


def ornstein_uhlenbeck(state: Array, noise: Array, theta: Array, sigma: Array, mean: Array = 0.0, interval: Array = 1.0) -> Array:
    """The process dx = θ (μ - x) dt + σ dW one ``interval`` later, exactly, from standard normal ``noise``.

    The state is what is added to an action; it starts at ``mean`` and lives in the policy's memory, so that an episode starts it anew.
    Uhlenbeck & Ornstein (1930); Lillicrap et al. (2016), section 3; the exact step is Gillespie's (1996).
    """
    still = theta == 0
    variance = jnp.where(still, interval, -jnp.expm1(-2.0 * theta * interval) / jnp.where(still, 1.0, 2.0 * theta))
    return mean + (state - mean) * jnp.exp(-theta * interval) + sigma * jnp.sqrt(variance) * noise


# noise on weights: Plappert et al. (2018), "Parameter space noise for exploration" -------------------------------------


def normal_like(key: Key, weights: Tree) -> Tree:
    """Standard normal noise for every weight; consumes ``key``."""
    leaves, structure = jax.tree.flatten(weights)
    keys = jax.random.split(key, max(len(leaves), 1))
    return jax.tree.unflatten(structure, [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=False)])


def perturb(weights: Tree, noise: Tree, scale: Array) -> Tree:
    """Weights that act differently, and for a whole episode alike: θ + σ · noise. Plappert et al. (2018), section 3."""
    return jax.tree.map(lambda x, drawn: x + scale * drawn, weights, noise)


def adapt_scale(scale: Array, distance: Array, wanted: Array, factor: Array = 1.01) -> Array:
    """The next scale of the noise: larger where policies differ by less than is ``wanted``, else smaller. Their section 3."""
    return jnp.where(distance <= wanted, scale * factor, scale / factor)


def values_distance(values: Array, perturbed: Array, mask: Array | None = None) -> Array:
    """How far apart two sets of values [..., A] are as policies, KL of their softmax, [...]. Their appendix C."""
    log_p, log_q = (jax.nn.log_softmax(allowed(x, mask)) for x in (values, perturbed))
    p = jnp.exp(log_p)
    return jnp.where(p > 0, p * (log_p - log_q), 0.0).sum(axis=-1)


def epsilon_distance(epsilon: Array, num_actions: Array) -> Array:
    """The distance to aim at with ``values_distance``: that of ε-greedy from greedy, -ln(1 - ε + ε / A). Their appendix C."""
    return -jnp.log1p(epsilon / num_actions - epsilon)


def action_distance(action: Array, perturbed: Array) -> Array:
    """Mean square difference of two actions [..., D], [...]; its mean's root is to be the scale of Gaussian noise. Their appendix C."""
    return ((action - perturbed) ** 2).mean(axis=-1)
