"""A walk over a grid to a goal that is another one in every episode: the smallest world with a map and goals."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.bit_flip import reached
from shoal.envs.gridworld import GridWorld
from shoal.errors import ConfigError
from shoal.specs import ACHIEVED, DESIRED, OBSERVATION, Discrete, EnvSpec, Group
from shoal.types import Array, Key, Step, pytree


class Walk(NamedTuple):
    """Cells, int32 [] each."""

    now: Array
    goal: Array


@pytree
class GoalGridWorld:
    """Walk to a goal that every episode draws anew: up, down, left or right.

    Observation: ``observation`` and ``achieved``, the cell, and ``desired``, the goal's, each int32 [] and counted along the rows from
    the top left. Start and goal are two different free cells at random. Whoever walks into the edge or an obstacle stays. The step
    that reaches the goal pays 0 and ends the episode, every other pays -1. ``info["success"]``: whether this step reached the goal.
    """

    size: int = 8
    """Rows and columns of the grid."""
    obstacles: tuple[tuple[int, int], ...] = ()
    """Cells (x, y) that cannot be entered; negative numbers count from the right and from the bottom."""
    limit: int = 50
    """Steps in an episode."""

    RANGES: ClassVar[dict] = {"size": (2, 64), "limit": (1, 1_000_000)}

    @property
    def spec(self) -> EnvSpec:
        cell = Discrete(self.size**2)
        return EnvSpec("goal_gridworld", obs=Group(((OBSERVATION, cell), (ACHIEVED, cell), (DESIRED, cell))), action=Discrete(4),
                       max_episode_steps=self.limit, info=("success",), reward_fn=reached)

    @property
    def optimum(self) -> float:
        """The best mean return: the shortest way of d steps costs d - 1, and one that is longer than an episode all of it."""
        free = self._free()
        steps = np.array([self._distances(goal)[free] for goal in free])
        return float(-np.where(steps > self.limit, self.limit, steps - 1)[steps > 0].mean())

    def check(self) -> None:
        if not isinstance(self.obstacles, tuple):
            raise ConfigError(f"obstacles = {self.obstacles!r}: expected pairs (x, y)")
        for place in self.obstacles:
            self._grid().check_cell("obstacles", place)
        free = self._free()
        if len(free) < 2:
            raise ConfigError(f"obstacles = {self.obstacles}: expected at least two free cells, for start and goal")
        if (self._distances(free[0])[free] < 0).any():
            raise ConfigError(f"obstacles = {self.obstacles}: cut the grid in two, and a goal might lie beyond them")

    def reset(self, key: Key) -> tuple[Walk, dict[str, Array]]:
        """Consumes ``key``: one draw among all ordered pairs of different free cells."""
        free = self._free()
        first, other = jnp.divmod(jax.random.randint(key, (), 0, len(free) * (len(free) - 1)), len(free) - 1)
        pair = jnp.asarray(free)[jnp.stack([first, other + (other >= first)])]
        state = Walk(pair[0], pair[1])
        return state, _observe(state)

    def step(self, state: Walk, action: Array, key: Key) -> tuple[Walk, Step]:
        """Deterministic; ``key`` is not used."""
        after = Walk(jnp.asarray(self._grid().ways())[action, state.now], state.goal)
        reward, there = reached(after.now, after.goal)
        return after, Step(_observe(after), reward, there, jnp.zeros((), bool), {"success": there})

    def _grid(self) -> GridWorld:
        return GridWorld(self.size, self.size, self.obstacles)

    def _free(self) -> np.ndarray:
        """int32 [free cells], in order."""
        grid = self._grid()
        return np.setdiff1d(np.arange(self.size**2), [grid.cell(place) for place in self.obstacles]).astype(np.int32)

    def _distances(self, goal: int) -> np.ndarray:
        """int [cells]: steps to ``goal``, every step being as good backwards; -1 where no way leads."""
        ways, steps = self._grid().ways(), np.full(self.size**2, -1)
        front, taken = np.array([goal]), 0
        while front.size:
            steps[front] = taken
            around = np.unique(ways[:, front])
            front, taken = around[steps[around] < 0], taken + 1
        return steps


def _observe(state: Walk) -> dict[str, Array]:
    return {OBSERVATION: state.now, ACHIEVED: state.now, DESIRED: state.goal}
