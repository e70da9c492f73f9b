"""A two-link pendulum driven at its middle joint: the compiled twin of Gymnasium's Acrobot-v1, step for step.

Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding" (1996), with the
equations of motion of the book (Sutton & Barto), integrated by one Runge–Kutta step of the fourth order.
"""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree

Point = tuple[Array, Array, Array, Array]  # two angles, two angular velocities


@pytree
class Acrobot:
    """Swing a two-link pendulum up above the bar, driving only its middle joint.

    State [4]: both angles in [-π, π], both angular velocities. Observation [6]: cosine and sine of each angle, velocities.
    """

    gravity: float = 9.8
    """Acceleration of gravity, m/s²."""
    mass_1: float = 1.0
    """Mass of the first link, kg."""
    mass_2: float = 1.0
    """Mass of the second link, kg."""
    length_1: float = 1.0
    """Length of the first link, m."""
    centre_1: float = 0.5
    """Distance of the first link's centre of mass from its joint, m."""
    centre_2: float = 0.5
    """Distance of the second link's centre of mass from its joint, m."""
    inertia: float = 1.0
    """Moment of inertia of either link, kg·m²."""
    torque: float = 1.0
    """Torque of actions 0 and 2, negative and positive; action 1 applies none, N·m."""
    max_speed_1: float = 4 * math.pi
    """Bound on the first angular velocity, rad/s."""
    max_speed_2: float = 9 * math.pi
    """Bound on the second angular velocity, rad/s."""
    dt: float = 0.2
    """Time between steps, s."""
    start: float = 0.1
    """All four numbers start uniformly within plus or minus this."""

    RANGES: ClassVar[dict] = {
        "gravity": (0, 1e3), "mass_1": (1e-3, 1e3), "mass_2": (1e-3, 1e3), "length_1": (1e-3, 1e3), "centre_1": (0, 1e3),
        "centre_2": (0, 1e3), "inertia": (1e-3, 1e3), "torque": (0, 1e3), "max_speed_1": (0, 1e3), "max_speed_2": (0, 1e3),
        "dt": (1e-6, 1), "start": (0, 10),
    }

    @property
    def spec(self) -> EnvSpec:
        # No bounds on the observation: they would follow from leaves, and a spec is static.
        return EnvSpec("acrobot", obs=Box((6,)), action=Discrete(3), max_episode_steps=500)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Consumes ``key``."""
        state = self.start * jax.random.uniform(key, (4,), jnp.float32, -1.0, 1.0)
        return state, _observe(state)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Deterministic; ``key`` is not used. Reward -1, and 0 for the step that lifts the tip above the bar."""
        torque = self.torque * (jnp.asarray(action, jnp.float32) - 1)
        angle_1, angle_2, speed_1, speed_2 = self._integrate((state[0], state[1], state[2], state[3]), torque)
        after = jnp.stack([_wrap(angle_1), _wrap(angle_2), jnp.clip(speed_1, -self.max_speed_1, self.max_speed_1),
                           jnp.clip(speed_2, -self.max_speed_2, self.max_speed_2)])
        up = -jnp.cos(after[0]) - jnp.cos(after[0] + after[1]) > 1.0
        reward = jnp.where(up, jnp.float32(0), jnp.float32(-1))
        return after, Step(_observe(after), reward, up, jnp.zeros((), bool), {})

    def _integrate(self, point: Point, torque: Array) -> Point:
        def moved(slope: Point, time: Array | float) -> Point:
            return tuple(p + time * s for p, s in zip(point, slope, strict=True))  # type: ignore[return-value]

        k1 = self._slope(point, torque)
        k2 = self._slope(moved(k1, self.dt / 2), torque)
        k3 = self._slope(moved(k2, self.dt / 2), torque)
        k4 = self._slope(moved(k3, self.dt), torque)
        mean = tuple(a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
        return moved(mean, self.dt / 6)  # type: ignore[arg-type]

    def _slope(self, point: Point, torque: Array) -> Point:
        angle_1, angle_2, speed_1, speed_2 = point
        cos_2, sin_2 = jnp.cos(angle_2), jnp.sin(angle_2)
        arm = self.mass_2 * self.length_1 * self.centre_2
        own_2 = self.mass_2 * self.centre_2**2 + self.inertia
        d1 = self.mass_1 * self.centre_1**2 + self.mass_2 * self.length_1**2 + 2 * arm * cos_2 + own_2 + self.inertia
        d2 = own_2 + arm * cos_2
        phi_2 = self.mass_2 * self.centre_2 * self.gravity * jnp.sin(angle_1 + angle_2)
        phi_1 = (-arm * speed_2**2 * sin_2 - 2 * arm * speed_2 * speed_1 * sin_2
                 + (self.mass_1 * self.centre_1 + self.mass_2 * self.length_1) * self.gravity * jnp.sin(angle_1) + phi_2)
        acc_2 = (torque + d2 / d1 * phi_1 - arm * speed_1**2 * sin_2 - phi_2) / (own_2 - d2**2 / d1)
        acc_1 = -(d2 * acc_2 + phi_1) / d1
        return speed_1, speed_2, acc_1, acc_2


def _wrap(angle: Array) -> Array:
    return jnp.mod(angle + math.pi, 2 * math.pi) - math.pi


def _observe(state: Array) -> Array:
    cos, sin = jnp.cos(state[:2]), jnp.sin(state[:2])
    return jnp.stack([cos[0], sin[0], cos[1], sin[1], state[2], state[3]])
