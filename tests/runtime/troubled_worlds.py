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
    the first to be in trouble makes. It says where it stands, so it is not tried out at the start. ``group`` is a control group
    whose memory is small."""

    def __init__(self, trouble: str = "", at: int = 20, marker: str = "", group: str = ""):
        self.spec = EnvSpec("troubled", Box((3,)), Discrete(2))
        self.trouble, self.at, self.marker, self.group, self.steps = trouble, at, marker, group, 0

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
        if self._due("babble"):
            os.write(int(sys.argv[1]), b"so it goes\n")
        if self._due("leak"):
            _leak(self.group)
        obs, reward = self._spoilt(self._obs(), float(self.sum))
        return obs, reward, self.count == 11, False, {}

    def _spoilt(self, obs, reward):
        """An observation and a reward, one of them wrong where it is time."""
        for trouble, bad in (("nan", np.nan), ("inf", np.inf), ("-inf", -np.inf)):
            if self._due(f"{trouble} reward"):
                reward = float(bad)
            if self._due(f"{trouble} observation"):
                obs = obs + np.float32(bad)
        if self._due("shape"):
            obs = obs[:2]
        if self._due("dtype"):
            obs = obs + 1j
        if self._due("words"):
            obs = np.asarray(["a", "b", "c"])
        if self._due("reward shape"):
            reward = np.asarray([reward, reward])
        for trouble, bad in (("no reward", None), ("words reward", "three")):
            if self._due(trouble):
                reward = bad
        return obs, reward

    def close(self):
        if self._due("hang in close"):
            time.sleep(3600)


def _leak(group: str) -> None:
    """Take memory until there is no more, in a control group that has little."""
    with open(os.path.join(group, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))
    taken = []
    while len(taken) < 1000:
        taken.append(np.ones(1 << 20))


class Pair(Troubled):
    """Two agents; in trouble, one of them is missing from what it answers."""

    def __init__(self, trouble: str = "", at: int = 20, marker: str = ""):
        super().__init__(trouble, at, marker)
        self.spec = EnvSpec("pair", Box((3,)), Discrete(2), num_agents=2)

    def _obs(self):
        one = np.asarray([self.sum, self.count / 11, 0.5], np.float32)
        return np.stack([one, -one])

    def step(self, action):
        self.steps, self.count, self.sum = self.steps + 1, self.count + 1, 0.9 * self.sum + float(np.sum(action)) - 1.0
        obs, rewards, over = self._obs(), np.full(2, self.sum), np.full(2, self.count == 11)
        if self._due("agent observation"):
            obs = obs[:1]
        if self._due("agent reward"):
            rewards = rewards[:1]
        if self._due("agent end"):
            over = np.zeros(3, bool)
        return obs, rewards, over, np.zeros(2, bool), {}


shoal.register(env={"troubled": Troubled, "pair": Pair})
