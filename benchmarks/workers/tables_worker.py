"""shoal's tables as a user has them: one run of the main loop in a run folder. Pauses between samples, at calls of the engine."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.workers import protocol
from benchmarks.workers.shoal_worker import Gate

SYNC_EVERY = 250_000


class Anew:
    """An engine whose table is emptied now and then: a world is stepped as it is while it is learned, and not only once it is known."""

    def __init__(self, engine: Any):
        self._engine, self._steps = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, limits: Any) -> Any:
        if self._steps >= protocol.ANEW:
            self._engine.q[:], self._engine.n[:], self._steps = 0.0, 0, 0
        report = self._engine.run(limits)
        self._steps += sum(iteration.steps or 0 for iteration in report.iterations)
        return report


def main() -> None:
    given = protocol.settings()
    from shoal.runtime import device

    device.prepare("cpu", 1)
    import shoal

    begun = time.perf_counter()
    runtime: Any = shoal.Processes(given.workers) if given.workers else shoal.Local()
    make_fn, wrapped = runtime.tables, Anew if given.path == "ported" else lambda engine: engine
    packages = "numba", "numpy", "gymnasium"
    runtime.tables = lambda *args, **settings: Gate(wrapped(make_fn(*args, **settings)), given.seconds, begun, packages)
    options = {"map_name": "8x8"} if given.env.startswith("FrozenLake") else {}
    discount = 1.0 if given.env == "tictactoe" else 0.99
    agent = shoal.QLearning(learning_rate=0.1, discount=discount, epsilon_start=0.1, epsilon_schedule="constant", horizon=1e15,
                            sync_every=SYNC_EVERY)
    log_every = 2_000_000 if given.path == "fused" else 20_000
    with tempfile.TemporaryDirectory() as folder:
        loop = shoal.MainLoop(given.env, agent, runtime=runtime, path=given.path, num_envs=given.num_envs,
                              lane_envs=1 if given.workers else given.num_envs, device="cpu", log_every=log_every, env_options=options,
                              out=Path(folder) / "run")
        try:
            loop.run(steps=10**15)
        except StopIteration:
            loop.close()


if __name__ == "__main__":
    main()
