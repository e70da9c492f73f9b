"""Speed of environments spread over worker processes: against one worker, and against peers that spread theirs."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.checks import check, put, train
from benchmarks.contest import Entry, Pair, Work, close, compete, keep, rounds, start

_SINGLE = {"OMP_NUM_THREADS": "1"}
_SHARE = 0.667  # of a rate: at most 1.5 times the time


def _shoal(name: str, work: Work, seconds: float, *more: str) -> Entry:
    return Entry(name, "shoal_worker", [*work.args, "--seconds", str(seconds), "--path", "ported", "--threads", "1", *more])


def _sb3(name: str, work: Work, seconds: float, *more: str) -> Entry:
    return Entry(name, "sb3_worker", [*work.args, "--seconds", str(seconds), "--threads", "1", *more], "t1", _SINGLE)


def _spreading(work: Work, seconds: float, *more: str) -> list[Entry]:
    """The peers that keep environments in several processes; the last two in as many as shoal has workers."""
    two = [*work.args, "--seconds", str(seconds), "--workers", "2", *more]
    return [_sb3("Stable-Baselines3, SubprocVecEnv", work, seconds, *more, "--path", "subproc"),
            Entry("RLlib, 2 env runners", "rllib_worker", two, "r1", _SINGLE),
            Entry("Sample Factory, 2 rollout workers", "sample_factory_worker", two, "s1", _SINGLE)]


def bench_burning(seconds: float) -> bool:
    """CartPole whose steps burn 1 ms of CPU time, 16 environments: two workers against one, and against peers with several processes."""
    work = Work("PPO, Gymnasium CartPole burning 1 ms a step, 16 envs × 32 steps", 16, 32)
    two, one, env = "2 workers, in step", "shoal, 1 worker", ("--env", "Burning-v0")
    ours = [_shoal(two, work, seconds, *env, "--workers", "2"), _shoal(one, work, seconds, *env, "--workers", "1")]
    theirs = _spreading(work, seconds, *env)
    return compete("burning", work, ours + theirs, [Pair(two, one, 1.8), *(Pair(two, peer.name, 1.0) for peer in theirs)])


def bench_spread(seconds: float) -> bool:
    """Gymnasium's CartPole-v1, 16 environments over two workers, against peers with several processes."""
    work = Work("PPO, Gymnasium CartPole-v1, 16 envs × 128 steps, several processes", 16, 128)
    two, theirs = "2 workers, in step", _spreading(work, seconds)
    return compete("spread", work, [_shoal(two, work, seconds, "--workers", "2"), *theirs], [Pair(two, peer.name, 1.0) for peer in theirs])


def bench_lag(seconds: float) -> bool:
    """Gymnasium's CartPole-v1, 8 environments in one worker that collects while the driver learns, against SB3 and SBX in one process."""
    work = Work("PPO, Gymnasium CartPole-v1, 8 envs × 128 steps, one worker at lag 1", 8, 128)
    ours, sb3, sbx = "1 worker, lag 1", "Stable-Baselines3", "SBX"
    entries = [_shoal(ours, work, seconds, "--workers", "1", "--lag", "1"), _sb3(sb3, work, seconds),
               Entry(sbx, "sb3_worker", [*work.args, "--seconds", str(seconds), "--path", "sbx"], "t1", {"JAX_PLATFORMS": "cpu"})]
    return compete("lag", work, entries, [Pair(ours, sb3, 7.0), Pair(ours, sbx, 7.0)])


def bench_stepping(seconds: float) -> bool:
    """Gymnasium's CartPole-v1 stepped by actions that are drawn, 8 and 64 environments: against AsyncVectorEnv, SyncVectorEnv, EnvPool."""
    two, here = "2 workers, lag 1", "in process"
    asynchronous, synchronous, pool = "Gymnasium, AsyncVectorEnv", "Gymnasium, SyncVectorEnv", "EnvPool, 2 threads"
    good = _chosen_by_itself()
    for num_envs, target in ((8, None), (64, 1.3)):
        work = Work(f"stepping Gymnasium CartPole-v1, {num_envs} envs, drawn actions", num_envs, 128)
        ours = ("--work", "stepping")
        theirs = [Entry(name, "vector_worker", [*work.args, "--seconds", str(seconds), "--path", path, "--workers", "2"], "e1", _SINGLE)
                  for name, path in ((asynchronous, "async"), (synchronous, "sync"), (pool, "envpool"))]
        entries = [_shoal(two, work, seconds, *ours, "--workers", "2", "--lag", "1"), *theirs, _shoal(here, work, seconds, *ours)]
        pairs = [Pair(two, asynchronous, 8.0), Pair(two, synchronous, target), Pair(two, pool), Pair(here, synchronous), Pair(here, pool)]
        good &= compete(f"stepping-{num_envs}", work, entries, pairs)
    return good


