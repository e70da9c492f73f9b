"""An underpowered car in a valley: the compiled twin of Gymnasium's MountainCar-v0, step for step.

Moore, "Efficient memory-based learning for robot control" (1990), with the equations of Sutton & Barto's book.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.errors import ConfigError
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree


@pytree
class MountainCar:
    """Drive a car out of a valley by swinging back and forth, for its engine is too weak to climb at once.

    State and observation are the same [2]: position, velocity. Actions 0, 1, 2 push to the left, not at all, to the right.
    Reward -1 at every step.
    """

    force: float = 0.001
    """Change of velocity by a push, per step."""
    gravity: float = 0.0025
    """Change of velocity by the steepest slope, per step."""
    min_position: float = -1.2
    """The wall on the left, which stops the car."""
    max_position: float = 0.6
    """The right end of the road, which the car cannot pass."""
    max_speed: float = 0.07
    """Bound on the velocity, per step."""
    goal_position: float = 0.5
    """The episode ends once the car is here or further right, fast enough."""
    goal_velocity: float = 0.0
    """The least velocity that counts at the goal, per step."""
    start_low: float = -0.6
    """The leftmost start; the car starts at rest, uniformly between the two."""
    start_high: float = -0.4
    """The rightmost start."""

    RANGES: ClassVar[dict] = {
        "force": (0, 1), "gravity": (0, 1), "min_position": (-1e3, 1e3), "max_position": (-1e3, 1e3), "max_speed": (1e-6, 1e3),
        "goal_position": (-1e3, 1e3), "goal_velocity": (-1e3, 1e3), "start_low": (-1e3, 1e3), "start_high": (-1e3, 1e3),
    }

    @property
    def spec(self) -> EnvSpec:
        # No bounds on the observation: they would follow from leaves, and a spec is static.
        return EnvSpec("mountain_car", obs=Box((2,)), action=Discrete(3), max_episode_steps=200)

    def check(self) -> None:
        """Refuse a road on which there is no start or no goal."""
        low, high = self.min_position, self.max_position
        if not low < high:
            raise ConfigError(f"min_position = {low}: expected a number below max_position = {high}")
        for name in ("goal_position", "start_low", "start_high"):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected a place on the road, from {low} to {high}")
        if self.start_low > self.start_high:
            raise ConfigError(f"start_low = {self.start_low}: expected a number of at most start_high = {self.start_high}")

    def reset(self, key: Key) -> tuple[Array, Array]:
        """At rest, uniformly between two places. Consumes ``key``."""
        position = self.start_low + (self.start_high - self.start_low) * jax.random.uniform(key, (), jnp.float32)
        state = jnp.stack([position, jnp.zeros((), jnp.float32)])
        return state, state

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Deterministic; ``key`` is not used."""
        after, there = self.roll(state, self.force * (jnp.asarray(action, jnp.float32) - 1))
        return after, Step(after, jnp.full((), -1, jnp.float32), there, jnp.zeros((), bool), {})

    def roll(self, state: Array, push: Array) -> tuple[Array, Array]:
        """The state [2] a step later, and whether that is the goal. Hills are sin(3x); the wall on the left takes all velocity."""
        velocity = jnp.clip(state[1] + (push - self.gravity * jnp.cos(3 * state[0])), -self.max_speed, self.max_speed)
        position = jnp.clip(state[0] + velocity, self.min_position, self.max_position)
        velocity = jnp.where((position == self.min_position) & (velocity < 0), 0.0, velocity)
        return jnp.stack([position, velocity]), (position >= self.goal_position) & (velocity >= self.goal_velocity)
