"""What an environment says of itself: spaces, agents, time limit. Plain, hashable data; no JAX."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

MASK = "action_mask"
STATE = "state"
OBSERVATION, ACHIEVED, DESIRED = "observation", "achieved", "desired"  # the parts of a goal-conditioned observation


@dataclass(frozen=True)
class Box:
    """An array of real numbers. A bound is one number, or a flat tuple with one per element."""

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -math.inf
    high: float | tuple[float, ...] = math.inf
    dtype: str = "float32"

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Low and high as float32 arrays of the box's shape."""
        low, high = (np.asarray(b, np.float32) for b in (self.low, self.high))
        return (np.broadcast_to(low.reshape(-1) if low.ndim else low, (self.size,)).reshape(self.shape),
                np.broadcast_to(high.reshape(-1) if high.ndim else high, (self.size,)).reshape(self.shape))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bounded(self) -> bool:
        low, high = self.bounds()
        return bool(np.isfinite(low).all() and np.isfinite(high).all())


@dataclass(frozen=True)
class Discrete:
    """One of ``num`` choices, numbered from 0."""

    num: int
    dtype: str = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, the i-th one of ``nums[i]``, each numbered from 0."""

    nums: tuple[int, ...]
    dtype: str = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nums),)


@dataclass(frozen=True)
class MultiBinary:
    """``num`` switches, each 0 or 1."""

    num: int
    dtype: str = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num,)


@dataclass(frozen=True)
class Group:
    """Named spaces, in order: a dict observation. ``action_mask`` and ``state`` have a meaning of their own."""

    items: tuple[tuple[str, Any], ...]

    def __getitem__(self, name: str) -> Space:
        return dict(self.items)[name]

    def __contains__(self, name: str) -> bool:
        return name in dict(self.items)


Action = Box | Discrete | MultiDiscrete | MultiBinary
Space = Action | Group


@dataclass(frozen=True)
class EnvSpec:
    """All that an algorithm may know of an environment before it sees it."""

    name: str
    obs: Space  # of one agent
    action: Action  # of one agent
    num_agents: int = 0  # 0: single-agent, no agent axis
    max_episode_steps: int = 0  # 0: no limit known
    info: tuple[str, ...] = ()
    reward_fn: Callable[[Any, Any], tuple[Any, Any]] | None = None  # goals: (achieved, desired) → (reward, terminated), pure
    frames: int = 1  # an observation is a stack of so many, oldest first along the last axis; a map that changes observations says 1

    @property
    def goal(self) -> bool:
        """Whether the reward depends on nothing but what was achieved and what was desired, so that goals may be put in afterwards.

        Then observations are a group of ``observation``, ``achieved`` and ``desired``, and ``reward_fn`` answers for one step,
        unbatched: what ``step`` answers is ``reward_fn(step.obs["achieved"], step.obs["desired"])``.
        """
        return self.reward_fn is not None

    @property
    def agent_shape(self) -> tuple[int, ...]:
        """The shape that agents add behind the batch axis."""
        return (self.num_agents,) if self.num_agents else ()

    def single(self) -> EnvSpec:
        """The same world as one of its agents sees it; its stack of frames runs on where it leaves before the others."""
        return replace(self, num_agents=0, frames=1)


def zeros(space: Space, shape: tuple[int, ...] = ()) -> Any:
    """A tree of zeros that an observation of ``space`` would fill, with ``shape`` in front."""
    if isinstance(space, Group):
        return {name: zeros(inner, shape) for name, inner in space.items}
    return np.zeros(shape + space.shape, space.dtype)


def num_features(space: Space) -> int:
    """How many numbers a network sees: choices as one-hot; mask and global state left out."""
    if isinstance(space, Group):
        return sum(num_features(inner) for name, inner in space.items if name not in (MASK, STATE))
    if isinstance(space, MultiDiscrete):
        return sum(space.nums)
    return space.num if isinstance(space, Discrete | MultiBinary) else space.size
