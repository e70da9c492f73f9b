"""A chain of states whose far end pays best: the classic test of exploration that looks ahead.

Strens, "A Bayesian framework for reinforcement learning" (2000), whose five states and rewards are the defaults.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.specs import Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree

LEFT, RIGHT = 0, 1


@pytree
class Chain:
    """Walk to the end of a chain past a reward that calls you back.

    State and observation are the same int32 []: the place in the chain, from 0, where every episode starts.

    Action 1, right, moves one place on for no reward; at the last place it stays there and pays ``end_reward``. Action 0, left,
    goes back to the start and pays ``back_reward``. With probability ``slip`` the opposite action happens. The process never
    terminates; an episode is cut after ``limit`` steps.

    With the default settings the optimal policy goes right everywhere, which pays slip · back_reward
    + (1 − slip)^length · end_reward = 3.6768 a step in the long run; left everywhere pays 1.6 + 0.2^5 · 10 = 1.6032.
    """

    length: int = 5
    """States in the chain."""
    slip: float = 0.2
    """Probability that the opposite of the chosen action happens."""
    back_reward: float = 2.0
    """Reward of every step that goes back to the start."""
    end_reward: float = 10.0
    """Reward of every step right at the last place."""
    limit: int = 100
    """Steps in an episode."""

    RANGES: ClassVar[dict] = {
        "length": (2, 1000), "slip": (0, 1), "back_reward": (-1e6, 1e6), "end_reward": (-1e6, 1e6), "limit": (1, 1_000_000),
    }

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("chain", obs=Discrete(self.length), action=Discrete(2), max_episode_steps=self.limit)

    @property
    def optimum(self) -> float:
        """The best mean return in an episode of a policy that goes left up to some place and right from there on.

        Exact. A policy that also counted the steps could gain a little more, by going back just before the cut.
        """
        return max(self._mean_return(first_right) for first_right in range(self.length + 1))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Deterministic; ``key`` is not used."""
        state = jnp.zeros((), jnp.int32)
        return state, state

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Consumes ``key``: whether the step slips."""
        right = (jnp.asarray(action) == RIGHT) ^ jax.random.bernoulli(key, self.slip)
        at_end = state == self.length - 1
        after = jnp.where(right, jnp.minimum(state + 1, self.length - 1), 0)
        reward = jnp.where(right, jnp.where(at_end, self.end_reward, 0.0), self.back_reward).astype(jnp.float32)
        never = jnp.zeros((), bool)
        return after, Step(after, reward, never, never, {})

    def model(self) -> tuple[list[Any], np.ndarray]:
        """Every outcome: [length][2] lists of (probability, after, reward, terminated), and how likely each place starts, [length]."""
        last = self.length - 1
        back = (0, self.back_reward, False)
        on = [(min(place + 1, last), self.end_reward if place == last else 0.0, False) for place in range(self.length)]
        outcomes = [[[(1 - self.slip, *chosen), (self.slip, *other)] for chosen, other in ((back, right), (right, back))] for right in on]
        return outcomes, np.eye(self.length)[0]

    def values(self, right: Array, discount: float) -> np.ndarray:
        """The discounted value of every place, [length], for going right with probability ``right`` [length]. Exact.

        Of the process, which never ends: the limit is where we stop watching.
        """
        moves, reward = self._moves(np.asarray(right, np.float64))
        return np.linalg.solve(np.eye(self.length) - discount * moves, reward)

    def _moves(self, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How likely each place is after each, [length, length], and the mean reward there, for choosing right so often."""
        place = np.arange(self.length)
        happens = right * (1 - self.slip) + (1 - right) * self.slip
        moves = np.zeros((self.length, self.length))
        moves[place, np.minimum(place + 1, self.length - 1)] += happens
        moves[place, 0] += 1 - happens
        return moves, happens * np.where(place == self.length - 1, self.end_reward, 0.0) + (1 - happens) * self.back_reward

    def _mean_return(self, first_right: int) -> float:
        """Of going left before place ``first_right`` and right from there on."""
        moves, reward = self._moves((np.arange(self.length) >= first_right).astype(np.float64))
        value = np.zeros(self.length)
        for _ in range(self.limit):
            value = reward + moves @ value
        return float(value[0])
