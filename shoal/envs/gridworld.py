"""A walk over a grid to a goal, round obstacles and on slippery ground: the smallest world with a map."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import ConfigError
from shoal.specs import Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree

MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))  # up, down, left, right as (x, y)


@pytree
class GridWorld:
    """Walk from a start to a goal: up, down, left or right.

    State and observation are the same int32 []: the cell, counted along the rows from the top left, y · width + x.
    Whoever walks into the edge or an obstacle stays. The episode terminates at the goal, and is cut after 4 · width · height
    steps. ``info["success"]``: whether this step reached the goal.

    Cells are (x, y) from (0, 0) at the top left; negative numbers count from the right and from the bottom.
    """

    width: int = 5
    """Columns of the grid."""
    height: int = 5
    """Rows of the grid."""
    obstacles: tuple[tuple[int, int], ...] = ()
    """Cells (x, y) that cannot be entered."""
    slip: float = 0.0
    """Probability that a direction is drawn at random, the chosen one included, in place of the chosen one."""
    goal_reward: float = 1.0
    """Reward of the step that reaches the goal."""
    step_reward: float = -0.01
    """Reward of every other step; less than nothing, so that short ways are worth more."""
    start: tuple[int, int] = (0, 0)
    """Where an episode starts (x, y)."""
    goal: tuple[int, int] = (-1, -1)
    """Where it ends (x, y); by default at the bottom right."""

    RANGES: ClassVar[dict] = {
        "width": (1, 256), "height": (1, 256), "slip": (0, 1), "goal_reward": (-1e6, 1e6), "step_reward": (-1e6, 1e6),
    }

    @property
    def spec(self) -> EnvSpec:
        cells = self.width * self.height
        return EnvSpec("gridworld", obs=Discrete(cells), action=Discrete(4), max_episode_steps=4 * cells, info=("success",))

    @property
    def optimum(self) -> float:
        """The best mean return within the limit, by dynamic programming over the steps that are left."""
        after = self.ways()
        over = after == self.cell(self.goal)
        reward = np.where(over, self.goal_reward, self.step_reward)
        value = np.zeros(self.width * self.height)
        for _ in range(self.spec.max_episode_steps):
            chosen = reward + np.where(over, 0.0, value[after])  # [4, cells]
            value = (1 - self.slip) * chosen.max(0) + self.slip * chosen.mean(0)
        return float(value[self.cell(self.start)])

    def check(self) -> None:
        if not isinstance(self.obstacles, tuple):
            raise ConfigError(f"obstacles = {self.obstacles!r}: expected pairs (x, y)")
        for name, place in [("start", self.start), ("goal", self.goal), *(("obstacles", place) for place in self.obstacles)]:
            self.check_cell(name, place)
        blocked = {self.cell(place) for place in self.obstacles}
        for name, place in (("start", self.start), ("goal", self.goal)):
            if self.cell(place) in blocked:
                raise ConfigError(f"{name} = {place}: expected a free cell, and this one is among the obstacles")
        if self.cell(self.start) == self.cell(self.goal):
            raise ConfigError(f"goal = {self.goal}: expected another cell than the start, {self.start}")
        if not self._reachable()[self.cell(self.goal)]:
            raise ConfigError(f"goal = {self.goal}: cannot be reached from start = {self.start}; the obstacles leave no way")

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Deterministic; ``key`` is not used."""
        state = jnp.full((), self.cell(self.start), jnp.int32)
        return state, state

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Consumes ``key``: whether the ground slips, and where to."""
        slip_key, way_key = jax.random.split(key)
        slips = jax.random.bernoulli(slip_key, self.slip)
        way = jnp.where(slips, jax.random.randint(way_key, (), 0, 4), jnp.asarray(action, jnp.int32))
        after = jnp.asarray(self.ways())[way, state]
        there = after == self.cell(self.goal)
        reward = jnp.where(there, self.goal_reward, self.step_reward).astype(jnp.float32)
        return after, Step(after, reward, there, jnp.zeros((), bool), {"success": there})

    def check_cell(self, name: str, place: Any) -> None:
        pair = isinstance(place, tuple) and len(place) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in place)
        if not pair:
            raise ConfigError(f"{name} = {place!r}: expected a pair of whole numbers (x, y)")
        if not (-self.width <= place[0] < self.width and -self.height <= place[1] < self.height):
            raise ConfigError(f"{name} = {place}: lies outside the grid, which is {self.width} wide and {self.height} high")

    def cell(self, place: tuple[int, int]) -> int:
        return place[1] % self.height * self.width + place[0] % self.width

    def ways(self) -> np.ndarray:
        """int32 [4, cells]: where each direction leads from each cell."""
        cells = np.arange(self.width * self.height, dtype=np.int32)
        x, y = cells % self.width, cells // self.width
        blocked = np.isin(cells, [self.cell(place) for place in self.obstacles])
        ways = []
        for right, down in MOVES:
            there = np.clip(y + down, 0, self.height - 1) * self.width + np.clip(x + right, 0, self.width - 1)
            ways.append(np.where(blocked[there], cells, there))
        return np.stack(ways)

    def model(self) -> tuple[list[Any], np.ndarray]:
        """Every outcome: [cells][4] lists of (probability, after, reward, terminated), and how likely each cell starts, [cells]."""
        ways, goal = self.ways().T.tolist(), self.cell(self.goal)
        ends = [[(after, self.goal_reward if after == goal else self.step_reward, after == goal) for after in row] for row in ways]
        drawn = [[(1 - self.slip) * (way == action) + self.slip / 4 for way in range(4)] for action in range(4)]
        outcomes = [[[(p, *end) for p, end in zip(chances, row, strict=True)] for chances in drawn] for row in ends]
        return outcomes, np.eye(self.width * self.height)[self.cell(self.start)]

    def _reachable(self) -> np.ndarray:
        """bool [cells]: where some walk from the start leads."""
        after, front = self.ways(), np.array([self.cell(self.start)])
        seen = np.zeros(self.width * self.height, bool)
        while front.size:
            seen[front] = True
            around = np.unique(after[:, front])
            front = around[~seen[around]]
        return seen
