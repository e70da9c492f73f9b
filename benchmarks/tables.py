"""The speed of learning in tables: against loops written by hand, with workers, in Python's environments, and tic-tac-toe."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import table
from benchmarks.checks import check, put
from benchmarks.contest import Entry, Pair, Work, compete

# dist_classicrl is on no package index. As measured earlier on such a machine, its fastest runs took 39,000 steps/s where the textbook loop
# took 88,000 (FrozenLake), and 25,000 where that took 51,000 and 36,000 (Taxi); on tic-tac-toe 16,000 in one process and 7,000 under MPI.
_SHARE = {"FrozenLake-v1": 0.44, "Taxi-v4": 0.57}
_SINGLE, _MPI = 16_000, 7_000


def bench_tables(seconds: float) -> bool:
    """Q-learning on FrozenLake 8×8 by its model, one thread, against a loop written by hand; two workers against one."""
    more = ["--seconds", str(seconds)]
    good = compete("tables", Work("Q-learning, compiled FrozenLake 8×8, 1 env, one thread", 1, 1), [
        Entry("table, 1 env", "tables_worker", ["--env", "FrozenLake-v1", "--path", "fused", *more]),
        Entry("loop by hand (numba)", "plain_tables", ["--path", "compiled", *more])],
        [Pair("table, 1 env", "loop by hand (numba)", 0.7)])
    args = ["--env", "FrozenLake-v1", "--path", "fused", "--num-envs", "8", *more]
    return compete("tables-workers", Work("Q-learning, compiled FrozenLake 8×8, 8 lanes merged every 250,000 steps", 8, 1), [
        Entry("2 workers", "tables_worker", [*args, "--workers", "2"]), Entry("1 worker", "tables_worker", [*args, "--workers", "1"])],
        [Pair("2 workers", "1 worker", 1.6)]) and good


def bench_tables_host(seconds: float) -> bool:
    """Q-learning on Gymnasium's FrozenLake and Taxi in Python, against a loop with a compiled update and the textbook's."""
    good, more = True, ["--seconds", str(seconds)]
    for env, share in _SHARE.items():
        good &= compete(f"tables-{env}", Work(f"Q-learning, Gymnasium {env} in Python, 1 env, from nothing every 20,000 steps", 1, 1), [
            Entry("table, ported", "tables_worker", ["--env", env, "--path", "ported", *more]),
            Entry("compiled update by hand", "plain_tables", ["--env", env, "--path", "update", *more]),
            Entry("textbook loop (NumPy)", "plain_tables", ["--env", env, "--path", "textbook", *more])],
            [Pair("table, ported", "compiled update by hand", 0.9), Pair("table, ported", "textbook loop (NumPy)", round(2 * share, 2))])
    return good


def bench_tictactoe(seconds: float) -> bool:
    """Self-play of tic-tac-toe in one process and on two ranks, beside what dist_classicrl was measured at."""
    steps, rows = int(2e7 * max(1.0, seconds / 3)), []
    for what, ranks, peer, wanted in (("one process", 0, _SINGLE, 500), ("two MPI ranks", 2, _MPI, 100)):
        rates = sorted(_rate(steps if not ranks else steps // 2, ranks) for _ in range(5))
        found = rates[2] / peer
        rows.append(check(f"tic-tac-toe self-play, {what}", f"{rates[2]:,.0f} steps/s ({rates[0]:,.0f} … {rates[-1]:,.0f}): {found:,.0f}× "
                          f"the {peer:,} of dist_classicrl as measured earlier", f"≥ {wanted}×", found >= wanted))
    return put(rows)


def _rate(steps: int, ranks: int) -> float:
    """Steps a second of a run, by its own account: without start and compilation."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["--num-envs", "1"] if not ranks else ["--num-envs", "8", "--sync-every", "50000", "--runtime", "mpi"]
        spread = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)] if ranks else []
        command = [*spread, sys.executable, "-m", "shoal", "train", "q_learning", "tictactoe",
                   "--preset", "none", "--steps", str(steps), "--discount", "1", "--eval-episodes", "1", "--log-every", str(steps // 20),
                   *own, "--json", "--quiet", "--out", str(Path(folder) / "run")]
        done = subprocess.run(command, cwd=table.ROOT, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        return float(json.loads(done.stdout.splitlines()[-1])["steps_per_s"])
