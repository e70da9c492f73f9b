"""The asynchronous engine: every chunk is learned from as it comes, one lane's at a time, while others are made."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.runtime.ported import Ported, Shelf
from shoal.types import Iteration


class Flowing(Ported):
    """Lanes that do not wait. An iteration is one chunk of one lane; what comes first depends on the machine, and so do the bits."""

    def __init__(self, *args: Any, max_staleness: int, **settings: Any):
        super().__init__(*args, **settings)
        self._max_staleness = max_staleness
        self.steps_per_iteration = self.algorithm.num_steps * self._lane_envs
        self._params = Shelf(max_staleness + 1)
        self._lives: dict[int, int] = {}

    def init(self, seed: int) -> None:
        self._lives = {}
        super().init(seed)

    def _iterate(self) -> Iteration:
        chunk = self._crew.take(self._deadline_s)
        while chunk.version not in self._params.versions:  # older than the bound: its policy is not kept
            self._crew.drop(chunk)
            chunk = self._crew.take(self._deadline_s)
        if self._lives.setdefault(chunk.lane, chunk.life) != chunk.life:
            self._interrupt(chunk.lane)
            self._lives[chunk.lane] = chunk.life
        policy = self.update([chunk], self._iteration, np.int32(chunk.lane))
        self.publish(self._iteration + 1, policy, self._deadline_s)
        self._crew.used(chunk, self._iteration)
        self._iteration += 1
        return self._last

    def load(self, tensors: dict[str, np.ndarray], inexact: bool = False) -> list[str]:
        notes = super().load(tensors, inexact)
        for index in range(self.num_lanes):  # every lane begins anew
            self._interrupt(index)
        return notes
