"""Probe environments: tiny worlds with known answers, each of which isolates one thing an algorithm must get right.

All share one shape, and which probe it is, is data: one compiled program serves them all, vmapped over kinds and seeds.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from shoal.types import Array, Key, Step, pytree

TRUNCATE_AFTER = 5
TARGET = 0.5  # the best continuous action; on the side of the sign where the probe has one


class Kind(IntEnum):
    """Which probe. A value, an observation's value, discounting, an action, both, a time limit, memory."""

    CONSTANT = 0  # one step, reward 1
    OBSERVATION = 1  # one step, reward = observation, which is -1 or 1
    DELAYED = 2  # two steps, observations 0 and 1, reward 1 at the end
    ACTION = 3  # one step, reward for the right action
    BOTH = 4  # one step, the right action is the observation's sign
    TRUNCATION = 5  # reward 1 at every step, never terminates, truncated every 5 steps
    MEMORY = 6  # two steps: the sign is shown at the first, the right action at the second matches it


PLAIN = tuple(kind for kind in Kind if kind is not Kind.MEMORY)  # what an agent without memory can solve
_LENGTHS = (1, 1, 2, 1, 1, TRUNCATE_AFTER, 2)


class State(NamedTuple):
    sign: Array  # float32 []: -1 or 1
    count: Array  # int32 []: steps taken


@pytree
class Probe:
    """Tiny worlds with known answers, two actions.

    Where the action matters, reward +1 for the right one and -1 for the other: action 1, or the one that matches the sign.
    """

    kind: Array = 0
    """Which probe, 0 to 6: constant, observation, delayed, action, both, truncation, memory."""

    RANGES: ClassVar[dict] = {"kind": (0, 6)}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe", obs=Box((2,), -1.0, 1.0), action=Discrete(2))

    def reset(self, key: Key) -> tuple[State, Array]:
        """Consumes ``key``. Observation [2]: the number that matters, and a zero."""
        return _reset(self.kind, key)

    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        """Deterministic; ``key`` is not used."""
        side = jnp.where(action == 1, 1.0, -1.0)
        return _step(self.kind, state, for_one=side, for_both=side * state.sign)


@pytree
class ContinuousProbe:
    """The same probes with an action in [-1, 1].

    Where the action matters, reward 1 − (a − t)², t = 0.5, times the sign where the probe has one.
    """

    kind: Array = 0
    """Which probe, 0 to 6: constant, observation, delayed, action, both, truncation, memory."""

    RANGES: ClassVar[dict] = {"kind": (0, 6)}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("continuous_probe", obs=Box((2,), -1.0, 1.0), action=Box((1,), -1.0, 1.0))

    def reset(self, key: Key) -> tuple[State, Array]:
        """Consumes ``key``. Observation [2]: the number that matters, and a zero."""
        return _reset(self.kind, key)

    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        """Deterministic; ``key`` is not used. ``action`` [1] is clipped to the bounds."""
        level = jnp.clip(jnp.asarray(action, jnp.float32)[0], -1.0, 1.0)
        return _step(self.kind, state, for_one=1 - (level - TARGET) ** 2, for_both=1 - (level - TARGET * state.sign) ** 2)


@pytree
class MultiDiscreteProbe:
    """The same probes with two choices at once, one of 2 and one of 3.

    Where actions matter, the right ones are the last of each, or the first of each where the sign is negative; reward is the mean of
    +1 or -1 for each.
    """

    kind: Array = 0
    """Which probe, 0 to 6: constant, observation, delayed, action, both, truncation, memory."""

    RANGES: ClassVar[dict] = {"kind": (0, 6)}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("multi_discrete_probe", obs=Box((2,), -1.0, 1.0), action=MultiDiscrete((2, 3)))

    def reset(self, key: Key) -> tuple[State, Array]:
        """Consumes ``key``."""
        return _reset(self.kind, key)

    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        """Deterministic; ``key`` is not used."""
        return _step(self.kind, state, *_matches(state, action, jnp.array([1, 2]), jnp.array([0, 0])))


@pytree
class MultiBinaryProbe:
    """The same probes with two switches: on and off are right, or off and on where the sign is negative."""

    kind: Array = 0
    """Which probe, 0 to 6: constant, observation, delayed, action, both, truncation, memory."""

    RANGES: ClassVar[dict] = {"kind": (0, 6)}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("multi_binary_probe", obs=Box((2,), -1.0, 1.0), action=MultiBinary(2))

    def reset(self, key: Key) -> tuple[State, Array]:
        """Consumes ``key``."""
        return _reset(self.kind, key)

    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        """Deterministic; ``key`` is not used."""
        return _step(self.kind, state, *_matches(state, action, jnp.array([1, 0]), jnp.array([0, 1])))


