"""A version of the parameters to a worker and word back that it has them: ``--path free`` or ``step`` as shoal does it, ``--path plain`` a
copy into shared memory, a signal through a pipe, a copy out of it and a signal back. *Steps* are exchanges.

``--num-envs`` is the size in MB (10⁶ bytes), in 8 leaves of float32.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any

import numpy as np

from benchmarks.workers import protocol

_LEAVES, _DEADLINE_S = 8, 60.0


def _leaves(megabytes: int) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.random(megabytes * 1_000_000 // 4 // _LEAVES, np.float32) for _ in range(_LEAVES)]


def _answer(name: str, count: int, pipe: Any) -> None:
    """The other side of ``plain``."""
    memory = shared_memory.SharedMemory(name=name)
    shared: Any = np.ndarray(count, np.float32, memory.buf)
    own = np.empty_like(shared)
    while pipe.recv():
        np.copyto(own, shared)
        pipe.send(1)
    del shared
    memory.close()


def _plain(leaves: list[np.ndarray]) -> tuple[Callable[[], None], Callable[[], None]]:
    source = np.concatenate(leaves)  # one copy of all: the least there is to do
    memory = shared_memory.SharedMemory(create=True, size=source.nbytes)
    shared: Any = np.ndarray(len(source), np.float32, memory.buf)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(memory.name, len(source), theirs), daemon=True)
    process.start()

    def exchange() -> None:  # a wait without a deadline would be a mistake elsewhere; here whoever asks for samples has one
        np.copyto(shared, source)
        ours.send(1)
        ours.recv()

    def close() -> None:
        nonlocal shared
        ours.send(0)
        process.join(_DEADLINE_S)
        shared = None
        memory.close()
        memory.unlink()

    return exchange, close


def _shoal(leaves: list[np.ndarray], copies: bool) -> tuple[Callable[[], None], Callable[[], None]]:
    from benchmarks.workers.fetching import Publisher
    from shoal.runtime import device
    from shoal.runtime.lanes import World
    from shoal.runtime.ported import Shelf

    device.prepare("cpu", 1)
    shelf, nothing = Shelf(2), (None,) * 4
    shelf.versions = {0: leaves}
    world = World(*nothing, None, 0, 1, 1, "", ())  # type: ignore[arg-type]
    crew = Publisher(world, shelf, 0, copies=copies, told={}, workers=1, step_timeout_s=_DEADLINE_S, max_restarts=0, logs=None,
                     warn_fn=lambda text: None, stop_fn=bool)
    crew.begin(_DEADLINE_S)
    version = 0

    def exchange() -> None:
        nonlocal version
        version += 1
        crew.exchange(version, leaves, _DEADLINE_S)

    return exchange, crew.close


def main() -> None:
    given = protocol.settings()
    begun, leaves = time.perf_counter(), _leaves(given.num_envs)
    exchange, close = _plain(leaves) if given.path == "plain" else _shoal(leaves, given.path == "free")

    def run(count: int) -> None:
        for _ in range(count):
            exchange()

    try:
        run(10)  # every page has been touched
        warm_s = time.perf_counter() - begun
        count = protocol.calibrate(lambda count: protocol.timed(run, count), 10, given.seconds)
        protocol.serve({"versions": protocol.versions("numpy"), "warm_s": warm_s}, lambda: protocol.timed(run, count))
    finally:
        close()


if __name__ == "__main__":
    main()
