"""Rows for what has been seen, and for nothing else: so that a table is as large as what happens, not as what could."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.errors import ConfigError

FIRST_ROWS = 1024  # that a table has room for at first


class Seen:
    """Observations numbered in the order they come. In the place of ``discrete.Rows``."""

    def __init__(self, rows: Any):
        if rows.num >= 2**63:
            raise ConfigError(f"sparse = true: {rows.num:.3g} states have no number of 64 bits; use fewer bins")
        self._rows, self.slots, self.mask = rows, {}, rows.mask  # type: ignore[var-annotated]

    @property
    def num(self) -> int:
        return len(self.slots)

    def index(self, obs: Any) -> int:
        """The row of an observation; a new one where it was never seen."""
        return self.slots.setdefault(self._rows.index(obs), len(self.slots))

    def find(self, obs: Any) -> int:
        """The row of an observation; -1 where it was never seen."""
        return self.slots.get(self._rows.index(obs), -1)

    def keys(self) -> np.ndarray:
        """int64 [rows]: what each row stands for."""
        return np.fromiter(self.slots, np.int64, len(self.slots))

    def load(self, keys: np.ndarray) -> None:
        self.slots = {int(key): row for row, key in enumerate(keys)}


def grown(q: np.ndarray, cells: int, more: int, tables: int, value: Any) -> np.ndarray:
    """A table, or its counters, with ``more`` cells in each of its parts instead of ``cells``; new ones hold ``value``."""
    out = np.full(more * tables, value, q.dtype)
    for part in range(tables):
        out[part * more:part * more + cells] = q[part * cells:(part + 1) * cells]
    return out
