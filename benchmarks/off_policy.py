"""The parts of ``bench`` that learn from memory: DQN, SAC, and replay by itself."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks import peers
from benchmarks.contest import Work, Worker, close, record, rounds, row

_CPU = {"JAX_PLATFORMS": "cpu"}
_CLEANRL = 1.19  # CleanRL's JAX script against Stable-Baselines3, as measured earlier: it cannot be installed

_PRODUCTS = "the limit: 16 products of 256³ an update, and nothing else"


def _shoal(name: str, args: list[str], path: str, threads: int = 1) -> Worker:
    return Worker(name, sys.executable, "shoal_worker", [*args, "--path", path, "--threads", str(threads)])


def _for_cleanrl(work: Work) -> Work:
    """The same work with the target that stands for CleanRL where Stable-Baselines3 runs."""
    return work._replace(target=round(work.target * _CLEANRL, 2))


def _faster(workers: list[Worker], kept: list[dict[str, Any]]) -> Worker:
    return max(workers, key=lambda one: statistics.median(got[one.name]["rate"] for got in kept) if kept else 0.0)


def bench_dqn(seconds: float) -> bool:
    """DQN on Gymnasium's CartPole-v1: shoal with 1 and with 8 environments, Stable-Baselines3 with as many, SBX with 1.

    The targets hold against peers with one environment, which all of them can do; with eight only Stable-Baselines3 is fast.
    """
    name = "DQN, Gymnasium CartPole-v1, {}, an update per 10 steps, one process"
    one, eight = Work(name.format("1 env"), 1, 10, 3.0), Work(name.format("8 envs"), 8, 10, 6.0)
    python, more = peers.python("t1"), ["--work", "dqn", "--seconds", str(seconds)]
    single = {"OMP_NUM_THREADS": "1"}
    workers: list[Worker] = []
    try:
        workers.append(_shoal("ported, 1 env", [*one.args, *more], "ported"))
        workers.append(Worker("Stable-Baselines3, 1 env", python, "sb3_worker", ["--num-envs", "1", *more, "--threads", "1"], single))
        workers.append(_shoal("ported, 8 envs", [*eight.args, *more], "ported"))
        workers.append(Worker("SBX, 1 env", python, "sb3_worker", ["--num-envs", "1", *more, "--path", "sbx"], _CPU))
        workers.append(Worker("Stable-Baselines3, 8 envs", python, "sb3_worker", ["--num-envs", "8", *more, "--threads", "1"], single))
        kept, dropped = rounds(workers)
        ours, sb3, ours_8, sbx, sb3_8 = workers
        rows = [row(_for_cleanrl(one), ours, sb3, kept, True), row(one, ours, sbx, kept, True),
                row(_for_cleanrl(eight), ours_8, sb3, kept, True), row(eight, ours_8, sbx, kept, True),
                row(eight, ours_8, sb3_8, kept, False)]
        record("dqn", kept, dropped, rows)
        return all(found["met"] != "no" for found in rows)
    finally:
        close(workers)


def bench_dqn_fused(seconds: float) -> bool:
    """DQN on compiled CartPole, 10 environments: shoal and rejax, each with an update per step of all of them."""
    work = Work("DQN, compiled CartPole, 10 envs, an update per 10 steps, CPU", 10, 1, 1.5)
    args = [*work.args, "--work", "dqn", "--seconds", str(seconds)]
    workers: list[Worker] = []
    try:
        workers.append(_shoal("fused, 1 thread", args, "fused"))
        workers.append(Worker("rejax", peers.python("j1"), "rejax_worker", args, _CPU))
        kept, dropped = rounds(workers)
        rows = [row(work, *workers, kept, True)]
        record("dqn-fused", kept, dropped, rows)
        return rows[0]["met"] == "yes"
    finally:
        close(workers)


def bench_sac(seconds: float) -> bool:
    """SAC on Gymnasium's Pendulum-v1: shoal, XLA having one thread or two; Stable-Baselines3 with two, SBX with as many as JAX takes.

    The faster of shoal's two is the claim; policy and values learn side by side in both. Beside them a limit of the machine: the products
    of an update on two threads, and nothing else.
    """
    name = "SAC, Gymnasium Pendulum-v1, 1 env, an update per step, one process"
    works, python = {"Stable-Baselines3": Work(name, 1, 1, 2.5), "SBX": Work(name, 1, 1, 1.5)}, peers.python("t1")
    args = ["--work", "sac", "--seconds", str(seconds)]
    workers: list[Worker] = []
    try:
        workers.append(_shoal("ported, --threads 1", args, "ported"))
        workers.append(Worker("SBX", python, "sb3_worker", [*args, "--path", "sbx"], _CPU))
        workers.append(_shoal("ported, --threads 2", args, "ported", 2))
        workers.append(Worker("Stable-Baselines3", python, "sb3_worker", [*args, "--threads", "2"], {"OMP_NUM_THREADS": "2"}))
        workers.append(Worker(_PRODUCTS, sys.executable, "products_worker", args, _CPU))
        kept, dropped = rounds(workers)
        slow, sbx, quick, sb3, limit = workers
        best = _faster([slow, quick], kept)
        rows = [row(works[peer.name], one, peer, kept, one is best) for one in (slow, quick) for peer in (sbx, sb3)]
        rows += [row(works["SBX"], one, limit, kept, False) for one in (slow, quick)]
        record("sac", kept, dropped, rows)
        return all(found["met"] != "no" for found in rows)
    finally:
        close(workers)


def bench_replay(seconds: float) -> bool:
    """Replay by itself: shoal against cpprb one call at a time, against flashbax in a scan."""
    good = True
    for kind in ("prioritised", "uniform"):
        for path, label, target, peer in (("call", "one call per cycle", 1.0, "cpprb"), ("scan", "in a scan", 1.5, "flashbax")):
            work = Work(f"{kind} replay, add 1 + sample 256, {label}", 1, 1, target)
            args = ["--work", kind, "--path", path, "--seconds", str(seconds)]
            workers: list[Worker] = []
            try:
                workers.append(Worker("device buffer, 1 thread", sys.executable, "shoal_replay_worker", [*args, "--threads", "1"]))
                python = peers.python("c1" if peer == "cpprb" else "f1")
                workers.append(Worker(peer, python, f"{peer}_worker", args, _CPU))
                kept, dropped = rounds(workers)
                rows = [row(work, *workers, kept, True)]
                record(f"replay-{kind}-{path}", kept, dropped, rows)
                good &= rows[0]["met"] == "yes"
            finally:
                close(workers)
    return good
