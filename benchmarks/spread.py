"""Speed of environments spread over worker processes: against one worker, and against peers that spread theirs."""

from __future__ import annotations

import sys

from benchmarks import peers
from benchmarks.contest import Work, Worker, close, record, rounds, row

_SUBPROC = {"OMP_NUM_THREADS": "1"}


def _shoal(name: str, work: Work, seconds: float, *more: str) -> Worker:
    args = [*work.args, "--seconds", str(seconds), "--path", "ported", "--threads", "1", *more]
    return Worker(name, sys.executable, "shoal_worker", args)


def bench_burning(seconds: float) -> bool:
    """CartPole whose steps burn 1 ms of CPU time, 16 environments: two workers against one, and against SB3's SubprocVecEnv."""
    work = Work("PPO, Gymnasium CartPole burning 1 ms a step, 16 envs × 32 steps", 16, 32, 1.8)
    args, workers = ["--env", "Burning-v0"], []
    try:
        workers.append(_shoal("2 workers, in step", work, seconds, *args, "--workers", "2"))
        workers.append(_shoal("shoal, 1 worker", work, seconds, *args, "--workers", "1"))
        workers.append(Worker("Stable-Baselines3, SubprocVecEnv", peers.python("t1"), "sb3_worker",
                              [*work.args, "--seconds", str(seconds), "--threads", "1", *args, "--path", "subproc"], _SUBPROC))
        kept, dropped = rounds(workers)
        rows = [row(work, workers[0], workers[1], kept, True), row(work._replace(target=1.0), workers[0], workers[2], kept, True)]
        record("burning", kept, dropped, rows)
        return all(found["met"] == "yes" for found in rows)
    finally:
        close(workers)


def bench_spread(seconds: float) -> bool:
    """Gymnasium's CartPole-v1, 16 environments over two workers, against SB3's SubprocVecEnv."""
    work = Work("PPO, Gymnasium CartPole-v1, 16 envs × 128 steps, several processes", 16, 128, 1.0)
    workers: list[Worker] = []
    try:
        workers.append(_shoal("2 workers, in step", work, seconds, "--workers", "2"))
        workers.append(Worker("Stable-Baselines3, SubprocVecEnv", peers.python("t1"), "sb3_worker",
                              [*work.args, "--seconds", str(seconds), "--threads", "1", "--path", "subproc"], _SUBPROC))
        kept, dropped = rounds(workers)
        rows = [row(work, workers[0], workers[1], kept, True)]
        record("spread", kept, dropped, rows)
        return all(found["met"] == "yes" for found in rows)
    finally:
        close(workers)


def bench_lag(seconds: float) -> bool:
    """Gymnasium's CartPole-v1, 8 environments in one worker that collects while the driver learns, against SB3 and SBX in one process."""
    work = Work("PPO, Gymnasium CartPole-v1, 8 envs × 128 steps, one worker at lag 1", 8, 128, 7.0)
    args, python, workers = [*work.args, "--seconds", str(seconds)], peers.python("t1"), []
    try:
        workers.append(_shoal("1 worker, lag 1", work, seconds, "--workers", "1", "--lag", "1"))
        workers.append(Worker("Stable-Baselines3", python, "sb3_worker", [*args, "--threads", "1"], _SUBPROC))
        workers.append(Worker("SBX", python, "sb3_worker", [*args, "--path", "sbx"], {"JAX_PLATFORMS": "cpu"}))
        kept, dropped = rounds(workers)
        rows = [row(work, workers[0], peer, kept, True) for peer in workers[1:]]
        record("lag", kept, dropped, rows)
        return all(found["met"] == "yes" for found in rows)
    finally:
        close(workers)
