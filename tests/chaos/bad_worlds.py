"""Environments that answer something wrong once, on a step that a test chooses: one in Python, one compiled."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import shoal
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree

BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "huge": 3e38}


class Plan:
    """What goes wrong, and at which step of all that are taken, by whichever environment it falls to."""

    kind, at, count = "", 0, itertools.count()

    @classmethod
    def set(cls, kind: str, at: int) -> None:
        cls.kind, cls.at, cls.count = kind, at, itertools.count()


def _spoilt(kind: str, obs: Any, reward: Any) -> tuple[Any, Any]:
    what, _, field = kind.partition(" ")
    if field == "reward":
        return obs, np.asarray([reward, reward]) if what == "shape" else "three" if what == "dtype" else float(BAD[what])
    if what == "shape":
        return obs[:2], reward
    if what == "dtype":
        return obs + 1j, reward
    obs = obs.copy()
    obs[1] = BAD[what]
    return obs, reward


class BadHost:
    """Adds up what it is told, nine steps an episode."""

    spec = EnvSpec("bad_host", Box((3,)), Discrete(2))

    def reset(self, seed):
        self.count, self.sum = 0, (seed % 7) / 7
        return self._obs()

    def get_state(self):
        return {"numbers": np.asarray([self.count, self.sum])}

    def set_state(self, state):
        self.count, self.sum = int(state["numbers"][0]), float(state["numbers"][1])

    def _obs(self):
        return np.asarray([self.sum, self.count / 9, 1.0], np.float32)

    def step(self, action):
        self.count, self.sum = self.count + 1, 0.9 * self.sum + int(action) - 0.5
        obs, reward = self._obs(), float(self.sum)
        if next(Plan.count) == Plan.at:
            obs, reward = _spoilt(Plan.kind, obs, reward)
        return obs, reward, self.count == 9, False, {}

    def close(self):
        pass


@pytree
class BadCompiled:
    """The same, compiled: wrong at step ``at`` of episodes whose lot is below ``share``. What is wrong is data, so it compiles once."""

    at: float = 1e9
    """Step of an episode at which it goes wrong."""
    reward: float = 0.0
    """What is added to the reward then."""
    obs: float = 0.0
    """And to the observation."""
    share: float = 0.5
    """Of episodes."""

    RANGES: ClassVar[dict] = {}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("bad_compiled", Box((3,)), Discrete(2), max_episode_steps=9)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Consumes ``key``."""
        state = jnp.stack([jnp.zeros(()), jnp.zeros(()), jax.random.uniform(key)])
        return state, self._obs(state)

    def _obs(self, state: Array) -> Array:
        return jnp.stack([state[1], state[0] / 9, 1.0])

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """``key`` is not used."""
        state = jnp.stack([state[0] + 1, 0.9 * state[1] + action - 0.5, state[2]])
        wrong = (state[0] == self.at) & (state[2] < self.share)
        obs, reward = self._obs(state), state[1]
        obs, reward = jnp.where(wrong, obs + self.obs, obs), jnp.where(wrong, reward + self.reward, reward)
        return state, Step(obs, reward, jnp.zeros((), bool), state[0] == 9, {})


shoal.register(env={"bad_host": BadHost, "bad_compiled": BadCompiled})
