"""Speed against peers in the same run, into ``docs/speed.md``.

``python -m benchmarks.bench [ported|fused|dqn|dqn_fused|sac|replay|threads|recompile|burning|spread|lag|stepping|exchange|overlap|
tables|tables_host|tictactoe|all …]``.

Every contestant is a process of its own that has warmed up and waits; they are asked for samples in turn, A B A B, so that
neither compilation nor the machine's drift enters a ratio; see ``contest``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import off_policy, peers, spread, table, tables
from benchmarks.checks import check, put, train
from benchmarks.contest import PAGE, Work, Worker, close, record, rounds, row

# the parts -----------------------------------------------------------------------------------------------------------


def bench_ported(seconds: float) -> bool:
    """Gymnasium's CartPole-v1 in one process: shoal, Stable-Baselines3, SBX.

    The target holds against both, so against the better.
    """
    work = Work("PPO, Gymnasium CartPole-v1, 8 envs × 128 steps, one process", 8, 128, 4.0)
    args, python = [*work.args, "--seconds", str(seconds)], peers.python("t1")
    workers: list[Worker] = []
    try:
        workers.append(Worker("ported, 1 thread", sys.executable, "shoal_worker", [*args, "--path", "ported", "--threads", "1"]))
        workers.append(Worker("Stable-Baselines3", python, "sb3_worker", [*args, "--threads", "1"], {"OMP_NUM_THREADS": "1"}))
        workers.append(Worker("SBX", python, "sb3_worker", [*args, "--path", "sbx"], {"JAX_PLATFORMS": "cpu"}))
        kept, dropped = rounds(workers)
        rows = [row(work, workers[0], peer, kept, True) for peer in workers[1:]]
        record("ported", kept, dropped, rows)
        engine = statistics.median(got[workers[0].name]["engine_rate"] for got in kept)
        print(f"  shoal's engine alone, without the main loop around it: {engine:,.0f} steps/s", flush=True)
        return all(found["met"] == "yes" for found in rows)
    finally:
        close(workers)


def bench_fused(seconds: float) -> bool:
    """Compiled CartPole: shoal with one and with two threads, rejax with as many as JAX takes.

    The faster of shoal's two is the claim.
    """
    python, good = peers.python("j1"), True
    for num_envs, num_steps, target in ((8, 128, 1.3), (256, 128, 1.2), (2048, 32, 1.2)):
        work = Work(f"PPO, compiled CartPole, {num_envs:,} envs × {num_steps} steps, CPU", num_envs, num_steps, target)
        args = [*work.args, "--seconds", str(seconds)]
        workers: list[Worker] = []
        try:
            for threads, name in ((1, "fused, 1 thread"), (2, "fused, 2 threads")):
                options = [*args, "--path", "fused", "--threads", str(threads)]
                workers.append(Worker(name, sys.executable, "shoal_worker", options))
            workers.append(Worker("rejax", python, "rejax_worker", args, {"JAX_PLATFORMS": "cpu"}))
            # rejax stands between shoal's two, so that both have it for a neighbour
            kept, dropped = rounds([workers[0], workers[2], workers[1]])
            best = max(workers[:2], key=lambda ours: statistics.median(got[ours.name]["rate"] for got in kept) if kept else 0.0)
            rows = [row(work, ours, workers[2], kept, ours is best) for ours in workers[:2]]
            record(f"fused-{num_envs}", kept, dropped, rows)
            good &= all(found["met"] != "no" for found in rows)
        finally:
            close(workers)
    return good


_SMALL = {
    "fused, 8 × 128": ("cartpole", "--num-envs", "8", "--num-steps", "128", "--steps", "20480"),
    "fused, 2,048 × 32": ("cartpole", "--num-envs", "2048", "--num-steps", "32", "--steps", "262144"),
    "ported, 8 × 128": ("CartPole-v1", "--num-envs", "8", "--num-steps", "128", "--steps", "20480"),
    "ported, 64 × 128": ("CartPole-v1", "--num-envs", "64", "--num-steps", "128", "--steps", "40960"),
}
_SAME = ("--preset", "none", "--num-epochs", "4", "--num-minibatches", "4", "--eval-episodes", "1")


def bench_threads(seconds: float) -> bool:
    """The whole learner state has the same bits with 1, 2 and 4 threads."""
    rows = []
    for name, args in _SMALL.items():
        with tempfile.TemporaryDirectory() as folder:
            hashes = [train(Path(folder) / str(n), *args, *_SAME, "--threads", str(n))["params_sha256"] for n in (1, 2, 4)]
        same = len(set(hashes)) == 1
        found = ", ".join(f"{h[:12]}…" for h in (hashes[:1] if same else hashes))
        rows.append(check(f"params_sha256 with --threads 1, 2, 4: {name}", found, "equal", same))
    return put(rows)


def bench_recompile(seconds: float) -> bool:
    """After the first call of the engine nothing is compiled any more, checkpoints included."""
    rows = []
    for name, args in _SMALL.items():
        if "8 × 128" not in name or "2,048" in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            longer = [*args[:-1], "81920", *_SAME, "--checkpoint-every", "20480"]
            train(out, *longer)
            counts = compilations((out / "timing.jsonl").read_text())
        late = counts[-1] - counts[0]
        found = f"{late} in {len(counts) - 1} calls, 4 checkpoints"
        rows.append(check(f"compilations after warm-up: {name}", found, "0", late == 0))
    return put(rows)


def compilations(timing: str) -> list[int]:
    """XLA compilations up to each call of the engine, from a run's timing.jsonl."""
    counts = [json.loads(line)["compilations"] for line in timing.splitlines()]
    if len(counts) < 2:
        raise RuntimeError("the run ended with its first call: nothing came after warm-up")
    return counts


PARTS = {"ported": bench_ported, "fused": bench_fused, "dqn": off_policy.bench_dqn, "dqn_fused": off_policy.bench_dqn_fused,
         "sac": off_policy.bench_sac, "replay": off_policy.bench_replay, "threads": bench_threads, "recompile": bench_recompile,
         "burning": spread.bench_burning, "spread": spread.bench_spread, "lag": spread.bench_lag, "stepping": spread.bench_stepping,
         "exchange": spread.bench_exchange, "overlap": spread.bench_overlap,
         "tables": tables.bench_tables, "tables_host": tables.bench_tables_host, "tictactoe": tables.bench_tictactoe}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}, all (default: all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a sample (default: 3)")
    given = parser.parse_args(argv)
    for name in given.parts:
        if name not in (*PARTS, "all"):
            parser.error(f"unknown part {name!r}; choose from {', '.join(PARTS)}, all")
    names = list(PARTS) if not given.parts or "all" in given.parts else given.parts
    begun, good = time.perf_counter(), {}
    for name in names:
        print(f"{name}: {str(PARTS[name].__doc__).splitlines()[0]}", flush=True)
        good[name] = PARTS[name](given.seconds)
    open_ = [name for name, met in good.items() if not met]
    print(f"{'all met' if not open_ else 'NOT met: ' + ', '.join(open_)} in {(time.perf_counter() - begun) / 60:.1f} min; "
          f"see {os.path.relpath(PAGE, table.ROOT)}")
    return 1 if open_ else 0


if __name__ == "__main__":
    sys.exit(main())
