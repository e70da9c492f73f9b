"""The numbers between two rows of metrics: running sums in plain double arithmetic, added in the order of the iterations.

A checkpoint in mid-window stores them exactly, so that the next row of a resumed run has the bits of a run never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shoal.errors import DamagedError, ShoalError


class Window:
    """Sums over the iterations since the last row."""

    def __init__(self) -> None:
        self._mean_return = math.nan
        self._reset()

    def _reset(self) -> None:
        self._metrics: dict[str, tuple[float, int]] = {}  # sum, and in how many iterations the metric occurred
        self._episodes = 0
        self._return_sum = 0.0
        self._length_sum = 0

    def add(self, metrics: Mapping[str, float], episodes: int, return_sum: float, length_sum: int, mean_return: float) -> None:
        """Take in one iteration; ``mean_return`` is that of the last 100 episodes, as of its end."""
        for name, value in metrics.items():
            total, count = self._metrics.get(name, (0.0, 0))
            self._metrics[name] = (total + float(value), count + 1)
        self._episodes += int(episodes)
        self._return_sum += float(return_sum)
        self._length_sum += int(length_sum)
        self._mean_return = float(mean_return)

    def row(self, step: int, iteration: int, updates: int, episodes_total: int) -> dict[str, int | float]:
        """The row for what was added since the last one, and begin anew.

        A metric is its mean over the iterations it occurred in; ``window_return`` and ``episode_length`` are means over the
        episodes that ended since the last row, nan if none did.
        """
        ended = self._episodes
        row: dict[str, int | float] = {
            "step": step,
            "iteration": iteration,
            "updates": updates,
            "episodes": episodes_total,
            "mean_return": self._mean_return,
            "window_return": self._return_sum / ended if ended else math.nan,
            "episode_length": self._length_sum / ended if ended else math.nan,
        }
        taken = sorted(row.keys() & self._metrics)
        if taken:
            raise ShoalError(f"metric {taken[0]!r}: the name is taken by every row; expected another one from the algorithm")
        for name in sorted(self._metrics):
            total, count = self._metrics[name]
            row[name] = total / count
        self._reset()
        return row

    def state(self) -> dict[str, Any]:
        """Where the window stands, for strict JSON: floats as the shortest text that reads back to the same bits, nan too."""
        return {
            "mean_return": repr(self._mean_return),
            "episodes": self._episodes,
            "return_sum": repr(self._return_sum),
            "length_sum": self._length_sum,
            "metrics": {name: [repr(total), count] for name, (total, count) in sorted(self._metrics.items())},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()``."""
        self._mean_return, self._return_sum = _float(state, "mean_return"), _float(state, "return_sum")
        self._episodes, self._length_sum = _count(state, "episodes"), _count(state, "length_sum")
        metrics = state.get("metrics")
        if not isinstance(metrics, Mapping) or any(not isinstance(pair, list) or len(pair) != 2 for pair in metrics.values()):
            raise DamagedError(f"window: metrics = {metrics!r}: expected a sum and a count under each name")
        self._metrics = {}
        for name, (total, count) in metrics.items():
            pair = {f"sum of {name}": total, f"count of {name}": count}
            self._metrics[name] = (_float(pair, f"sum of {name}"), _count(pair, f"count of {name}", least=1))


def _float(state: Mapping[str, Any], name: str) -> float:
    value = state.get(name)
    try:
        if isinstance(value, str):
            return float(value)
    except ValueError:
        pass
    raise DamagedError(f"window: {name} = {value!r}: expected a number as text")


def _count(state: Mapping[str, Any], name: str, least: int = 0) -> int:
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DamagedError(f"window: {name} = {value!r}: expected a whole number of at least {least}")
    return value
