"""Losses, elementwise: one number per row; weighting and averaging are the caller's."""

from __future__ import annotations

import jax.numpy as jnp

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


def standardised(advantage: Array, share: Array) -> Array:
    """Advantages [R] with zero mean and unit variance, where each row counts by its ``share`` (they sum to one)."""
    centred = advantage - (share * advantage).sum()
    return centred / (jnp.sqrt((share * centred**2).sum()) + 1e-8)
