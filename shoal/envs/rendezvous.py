"""Two agents on a grid that have to meet: the smallest world in which two agents must move together."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # stay, up, down, left, right as (row, column)


@pytree
class Rendezvous:
    """Two agents on a grid that both gain by meeting.

    State int32 [2, 2]: row and column of each agent. Observation [2, 4·size], each one-hot: own row and column, the other's.

    An agent at the edge that walks outwards stays. Two neighbours that walk towards each other meet: agent 1 waits,
    so that changing places, which would let them miss each other for ever, cannot happen.
    """

    size: int = 4
    """Rows and columns of the grid."""
    step_cost: float = 0.02
    """Taken from both agents at every step on which they do not meet."""

    RANGES: ClassVar[dict] = {"size": (2, 100), "step_cost": (0, 1)}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("rendezvous", obs=Box((4 * self.size,), 0.0, 1.0), action=Discrete(5), num_agents=2, max_episode_steps=25)

    @property
    def optimum(self) -> float:
        """The best mean return of either agent: from distance d they meet in ⌈d/2⌉ steps, paying for all but the last."""
        cells = np.stack(np.divmod(np.arange(self.size**2), self.size), axis=1)
        distance = np.abs(cells[:, None] - cells[None]).sum(-1)
        steps = (distance[distance > 0] + 1) // 2
        return float(1 - self.step_cost * (steps.mean() - 1))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Consumes ``key``: one draw among all ordered pairs of distinct cells."""
        cells = self.size**2
        first, other = jnp.divmod(jax.random.randint(key, (), 0, cells * (cells - 1)), cells - 1)
        both = jnp.stack([first, other + (other >= first)])
        state = jnp.stack(jnp.divmod(both, self.size), axis=1).astype(jnp.int32)
        return state, self._observe(state)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Deterministic; ``key`` is not used. ``action`` [2]."""
        wanted = jnp.clip(state + jnp.asarray(MOVES, jnp.int32)[action], 0, self.size - 1)
        swapped = jnp.all(wanted == state[::-1])
        after = wanted.at[1].set(jnp.where(swapped, state[1], wanted[1]))
        met = jnp.broadcast_to(jnp.all(after[0] == after[1]), (2,))
        reward = jnp.where(met, 1.0, -self.step_cost).astype(jnp.float32)
        return after, Step(self._observe(after), reward, met, jnp.zeros((2,), bool), {})

    def _observe(self, state: Array) -> Array:
        own = jax.nn.one_hot(state, self.size, dtype=jnp.float32).reshape(2, 2 * self.size)
        return jnp.concatenate([own, own[::-1]], axis=1)
