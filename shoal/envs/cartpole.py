"""A pole balanced on a cart: the compiled twin of Gymnasium's CartPole-v1, step for step.

Barto, Sutton & Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems" (1983),
with the corrected equations of Florian (2007), explicit Euler.
"""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree


@pytree
class CartPole:
    """Balance a pole on a cart by pushing it left or right.

    State and observation are the same [4]: position, velocity, pole angle, angular velocity. Without velocities the
    observation is [2], position and pole angle: what moves which way has to be remembered.
    """

    gravity: float = 9.8
    """Acceleration of gravity, m/s²."""
    cart_mass: float = 1.0
    """Mass of the cart, kg."""
    pole_mass: float = 0.1
    """Mass of the pole, kg."""
    half_length: float = 0.5
    """Half the length of the pole, m."""
    force: float = 10.0
    """Push to the left or right, N."""
    dt: float = 0.02
    """Time between steps, s."""
    max_angle: float = 12 * 2 * math.pi / 360
    """The episode ends once the pole leans further than this, rad."""
    max_position: float = 2.4
    """The episode ends once the cart is further than this from the centre, m."""
    start: float = 0.05
    """All four numbers start uniformly within plus or minus this."""
    velocities: bool = True
    """Whether the two velocities are observed; the state always has them."""

    RANGES: ClassVar[dict] = {
        "gravity": (0, 1e3), "cart_mass": (1e-3, 1e3), "pole_mass": (1e-3, 1e3), "half_length": (1e-3, 1e3), "force": (0, 1e3),
        "dt": (1e-6, 1), "max_angle": (0, 10), "max_position": (0, 1e3), "start": (0, 1),
    }

    @property
    def spec(self) -> EnvSpec:
        # No bounds on the observation: they would follow from leaves, and a spec is static.
        return EnvSpec("cartpole", obs=Box((4 if self.velocities else 2,)), action=Discrete(2), max_episode_steps=500)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Consumes ``key``."""
        state = self.start * jax.random.uniform(key, (4,), jnp.float32, -1.0, 1.0)
        return state, self._observe(state)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Deterministic; ``key`` is not used."""
        x, x_dot, angle, angle_dot = state[0], state[1], state[2], state[3]
        push = jnp.where(action == 1, self.force, -self.force)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        mass = self.cart_mass + self.pole_mass
        moment = self.pole_mass * self.half_length
        drive = (push + moment * angle_dot**2 * sin) / mass
        angle_acc = (self.gravity * sin - cos * drive) / (self.half_length * (4 / 3 - self.pole_mass * cos**2 / mass))
        x_acc = drive - moment * angle_acc * cos / mass
        after = jnp.stack([x + self.dt * x_dot, x_dot + self.dt * x_acc,
                           angle + self.dt * angle_dot, angle_dot + self.dt * angle_acc])
        fell = (jnp.abs(after[0]) > self.max_position) | (jnp.abs(after[2]) > self.max_angle)
        return after, Step(self._observe(after), jnp.ones((), jnp.float32), fell, jnp.zeros((), bool), {})

    def _observe(self, state: Array) -> Array:
        return state if self.velocities else state[::2]
