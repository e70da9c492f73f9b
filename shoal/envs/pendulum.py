"""A pendulum to swing up and hold: the compiled twin of Gymnasium's Pendulum-v1, step for step. It never terminates."""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.specs import Box, EnvSpec
from shoal.types import Array, Key, Step, pytree

MAX_TORQUE = 2.0  # bounds the action, so it is part of the spec and cannot be a leaf
COARSE_TURN = 201 / 32  # 2π to eight bits


@pytree
class Pendulum:
    """Swing a pendulum up and hold it there, with less torque than that takes at once.

    State [2]: angle from upright, angular velocity. Observation [3]: cosine and sine of the angle, velocity.
    """

    gravity: float = 10.0
    """Acceleration of gravity, m/s²."""
    mass: float = 1.0
    """Mass of the rod, kg."""
    length: float = 1.0
    """Length of the rod, m."""
    max_speed: float = 8.0
    """Bound on the angular velocity, rad/s."""
    dt: float = 0.05
    """Time between steps, s."""
    start_angle: float = math.pi
    """The angle starts uniformly within plus or minus this, rad."""
    start_speed: float = 1.0
    """The angular velocity starts uniformly within plus or minus this, rad/s."""

    RANGES: ClassVar[dict] = {
        "gravity": (0, 1e3), "mass": (1e-3, 1e3), "length": (1e-3, 1e3), "max_speed": (0, 1e3), "dt": (1e-6, 1),
        "start_angle": (0, 10), "start_speed": (0, 1e3),
    }

    @property
    def spec(self) -> EnvSpec:
        # No bounds on the observation: they would follow from leaves, and a spec is static.
        return EnvSpec("pendulum", obs=Box((3,)), action=Box((1,), -MAX_TORQUE, MAX_TORQUE), max_episode_steps=200)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Consumes ``key``."""
        unit = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
        state = jnp.stack([self.start_angle * unit[0], self.start_speed * unit[1]])
        return state, _observe(state)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Deterministic; ``key`` is not used. ``action`` [1] is clipped to the bounds."""
        # The angle is brought back to [-π, π) at every step: a float32 that grows with each turn would lose its digits.
        angle, speed = _wrap(state[0]), state[1]
        torque = jnp.clip(jnp.asarray(action, jnp.float32)[0], -MAX_TORQUE, MAX_TORQUE)
        cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
        acc = 3 * self.gravity / (2 * self.length) * jnp.sin(angle) + 3 / (self.mass * self.length**2) * torque
        speed = jnp.clip(speed + acc * self.dt, -self.max_speed, self.max_speed)
        after = jnp.stack([angle + speed * self.dt, speed])
        never = jnp.zeros((), bool)
        return after, Step(_observe(after), -cost, never, never, {})


def _wrap(angle: Array) -> Array:
    """To [-π, π]. 2π is taken away in two parts, the first so short that its multiples are exact: an angle of many turns,
    as Gymnasium's states have them, loses no digits."""
    turns = jnp.round(angle / (2 * math.pi))
    return (angle - turns * COARSE_TURN) - turns * (2 * math.pi - COARSE_TURN)


def _observe(state: Array) -> Array:
    return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])
