"""CartPole with steps that cost a millisecond of CPU time: what a simulator would cost. For Gymnasium, as ``Burning-v0``."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

STEP_S = 0.001


class Burning(CartPoleEnv):
    """CartPole that works for its living."""

    def step(self, action: Any) -> Any:
        until = time.thread_time() + STEP_S
        while time.thread_time() < until:
            pass
        return super().step(action)


gymnasium.register("Burning-v0", entry_point=Burning, max_episode_steps=500)
