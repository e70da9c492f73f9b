"""Action distributions. Noise is drawn apart from its use, so that a whole chunk's can be drawn at once.

Every distribution samples with ``explore`` in [0, 1]: 1 samples, 0 gives the mode; data, not control flow.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import ConfigError
from shoal.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from shoal.types import Array, Key

_MASKED = -1e9  # finite: an all-masked row stays a number
_EDGE = 1.0 - 1e-6


def argmax(x: Array) -> Array:
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
        return argmax(self.logits + jnp.expand_dims(explore, -1) * noise)

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
        return self._log_prob_before(jnp.arctanh(action.clip(-_EDGE, _EDGE)))

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        """An action and its log-probability; both pass gradients on, and nothing is lost near the edges."""
        raw = Gaussian(self.mean, self.log_std).sample(noise, jnp.ones(()))
        return jnp.tanh(raw), self._log_prob_before(raw)

    def _log_prob_before(self, raw: Array) -> Array:
        """Of the action that ``raw`` is squashed to."""
        # log(1 - tanh(x)^2), without cancellation
        slope = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        return Gaussian(self.mean, self.log_std).log_prob(action=raw) - jnp.sum(slope, axis=-1)

    def entropy(self) -> Array:
        """Of the normal before squashing: the squashed one has no closed form; the same order for exploration."""
        return Gaussian(self.mean, self.log_std).entropy()


class MultiCategorical(NamedTuple):
    """Several independent choices, their logits side by side, [..., sum of nums]; actions [..., len(nums)]."""

    logits: Array
    nums: tuple[int, ...]

    def _parts(self, x: Array) -> list[Array]:
        ends = np.cumsum(self.nums)
        return [x[..., end - num : end] for end, num in zip(ends, self.nums, strict=True)]

    def masked(self, mask: Array) -> MultiCategorical:
        """The same, without the choices where ``mask``, laid out as the logits are, is 0."""
        return MultiCategorical(Categorical(self.logits).masked(mask).logits, self.nums)

    def sample(self, noise: Array, explore: Array) -> Array:
        pairs = zip(self._parts(self.logits), self._parts(noise), strict=True)
        return jnp.stack([Categorical(logits).sample(drawn, explore) for logits, drawn in pairs], axis=-1)

    def log_prob(self, action: Array) -> Array:
        return sum(Categorical(logits).log_prob(action[..., i]) for i, logits in enumerate(self._parts(self.logits)))

    def entropy(self) -> Array:
        return sum(Categorical(logits).entropy() for logits in self._parts(self.logits))


class Bernoulli(NamedTuple):
    """Independent switches by log-odds, [..., N]; actions 0 or 1, int32."""

    logits: Array

    def sample(self, noise: Array, explore: Array) -> Array:
        """``noise`` is logistic: a switch is on where log-odds and noise together are positive."""
        return (self.logits + jnp.expand_dims(explore, -1) * noise > 0).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        return jnp.sum(jnp.where(action > 0, jax.nn.log_sigmoid(self.logits), jax.nn.log_sigmoid(-self.logits)), axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(jax.nn.softplus(-self.logits) + (1.0 - jax.nn.sigmoid(self.logits)) * self.logits, axis=-1)


def check_state_noise(wanted: bool, spec: EnvSpec) -> None:
    """Only numbers have a spread: of choices, noise that is a function of the state would change nothing."""
    if wanted and not isinstance(spec.action, Box):
        raise ConfigError(f"state_noise: expects actions that are real numbers, got {spec.action} of env {spec.name!r}; leave it out")


class StateDependent(NamedTuple):
    """A normal whose noise is a random linear function of ``latent`` [..., H], kept for several steps.

    Raffin, Kober & Stulp (2022), "Smooth exploration for robotic reinforcement learning", eqs. 3 to 5.
    """

    mean: Array  # [..., D]
    log_std: Array  # [H, D]
    latent: Array  # [..., H]

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...], every: int) -> Array:
        """Keys of random functions as plain numbers, [*shape, 2]; the same for ``every`` steps of the first axis, 0 for all of it."""
        num_steps = shape[0] if len(shape) > 1 else 1
        every = min(every or num_steps, num_steps)
        groups = -(-num_steps // every)
        rest = shape[1:] if len(shape) > 1 else shape
        keys = jax.random.key_data(jax.random.split(key, (groups, *rest)))
        kept = jnp.repeat(keys, every, axis=0)[:num_steps]
        return kept.reshape((*shape, keys.shape[-1]))

    def normal(self) -> Gaussian:
        """What an action is, seen alone: the noise of one step."""
        variance = (self.latent**2) @ jnp.exp(2.0 * self.log_std)
        return Gaussian(self.mean, 0.5 * jnp.log(variance + 1e-6))

    def sample(self, noise: Array, explore: Array) -> Array:
        def one(data: Array, latent: Array) -> Array:
            function = jnp.exp(self.log_std) * jax.random.normal(jax.random.wrap_key_data(data), self.log_std.shape)
            return latent @ function

        each = one
        for _ in range(self.latent.ndim - 1):
            each = jax.vmap(each)
        return self.mean + jnp.expand_dims(explore, -1) * each(noise, self.latent)

    def log_prob(self, action: Array) -> Array:
        return self.normal().log_prob(action)

    def entropy(self) -> Array:
        return self.normal().entropy()


def num_outputs(space: Any) -> int:
    """How many numbers a network answers for an action of ``space``."""
    if isinstance(space, MultiDiscrete):
        return sum(space.nums)
    return space.num if isinstance(space, Discrete | MultiBinary) else space.size


def of(space: Any, out: Array, log_std: Array, squash: bool, mask: Array | None) -> Any:
    """The distribution over actions of ``space`` that a network's answer ``out`` stands for."""
    if isinstance(space, Box):
        return (SquashedGaussian if squash else Gaussian)(out, log_std)
    if isinstance(space, MultiBinary):
        return Bernoulli(out)
    choices = MultiCategorical(out, space.nums) if isinstance(space, MultiDiscrete) else Categorical(out)
    return choices if mask is None else choices.masked(mask)


def noise(space: Any, key: Key, shape: tuple[int, ...]) -> Array:
    """What sampling from such a distribution takes, for ``shape`` actions; consumes ``key``."""
    if isinstance(space, Box):
        return Gaussian.noise(key, shape, space.size)
    if isinstance(space, MultiBinary):
        return jax.random.logistic(key, (*shape, space.num))
    return Categorical.noise(key, shape, num_outputs(space))
