"""A two-player matrix game, played simultaneously and repeatedly: the smallest world with two agents."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import ConfigError
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree


class State(NamedTuple):
    actions: Array  # int32 [2]: what both played last; -1 before the first round
    round: Array  # int32 []


@pytree
class MatrixGame:
    """Two players choose at the same time, again and again; by default they gain most by agreeing on choice 0.

    Each observes the other's last choice and its own, both one-hot; zeros before the first round.
    """

    # played at random, choice 0 already pays more, so that learners agree on it
    payoff: tuple = (((4.0, 0.0), (0.0, 1.0)), ((4.0, 0.0), (0.0, 1.0)))
    """payoff[i][a][b]: what agent i receives when agent 0 plays a and agent 1 plays b."""
    length: int = 10
    """Rounds in an episode, which then terminates."""

    RANGES: ClassVar[dict] = {"length": (1, 1_000_000)}

    @property
    def spec(self) -> EnvSpec:
        num = len(self.payoff[0])
        return EnvSpec("matrix_game", obs=Box((2 * num,), 0.0, 1.0), action=Discrete(num), num_agents=2)

    @property
    def optimum(self) -> float:
        """The best mean return of the two agents: the best joint action in every round."""
        return self.length * float(np.max(np.mean(self.payoff, axis=0)))

    def check(self) -> None:
        try:
            shape = np.asarray(self.payoff, np.float32).shape
        except (TypeError, ValueError):
            shape = ()
        if len(shape) != 3 or shape[0] != 2 or shape[1] != shape[2] or shape[1] < 1:
            raise ConfigError(f"payoff = {self.payoff!r}: expected numbers in the shape [2][A][A]")

    def reset(self, key: Key) -> tuple[State, Array]:
        """Deterministic; ``key`` is not used. Observation [2, 2A]."""
        state = State(jnp.full((2,), -1, jnp.int32), jnp.zeros((), jnp.int32))
        return state, self._observe(state.actions)

    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        """Deterministic; ``key`` is not used. ``action`` [2]."""
        actions = jnp.asarray(action, jnp.int32)
        reward = jnp.asarray(self.payoff, jnp.float32)[:, actions[0], actions[1]]
        after = State(actions, state.round + 1)
        over = jnp.broadcast_to(after.round >= self.length, (2,))
        return after, Step(self._observe(actions), reward, over, jnp.zeros((2,), bool), {})

    def _observe(self, actions: Array) -> Array:
        own = jax.nn.one_hot(actions, len(self.payoff[0]), dtype=jnp.float32)  # -1 gives a row of zeros
        return jnp.concatenate([own[::-1], own], axis=1)