@pytree
class PixelProbe:
    """An 8 × 8 image with a bright square of 3 × 3 somewhere in its left or right half; one step, the right action is the side.

    No single pixel tells the sides apart for sure: a network must find the square.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("pixel_probe", obs=Box((8, 8, 1), 0.0, 255.0, "uint8"), action=Discrete(2))

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Consumes ``key``. The state is the side, 0 or 1."""
        side_key, row_key, column_key, noise_key = jax.random.split(key, 4)
        side = jax.random.bernoulli(side_key).astype(jnp.int32)
        corner = jnp.stack([jax.random.randint(row_key, (), 0, 6), jax.random.randint(column_key, (), 0, 2) + 4 * side])
        inside = [(jnp.arange(8) >= corner[i]) & (jnp.arange(8) < corner[i] + 3) for i in range(2)]
        image = jnp.where(inside[0][:, None] & inside[1][None, :], 220, jax.random.randint(noise_key, (8, 8), 0, 120))
        return side, image.astype(jnp.uint8)[..., None]

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Deterministic; ``key`` is not used. The successor is a dark image."""
        reward = jnp.where(action == state, 1.0, -1.0)
        return state, Step(jnp.zeros((8, 8, 1), jnp.uint8), reward, jnp.ones((), bool), jnp.zeros((), bool), {})


def _matches(state: State, action: Array, up: Array, down: Array) -> tuple[Array, Array]:
    """The reward for ``up``, and for ``up`` or ``down`` by the sign: the mean of +1 or -1 for each part."""
    def mean(right: Array) -> Array:
        return jnp.where(action == right, 1.0, -1.0).mean()

    return mean(up), mean(jnp.where(state.sign > 0, up, down))


class Expected(NamedTuple):
    """What an agent that has solved a probe answers to K observations."""

    obs: np.ndarray  # float32 [K, 2]
    value: np.ndarray  # float32 [K], of the optimal policy
    action: np.ndarray  # int32 [K]: the discrete greedy action; -1 where any will do
    level: np.ndarray  # float32 [K]: the continuous greedy action; nan where any will do


def expected(kind: int, discount: float) -> Expected:
    """The right answers, by hand: observations to ask about, their values, and the greedy actions."""
    nan = float("nan")
    answers: dict[Kind, list[tuple[float, float, int, float]]] = {
        Kind.CONSTANT: [(0, 1, -1, nan)],
        Kind.OBSERVATION: [(-1, -1, -1, nan), (1, 1, -1, nan)],
        Kind.DELAYED: [(0, discount, -1, nan), (1, 1, -1, nan)],
        Kind.ACTION: [(0, 1, 1, TARGET)],
        Kind.BOTH: [(-1, 1, 0, -TARGET), (1, 1, 1, TARGET)],
        Kind.TRUNCATION: [(0, 1 / (1 - discount), -1, nan)],
        Kind.MEMORY: [(-1, discount, -1, nan), (1, discount, -1, nan)],  # at the first step; without memory the value is 0
    }
    number, value, action, level = (np.array(column, np.float32) for column in zip(*answers[Kind(kind)], strict=True))
    return Expected(np.stack([number, np.zeros_like(number)], axis=1), value, action.astype(np.int32), level)


def _pick(kind: Array, *cases: Array | float) -> Array:
    return jax.lax.select_n(jnp.asarray(kind, jnp.int32), *(jnp.asarray(case, jnp.float32) for case in cases))


def _observe(kind: Array, state: State) -> Array:
    number = _pick(kind, 0, state.sign, jnp.minimum(state.count, 1), 0, state.sign, 0, jnp.where(state.count > 0, 0, state.sign))
    return jnp.stack([number, jnp.zeros_like(number)])


def _reset(kind: Array, key: Key) -> tuple[State, Array]:
    sign = jnp.where(jax.random.bernoulli(key), jnp.float32(1), jnp.float32(-1))
    state = State(sign, jnp.zeros((), jnp.int32))
    return state, _observe(kind, state)


def _step(kind: Array, state: State, for_one: Array, for_both: Array) -> tuple[State, Step]:
    after = State(state.sign, state.count + 1)
    over = after.count >= _pick(kind, *_LENGTHS)
    reward = _pick(kind, 1, state.sign, over, for_one, for_both, 1, over * for_both)
    endless = jnp.asarray(kind) == Kind.TRUNCATION
    return after, Step(_observe(kind, after), reward, over & ~endless, over & endless, {})
