"""The same cycles for every buffer: add one row, draw 256 with weights, and change their priorities where there are any.

Capacity 10⁶, filled with 10⁵ rows so that a draw does not come out of a cache; observations of eight numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workers import protocol

CAPACITY, FILL, BATCH, SIZE = 1_000_000, 100_000, 256, 8
SCANNED = 256  # cycles in one compiled call
ALPHA, BETA = 0.6, 0.4


def rows(count: int) -> dict[str, np.ndarray]:
    """Rows [count, ...] as everyone gets them."""
    random = np.random.default_rng(0)
    obs, following = random.random((count, SIZE), np.float32), random.random((count, SIZE), np.float32)
    return {"obs": obs, "act": random.integers(0, 4, (count, 1)).astype(np.float32), "rew": random.random((count, 1), np.float32),
            "next_obs": following, "done": np.zeros((count, 1), np.float32)}


def wait(drawn: Any) -> None:
    """Wait for what a compiled call answers: its results are there together, so for the first array."""
    while isinstance(drawn, (tuple, dict)):
        drawn = next(iter(drawn.values() if isinstance(drawn, dict) else drawn))
    drawn.block_until_ready()


def in_turn(compiled: Callable[[Any, Any], tuple[Any, Any]], held: Any, keys: list[Any]) -> Callable[[], None]:
    """Calls of ``compiled(held, key)``, which uses up what is held and answers it anew with what was drawn; each waits for that."""
    number = 0

    def call() -> None:
        nonlocal held, number
        number += 1
        held, drawn = compiled(held, keys[number % len(keys)])
        wait(drawn)

    return call


def serve(given: Any, packages: tuple[str, ...], make_fn: Callable[[], Callable[[], None]], cycles: int) -> None:
    """Answer with cycles per second; a call of what ``make_fn`` makes does ``cycles`` of them."""
    begun = time.perf_counter()
    call = make_fn()
    call()
    warm_s = time.perf_counter() - begun

    def run(count: int) -> None:
        for _ in range(count // cycles):
            call()

    count = protocol.calibrate(lambda number: protocol.timed(run, number), cycles, given.seconds)
    protocol.serve({"versions": protocol.versions(*packages), "warm_s": warm_s}, lambda: protocol.timed(run, count))
