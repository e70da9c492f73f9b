"""Worlds for runs that are killed: several choices at once, switches, pictures; each compiled and as a Gymnasium environment.

Episodes last many steps, hang on what was done before and on chance: a lane that is not brought back exactly shows at once. Each
rule is written once, in arithmetic that NumPy and JAX share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

import shoal
from shoal.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from shoal.types import Array, Key, Step, pytree

LIMIT = 60
SIDE = 8
ROW, COLUMN = np.arange(SIDE)[:, None], np.arange(SIDE)[None, :]
MOVES = np.array([[-1, 0, 0, 0], [1, 0, 0, 0], [0, -1, 0, 0], [0, 1, 0, 0]], np.int32)  # of the dot; the goal stays
SLIP = np.array([0, 0, 0, 1], np.int32)


class Rule(NamedTuple):
    """A world: what it shows and takes, whole numbers to start from and to be disturbed by, and what follows from them."""

    name: str
    obs: Any
    action: Any
    start: tuple[int, int, int]  # from, below, how many
    chance: tuple[int, int, int]
    move_fn: Callable[[Any, Any, Any], Any]  # state, action, chance → state
    show_fn: Callable[[Any], Any]
    judge_fn: Callable[[Any], tuple[Any, Any]]  # state → reward, over


def _dials_judge(state: Any) -> tuple[Any, Any]:
    return 1.0 - abs(state).sum() / 9.0, (state == 0).all()


def _lights_judge(state: Any) -> tuple[Any, Any]:
    return state.sum() / 4.0, (state == 1).all()


def _dot_move(state: Any, action: Any, chance: Any) -> Any:
    """The dot goes where it is told; now and then the goal slips."""
    return (state + (action == np.arange(4)) @ MOVES + (chance[0] == 0) * SLIP).clip(0, SIDE - 1)


def _dot_show(state: Any) -> Any:
    dot, goal = ((state[i] == ROW) & (state[i + 1] == COLUMN) for i in (0, 2))
    return (130 * dot + 120 * goal).astype("uint8")[..., None]


def _dot_judge(state: Any) -> tuple[Any, Any]:
    there = (state[:2] == state[2:]).all()
    return 1.05 * there - 0.05, there


DIALS = Rule("dials", Box((3,), -1.0, 1.0), MultiDiscrete((3, 3, 2)), (-3, 4, 3), (-1, 2, 3),
             lambda state, action, chance: (state + action - 1 + chance).clip(-3, 3),
             lambda state: (state / 3.0).astype("float32"), _dials_judge)
LIGHTS = Rule("lights", Box((4,), 0.0, 1.0), MultiBinary(4), (0, 2, 4), (0, 12, 4),
              lambda state, action, chance: (state + action + action[np.array([1, 2, 3, 0])] + (chance == 0)) % 2,
              lambda state: state.astype("float32"), _lights_judge)
DOT = Rule("dot", Box((SIDE, SIDE, 1), 0.0, 255.0, "uint8"), Discrete(4), (0, SIDE, 4), (0, 8, 1),
           _dot_move, _dot_show, _dot_judge)


class World:
    """A rule as a compiled environment."""

    rule: ClassVar[Rule]

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(self.rule.name, obs=self.rule.obs, action=self.rule.action, max_episode_steps=LIMIT)

    def reset(self, key: Key) -> tuple[Array, Array]:
        low, high, num = self.rule.start
        state = jax.random.randint(key, (num,), low, high)
        return state, self.rule.show_fn(state)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        low, high, num = self.rule.chance
        state = self.rule.move_fn(state, action, jax.random.randint(key, (num,), low, high)).astype("int32")
        reward, over = self.rule.judge_fn(state)
        return state, Step(self.rule.show_fn(state), reward.astype("float32"), over, jax.numpy.zeros((), bool), {})


@pytree
class Dials(World):
    """Turn three dials, which drift, to zero."""

    rule = DIALS


@pytree
class Lights(World):
    """Four lights and four switches, each of which flips two lights; all should be on."""

    rule = LIGHTS


@pytree
class Dot(World):
    """A picture of a dot that walks to a goal."""

    rule = DOT


class Host(gymnasium.Env):
    """A rule as a Gymnasium environment, without a way to set its state: it is brought back by replay."""

    def __init__(self, rule: Rule):
        self.rule = rule
        obs, action = rule.obs, rule.action
        self.observation_space = spaces.Box(obs.low, obs.high, obs.shape, np.dtype(obs.dtype).type)
        self.action_space = (spaces.Discrete(action.num) if isinstance(action, Discrete) else spaces.MultiBinary(action.num)
                             if isinstance(action, MultiBinary) else spaces.MultiDiscrete(action.nums))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        low, high, num = self.rule.start
        self.state = self.np_random.integers(low, high, num, np.int32)
        return self.rule.show_fn(self.state), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        low, high, num = self.rule.chance
        self.state = self.rule.move_fn(self.state, action, self.np_random.integers(low, high, num, np.int32)).astype(np.int32)
        reward, over = self.rule.judge_fn(self.state)
        return self.rule.show_fn(self.state), float(reward), bool(over), False, {}


shoal.register(env={"dials": Dials, "lights": Lights, "dot": Dot})
for _rule in (DIALS, LIGHTS, DOT):
    gymnasium.register(f"{_rule.name.title()}-v0", entry_point=partial(Host, _rule), max_episode_steps=LIMIT)