def _chosen_by_itself() -> bool:
    """With ``--runtime processes`` and nothing said about workers: none for steps that take microseconds, some for a millisecond."""
    rows = []
    for env, wanted in (("CartPole-v1", "0"), ("Burning-v0", "> 1")):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            train(out, env, "--plugin", "benchmarks.workers.burning", "--runtime", "processes", "--num-envs", "16", "--num-steps", "32",
                  "--steps", "2048", "--eval-episodes", "1", "--preset", "none")
            workers = num_workers((out / "timing.jsonl").read_text())
        rows.append(check(f"workers that --runtime processes chooses for {env}", str(workers), wanted, (workers > 1) == (wanted == "> 1")))
    return put(rows)


def num_workers(timing: str) -> int:
    """How many workers a run had, from its timing.jsonl."""
    last = json.loads(timing.splitlines()[-1])
    return sum(name.startswith("worker") and name.endswith("_busy") for name in last)


def bench_exchange(seconds: float) -> bool:
    """A version of the parameters to a worker and word back, 1 MB and 40 MB in 8 leaves: against a copy in shared memory with a signal."""
    step, free, plain = "1 worker, in step", "1 worker, without waiting", "shared memory and a pipe"
    good = True
    for size in (1, 40):
        work = Work(f"parameters to a worker and word back, {size} MB in 8 leaves, exchanges", size, 1)
        entries = [Entry(name, "exchange_worker", [*work.args, "--seconds", str(seconds), "--path", path])
                   for name, path in ((step, "step"), (plain, "plain"), (free, "free"))]
        good &= compete(f"exchange-{size}", work, entries, [Pair(step, plain, _SHARE), Pair(free, plain, _SHARE)])
    return good


_ALIKE, _REST = 1.2, 0.2  # how far apart the two sides may be; the share of the shorter that may be left of it
_TRIAL = 8  # epochs that a first look is taken with


class Overlap(NamedTuple):
    """Seconds of an iteration: collecting and learning one after the other, and what it takes with both at once."""

    collect_s: float
    learn_s: float
    lagged_s: float

    @property
    def alike(self) -> bool:
        return max(self.collect_s, self.learn_s) <= _ALIKE * min(self.collect_s, self.learn_s)

    @property
    def rest(self) -> float:
        """What is left over of the shorter side, as a share of it."""
        return (self.lagged_s - max(self.collect_s, self.learn_s)) / min(self.collect_s, self.learn_s)


def sides(sample: dict[str, Any]) -> tuple[float, float]:
    """Seconds that an iteration at lag 0 collects, and that it learns."""
    spans = sample["spans_s"]
    return spans["ask"] + spans["wait"], spans["update"] + spans["publish"]


def overlap(size: int, kept: list[dict[str, Any]], apart: str, lagged: str) -> Overlap:
    """From rounds of a run at lag 0 and one at lag 1: the round in the middle by what is left over."""
    found = sorted((Overlap(*sides(got[apart]), size / got[lagged]["rate"]) for got in kept), key=lambda one: one.rest)
    middle = statistics.median_low(range(len(found)))
    return found[middle]


def bench_overlap(seconds: float) -> bool:
    """Where collecting and learning take as long, an iteration at lag 1 takes little longer than one of them."""
    work, apart, lagged = Work("", 8, 128), "lag 0", "lag 1"

    def entry(name: str, epochs: int) -> Entry:
        return _shoal(name, work, seconds, "--workers", "1", "--lag", name[-1], "--num-epochs", str(epochs))

    workers, _ = start([entry(apart, _TRIAL)])
    try:
        collect_s, learn_s = (statistics.median(x) for x in zip(*(sides(workers[0].sample()) for _ in range(3)), strict=True))
    finally:
        close(workers)
    epochs = max(1, round(_TRIAL * collect_s / learn_s))
    workers, _ = start([entry(apart, epochs), entry(lagged, epochs)])
    try:
        kept, dropped = rounds(workers)
    finally:
        close(workers)
    keep("overlap", kept, dropped)
    what = "an iteration at lag 1, PPO, Gymnasium CartPole-v1, 8 envs × 128 steps, one worker"
    wanted = f"≤ max + {_REST:g} · min, the two within {_ALIKE - 1:.0%} of each other"
    if not kept:
        return put([check(what, "no quiet round: the machine is too busy to measure on", wanted, False)])
    found = overlap(work.num_envs * work.num_steps, kept, apart, lagged)
    said = (f"{found.lagged_s * 1e3:.1f} ms = max + {found.rest:.2f} · min of collecting {found.collect_s * 1e3:.1f} ms and learning "
            f"{found.learn_s * 1e3:.1f} ms ({epochs} epochs, {len(kept)} rounds)")
    said += "" if found.alike else "; the two are too far apart to tell"
    return put([check(what, said, wanted, found.alike and found.rest <= _REST)])
