"""Losses, elementwise: one number per row; weighting and averaging are the caller's."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.ops import blocks
from shoal.types import Array


def clipped_surrogate(log_ratio: Array, advantage: Array, clip: Array) -> Array:
    """The pessimistic policy loss of PPO. Schulman et al. (2017), eq. 7, negated to be minimised."""
    ratio = jnp.exp(log_ratio)
    return -jnp.minimum(ratio * advantage, ratio.clip(1.0 - clip, 1.0 + clip) * advantage)


def clipped_value(value: Array, old_value: Array, target: Array, clip: Array) -> Array:
    """Half the squared error, pessimistic about moving more than ``clip`` from the old value; inf: plain.

    Schulman et al. (2017), reference implementation.
    """
    clipped = old_value + (value - old_value).clip(-clip, clip)
    return 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2)


def approximate_kl(log_ratio: Array) -> Array:
    """A non-negative, low-variance estimate of KL(old || new) from samples of old. Schulman (2020), k3."""
    return jnp.expm1(log_ratio) - log_ratio


def policy_gradient(log_prob: Array, advantage: Array) -> Array:
    """The loss whose gradient is the policy gradient. Williams (1992), eq. 11, negated to be minimised."""
    return -log_prob * advantage


def squared(value: Array, target: Array) -> Array:
    """Half the squared error."""
    return 0.5 * (value - target) ** 2


def centred(advantage: Array, valid: Array) -> Array:
    """Advantages less their mean over valid steps."""
    count = jnp.maximum(blocks.total(valid.reshape(-1)), 1.0)
    return advantage - blocks.total((valid * advantage).reshape(-1)) / count


def standardised(advantage: Array, share: Array) -> Array:
    """Advantages [R] with zero mean and unit variance, where each row counts by its ``share`` (they sum to one)."""
    centred = advantage - blocks.total(share * advantage)
    return centred / (jnp.sqrt(blocks.total(share * centred**2)) + 1e-8)


def huber(x: Array, delta: Array) -> Array:
    """Half the square of an error up to ``delta``, a straight line beyond; inf: half the square everywhere. Huber (1964)."""
    size = jnp.abs(x)
    inner = jnp.minimum(size, delta)
    return inner * (size - 0.5 * inner)


def quantile_huber(quantiles: Array, target: Array, fractions: Array, delta: Array) -> Array:
    """How far ``quantiles`` [..., N] are from those of ``target`` [..., M] at ``fractions`` [N]; [...].

    Summed over quantiles, averaged over target samples. Dabney et al. (2018), eqs. 9 and 10.
    """
    error = target[..., None, :] - quantiles[..., :, None]
    weight = jnp.abs(fractions[:, None] - (error < 0))
    return (weight * huber(error, delta)).mean(axis=-1).sum(axis=-1)


def quantile_fractions(num: int) -> Array:
    """The middles of ``num`` equal parts of [0, 1]. Dabney et al. (2018), lemma 2."""
    return (jnp.arange(num) + 0.5) / num


def soft_policy(log_prob: Array, value: Array, temperature: Array) -> Array:
    """The policy loss of SAC for a sampled action: α log π - Q. Haarnoja et al. (2018b), eq. 7."""
    return temperature * log_prob - value


def temperature(log_temperature: Array, entropy: Array, wanted: Array) -> Array:
    """Raises the temperature where the policy has less entropy than ``wanted``. Haarnoja et al. (2018b), eq. 18.

    With the logarithm in the temperature's place, as their own code has it: a small temperature then still moves as fast, in proportion.
    ``entropy`` is -log π of a sampled action, or the policy's own for choices (Christodoulou 2019, eq. 11); no gradient passes it.
    """
    return log_temperature * (jax.lax.stop_gradient(entropy) - wanted)
