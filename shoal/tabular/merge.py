"""Several tables that began as one become one again: every pair by how often each of them learned it. Pure."""

from __future__ import annotations

import numpy as np


def merged(q: np.ndarray, n: np.ndarray, tables: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The table and counters that ``tables`` [(q, n), …] make of the common ``q`` and ``n`` they began with.

    A pair's value is the mean of theirs, weighed by their visits since and added in their order; one that a single table has visited is
    that table's, to the bit; one that none has visited stays, to the bit: whoever did not see a state has no say in it.
    """
    total, weight, visitors = np.zeros_like(q), np.zeros(len(n), np.int64), np.zeros(len(n), np.int64)
    alone = q.copy()
    for theirs, counts in tables:
        visits = counts - n
        total += visits * theirs
        weight += visits
        visitors += visits > 0
        np.copyto(alone, theirs, where=(visits > 0))
    mean = total / np.maximum(weight, 1)
    joined = np.where(visitors == 1, alone, np.where(visitors == 0, q, mean))
    return _planned(q, joined, visitors == 0, [theirs for theirs, _ in tables]), n + weight


def _planned(q: np.ndarray, joined: np.ndarray, unseen: np.ndarray, tables: list[np.ndarray]) -> np.ndarray:
    """Pairs that nobody visited and a model changed, or a trace: the mean of those who changed them."""
    changed, total, alone = np.zeros(len(q), np.int64), np.zeros_like(q), q.copy()
    for theirs in tables:
        differs = unseen & (theirs != q)
        changed += differs
        total += np.where(differs, theirs, 0.0)
        np.copyto(alone, theirs, where=differs)
    return np.where(changed == 0, joined, np.where(changed == 1, alone, total / np.maximum(changed, 1)))
