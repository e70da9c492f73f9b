"""A small world that raises whenever it finds a file, and takes the file away: one failure for each time that it is put there."""

from __future__ import annotations

import os

import numpy as np

import shoal
from shoal.specs import Box, Discrete, EnvSpec


class Shaky:
    """Adds up what it is told, forty steps an episode. It says where it stands."""

    spec = EnvSpec("shaky", Box((3,)), Discrete(2))

    def __init__(self, marker: str = ""):
        self.marker = marker

    def reset(self, seed):
        if self.marker and os.path.exists(self.marker):
            try:
                os.remove(self.marker)
            except FileNotFoundError:  # another was faster
                pass
            else:
                raise RuntimeError("shaken")
        self.seed, self.count, self.sum = seed % 1009, 0, 0.0
        return self._obs()

    def get_state(self):
        return {"numbers": np.asarray([self.seed, self.count]), "sum": np.asarray(self.sum)}

    def set_state(self, state):
        (self.seed, self.count), self.sum = state["numbers"].tolist(), float(state["sum"])

    def _obs(self):
        return np.asarray([self.sum, self.count / 40, (self.seed * (self.count + 1)) % 1009 / 1009], np.float32)

    def step(self, action):
        self.count, self.sum = self.count + 1, 0.9 * self.sum + int(action) - 0.5
        return self._obs(), float(self.sum), self.count == 40, False, {}

    def close(self):
        pass


shoal.register(env={"shaky": Shaky})
