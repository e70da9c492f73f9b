"""shoal's tables as a user has them: one run of the main loop in a run folder. Pauses between samples, at calls of the engine."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.workers import protocol
from benchmarks.workers.shoal_worker import Gate

SYNC_EVERY = 250_000


def main() -> None:
    given = protocol.settings()
    from shoal.runtime import device

    device.prepare("cpu", 1)
    import shoal

    begun = time.perf_counter()
    runtime: Any = shoal.Processes(given.workers) if given.workers else shoal.Local()
    make_fn = runtime.tables
    runtime.tables = lambda *args, **settings: Gate(make_fn(*args, **settings), given.seconds, begun, ("numba", "numpy", "gymnasium"))
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
