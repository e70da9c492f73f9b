"""An environment that fails on demand, by name, so that workers can make it; and one that is a class like any other."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import shoal
from shoal.specs import Box, Discrete, EnvSpec


class Troubled:
    """Adds up what it is told, eleven steps an episode; ``trouble`` comes at step ``at`` of its life, unless ``marker`` exists, which
    the first to be in trouble makes. It says where it stands, so it is not tried out at the start."""

    def __init__(self, trouble: str = "", at: int = 20, marker: str = ""):
        self.spec = EnvSpec("troubled", Box((3,)), Discrete(2))
        self.trouble, self.at, self.marker, self.steps = trouble, at, marker, 0

    def _due(self, *troubles: str) -> bool:
        if self.trouble not in troubles or self.steps < self.at:
            return False
        if self.marker:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
        return True

    def reset(self, seed):
        if self._due("hang in reset"):
            time.sleep(3600)
        if self._due("raise in reset"):
            raise RuntimeError("no way to begin")
        self.seed, self.count, self.sum = seed % 1009, 0, 0.0
        return self._obs()

    def get_state(self):
        return {"numbers": np.asarray([self.seed, self.count, self.steps]), "sum": np.asarray(self.sum)}

    def set_state(self, state):
        (self.seed, self.count, self.steps), self.sum = state["numbers"].tolist(), float(state["sum"])

    def _obs(self):
        return np.asarray([self.sum, self.count / 11, (self.seed * (self.count + 1)) % 1009 / 1009], np.float32)

    def step(self, action):
        self.steps, self.count, self.sum = self.steps + 1, self.count + 1, 0.9 * self.sum + int(action) - 0.5
        if self._due("raise"):
            raise ValueError("the pump is dry")
        if self._due("exit"):
            sys.exit(7)
        if self._due("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._due("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._due("hang"):
            time.sleep(3600)
        if self._due("nap"):
            time.sleep(2.0)
        if self._due("memory"):
            raise MemoryError("that was the last of it")
        obs, reward = self._obs(), float(self.sum)
        if self._due("nan reward"):
            reward = float("nan")
        if self._due("nan observation"):
            obs = obs * np.nan
        if self._due("shape"):
            obs = obs[:2]
        return obs, reward, self.count == 11, False, {}

    def close(self):
        if self._due("hang in close"):
            time.sleep(3600)


shoal.register(env={"troubled": Troubled})
