"""The car in the valley with a throttle: the compiled twin of Gymnasium's MountainCarContinuous-v0, step for step."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from shoal.envs.mountain_car import MountainCar
from shoal.specs import Box, EnvSpec
from shoal.types import Array, Key, Step, pytree

MAX_FORCE = 1.0  # bounds the action, so it is part of the spec and cannot be a leaf


@pytree
class MountainCarContinuous(MountainCar):
    """Drive a car out of a valley by swinging back and forth, on as little fuel as that takes.

    State and observation are the same [2]: position, velocity. Action [1]: the throttle, from -1 (left) to 1 (right).
    """

    force: float = 0.0015
    """Change of velocity by full throttle, per step."""
    goal_position: float = 0.45
    """The episode ends once the car is here or further right, fast enough."""
    goal_reward: float = 100.0
    """Reward of the step that reaches the goal."""
    action_cost: float = 0.1
    """Taken from every reward, times the square of the action."""

    RANGES: ClassVar[dict] = {
        "force": (0, 1), "gravity": (0, 1), "min_position": (-1e3, 1e3), "max_position": (-1e3, 1e3), "max_speed": (1e-6, 1e3),
        "goal_position": (-1e3, 1e3), "goal_velocity": (-1e3, 1e3), "goal_reward": (-1e6, 1e6), "action_cost": (0, 1e6),
        "start_low": (-1e3, 1e3), "start_high": (-1e3, 1e3),
    }

    @property
    def spec(self) -> EnvSpec:
        # No bounds on the observation: they would follow from leaves, and a spec is static.
        return EnvSpec("mountain_car_continuous", obs=Box((2,)), action=Box((1,), -MAX_FORCE, MAX_FORCE), max_episode_steps=999)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Deterministic; ``key`` is not used. What ``action`` [1] asks for beyond the bounds is paid for but not given."""
        asked = jnp.asarray(action, jnp.float32)[0]
        after, there = self.roll(state, self.force * jnp.clip(asked, -MAX_FORCE, MAX_FORCE))
        reward = jnp.where(there, self.goal_reward, 0.0) - self.action_cost * asked**2
        return after, Step(after, reward.astype(jnp.float32), there, jnp.zeros((), bool), {})
