"""A row of slot machines: the smallest world in which exploring and exploiting pull apart."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.errors import ConfigError
from shoal.specs import Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree


@pytree
class Bandit:
    """Pull one of several arms, once; each pays a fixed mean and Gaussian noise.

    State and observation are the same int32 [], always 0. An episode is one step.
    """

    means: tuple[float, ...] = (0.2, -0.5, 1.0, 0.0, 0.7)
    """What each arm pays on average; as many actions as there are means."""
    noise: float = 1.0
    """Standard deviation of what an arm pays."""

    RANGES: ClassVar[dict] = {"noise": (0, 1e6)}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("bandit", obs=Discrete(1), action=Discrete(len(self.means)))

    @property
    def optimum(self) -> float:
        """The best mean return: that of the best arm."""
        return float(max(self.means))

    def check(self) -> None:
        numbers = isinstance(self.means, tuple) and all(
            isinstance(mean, (int, float)) and not isinstance(mean, bool) and abs(mean) <= 1e6 for mean in self.means)
        if not numbers or not self.means:
            raise ConfigError(f"means = {self.means!r}: expected a list of numbers from -1e6 to 1e6, one for each arm")

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Deterministic; ``key`` is not used."""
        state = jnp.zeros((), jnp.int32)
        return state, state

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Consumes ``key``: one normal draw."""
        reward = jnp.asarray(self.means, jnp.float32)[action] + self.noise * jax.random.normal(key, (), jnp.float32)
        return state, Step(state, reward, jnp.ones((), bool), jnp.zeros((), bool), {})
