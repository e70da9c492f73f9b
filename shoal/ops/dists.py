"""Action distributions. Noise is drawn apart from its use, so that a whole chunk's can be drawn at once.

Every distribution samples with ``explore`` in [0, 1]: 1 samples, 0 gives the mode; data, not control flow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.types import Array, Key

_MASKED = -1e9  # finite: an all-masked row stays a number
_EDGE = 1.0 - 1e-6


def _argmax(x: Array) -> Array:
    """Of the last axis, int32, the first among equals; a short one is compared in line instead of reduced."""
    if x.shape[-1] > 8:
        return jnp.argmax(x, axis=-1).astype(jnp.int32)
    best, where = x[..., 0], jnp.zeros(x.shape[:-1], jnp.int32)
    for i in range(1, x.shape[-1]):
        where = jnp.where(x[..., i] > best, i, where)
        best = jnp.maximum(x[..., i], best)
    return where


class Categorical(NamedTuple):
    """Choices by unnormalised log-probability, [..., A]."""

    logits: Array

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...], num: int) -> Array:
        """Gumbel noise, [*shape, num]; consumes ``key``."""
        return jax.random.gumbel(key, (*shape, num))

    def masked(self, mask: Array) -> Categorical:
        """The same, without the choices where ``mask`` is 0."""
        return Categorical(jnp.where(mask > 0, self.logits, _MASKED))

    def sample(self, noise: Array, explore: Array) -> Array:
        """[...] int32; the Gumbel-max trick."""
        return _argmax(self.logits + jnp.expand_dims(explore, -1) * noise)

    def log_prob(self, action: Array) -> Array:
        # a comparison instead of a gather: its gradient is one too, where a gather's is a scatter
        chosen = jnp.where(jnp.arange(self.logits.shape[-1]) == action[..., None], self.logits, 0.0).sum(axis=-1)
        return chosen - jax.nn.logsumexp(self.logits, axis=-1)

    def entropy(self) -> Array:
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


class Gaussian(NamedTuple):
    """Independent normals, [..., D]."""

    mean: Array
    log_std: Array

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...], num: int) -> Array:
        """Standard normal noise, [*shape, num]; consumes ``key``."""
        return jax.random.normal(key, (*shape, num))

    def sample(self, noise: Array, explore: Array) -> Array:
        return self.mean + jnp.expand_dims(explore, -1) * jnp.exp(self.log_std) * noise

    def log_prob(self, action: Array) -> Array:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e) + jnp.zeros_like(self.mean), axis=-1)


class SquashedGaussian(NamedTuple):
    """A normal pushed through tanh: actions in (-1, 1), [..., D]. Haarnoja et al. (2018), appendix C."""

    mean: Array
    log_std: Array

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...], num: int) -> Array:
        """As the normal before squashing; consumes ``key``."""
        return Gaussian.noise(key, shape, num)

    def sample(self, noise: Array, explore: Array) -> Array:
        return jnp.tanh(Gaussian(self.mean, self.log_std).sample(noise, explore))

    def log_prob(self, action: Array) -> Array:
        raw = jnp.arctanh(action.clip(-_EDGE, _EDGE))
        # log(1 - tanh(x)^2), without cancellation
        slope = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        return Gaussian(self.mean, self.log_std).log_prob(action=raw) - jnp.sum(slope, axis=-1)

    def entropy(self) -> Array:
        """Of the normal before squashing: the squashed one has no closed form; the same order for exploration."""
        return Gaussian(self.mean, self.log_std).entropy()
