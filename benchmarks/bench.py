"""Speed against peers in the same run, into ``docs/speed.md``.

``python -m benchmarks.bench [ported|fused|threads|recompile|all …]``.

Every contestant is a process of its own that has warmed up and waits; they are asked for samples in turn, A B A B, so that
neither compilation nor the machine's drift enters a ratio. Ratios are taken pair by pair; a round in which others took more
than 5 % of the CPU time is dropped and repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peers, stats, table

PAGE = table.ROOT / "docs" / "speed.md"
RESULTS = table.ROOT / "benchmarks" / "results"
COLUMNS = ("work", "shoal", "steps/s", "peer", "peer steps/s", "ratio", "range", "pairs", "target", "met",
           "ready after s (shoal / peer)", "steal", "versions", "commit", "date")
KEYS = ("work", "shoal", "peer")
CHECKS = ("check", "found", "wanted", "met", "commit", "date")
START = """# Speed

Written by `make bench`. Each row compares shoal with a peer on the same work in the same run: warmed-up processes that are asked
for samples of steady training in turn. *Ratio* is the median of the ratios of neighbouring samples and *range* their smallest
and largest: absolute rates depend on the machine and the minute, ratios hardly. *Steal* is the largest share of CPU time that
other machines took during a sample that counts; rounds above 5 % are dropped and repeated. shoal runs as its users have it: a
main loop in a run folder, with metrics and checkpoints; the peers run without logs. Nothing is evaluated on either side.
*Ready after* is from the first call into the library to the end of compilation (shoal: of the first call).
A commit with a plus had changes of its own on top. Figures on a GPU stand next to PureJaxRL's from an earlier run on the same
kind of device.

All PPO rows: 64×64 tanh networks, separate for policy and value; 4 epochs of 4 minibatches, so 16 gradient steps per iteration;
Adam, learning rate 2.5e-4 (annealed linearly, except in rejax, which has no schedule), discount 0.99, GAE 0.95, clip 0.2,
entropy 0.01.
"""

MAX_STEAL = 0.05
PAIRS = 5
EXTRA = 10  # rounds that may be repeated
START_S, SAMPLE_S = 600.0, 300.0  # deadlines of a worker


class Worker:
    """A contestant's process: starts, warms up, then gives a sample when asked."""

    def __init__(self, name: str, python: Path | str, module: str, args: list[str], env: dict[str, str] | None = None):
        self.name = name
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - lives as long as the process
        command = [str(python), "-m", f"benchmarks.workers.{module}", *args]
        self._process = subprocess.Popen(command, cwd=table.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=self._errors, text=True, env={**os.environ, **(env or {})})
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.about: dict[str, Any] = json.loads(self._wait("READY ", START_S).removeprefix("READY "))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _wait(self, start: str, deadline_s: float) -> str:
        """The next line that begins with ``start``; libraries may print others."""
        end = time.monotonic() + deadline_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"{self.name}: no answer in {deadline_s:.0f} s") from None
            if line is None:
                self._errors.seek(0)
                raise RuntimeError(f"{self.name} ended:\n{self._errors.read()[-3000:]}")
            if line.startswith(start):
                return line

    def sample(self) -> dict[str, Any]:
        """One sample, with the share of CPU time that was stolen meanwhile."""
        assert self._process.stdin is not None
        before = stats.ticks()
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = json.loads(self._wait("{", SAMPLE_S))
        return answer | {"steal": stats.steal_share(before, stats.ticks())}

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class Work(NamedTuple):
    """The same work for everyone."""

    name: str
    num_envs: int
    num_steps: int
    target: float

    @property
    def args(self) -> list[str]:
        return ["--num-envs", str(self.num_envs), "--num-steps", str(self.num_steps)]


def rounds(workers: list[Worker], wanted: int = PAIRS, extra: int = EXTRA) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Samples of every worker in turn: the rounds that count, and those dropped. A round is name → sample."""
    kept: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    while len(kept) < wanted and len(dropped) <= extra:
        got = {worker.name: worker.sample() for worker in workers}
        quiet = all(sample["steal"] <= MAX_STEAL for sample in got.values())
        (kept if quiet else dropped).append(got)
        rates = ", ".join(f"{name} {sample['rate']:,.0f}" for name, sample in got.items())
        print(f"  {rates}{'' if quiet else '  (dropped: steal)'}", flush=True)
    return kept, dropped


def row(work: Work, shoal: Worker, peer: Worker, kept: list[dict[str, Any]], claimed: bool) -> dict[str, str]:
    """A row of the page. Only the claimed one of several settings is held to the target."""
    pairs = [(got[shoal.name]["rate"], got[peer.name]["rate"]) for got in kept]
    if not pairs:
        raise RuntimeError(f"{work.name}: no round had a steal of at most {MAX_STEAL:.0%}; the machine is too busy to measure on")
    found = stats.ratio(pairs)
    met = "–" if not claimed else "yes" if found.median >= work.target and found.pairs >= PAIRS else "no"
    steal = max(got[name]["steal"] for got in kept for name in (shoal.name, peer.name))
    ours, theirs = ([pair[i] for pair in pairs] for i in (0, 1))
    machine = f"Python {platform.python_version()}; {os.cpu_count()} cores"
    return {
        "work": work.name, "shoal": shoal.name, "steps/s": f"{statistics.median(ours):,.0f}", "peer": peer.name,
        "peer steps/s": f"{statistics.median(theirs):,.0f}", "ratio": f"{found.median:.2f}",
        "range": f"{found.low:.2f} … {found.high:.2f}", "pairs": str(found.pairs),
        "target": f"≥ {work.target:g}" if claimed else "–", "met": met,
        "ready after s (shoal / peer)": f"{shoal.about['warm_s']:.1f} / {peer.about['warm_s']:.1f}",
        "steal": f"{steal:.1%}", "versions": f"{peer.about['versions']}; shoal: {shoal.about['versions']}; {machine}",
        "commit": table.commit(), "date": table.today(),
    }


def _record(name: str, kept: list[dict[str, Any]], dropped: list[dict[str, Any]], rows: list[dict[str, str]]) -> None:
    """The samples behind the rows, and the rows themselves."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    data = {"commit": table.commit(), "date": table.today(), "kept": kept, "dropped": dropped}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    table.update(PAGE, START, rows, COLUMNS, KEYS)
    for found in rows:
        print(f"{found['work']}: shoal ({found['shoal']}) {found['steps/s']}, {found['peer']} {found['peer steps/s']}: "
              f"{found['ratio']}× ({found['range']}), target {found['target']}: {found['met']}", flush=True)


def _close(workers: list[Worker]) -> None:
    for worker in workers:
        worker.close()


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
        _record("ported", kept, dropped, rows)
        engine = statistics.median(got[workers[0].name]["engine_rate"] for got in kept)
        print(f"  shoal's engine alone, without the main loop around it: {engine:,.0f} steps/s", flush=True)
        return all(found["met"] == "yes" for found in rows)
    finally:
        _close(workers)


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
            _record(f"fused-{num_envs}", kept, dropped, rows)
            good &= all(found["met"] != "no" for found in rows)
        finally:
            _close(workers)
    return good


def _train(out: Path, *args: str) -> dict[str, Any]:
    """What ``shoal train … --json`` answers."""
    command = [sys.executable, "-m", "shoal", "train", "ppo", *args, "--device", "cpu", "--json", "--quiet", "--out", str(out)]
    done = subprocess.run(command, cwd=table.ROOT, capture_output=True, text=True, timeout=START_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


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
            hashes = [_train(Path(folder) / str(n), *args, *_SAME, "--threads", str(n))["params_sha256"] for n in (1, 2, 4)]
        same = len(set(hashes)) == 1
        found = ", ".join(f"{h[:12]}…" for h in (hashes[:1] if same else hashes))
        rows.append(_check(f"params_sha256 with --threads 1, 2, 4: {name}", found, "equal", same))
    return _put_checks(rows)


def bench_recompile(seconds: float) -> bool:
    """After the first call of the engine nothing is compiled any more, checkpoints included."""
    rows = []
    for name, args in _SMALL.items():
        if "8 × 128" not in name or "2,048" in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            longer = [*args[:-1], "81920", *_SAME, "--checkpoint-every", "20480"]
            _train(out, *longer)
            counts = compilations((out / "timing.jsonl").read_text())
        late = counts[-1] - counts[0]
        found = f"{late} in {len(counts) - 1} calls, 4 checkpoints"
        rows.append(_check(f"compilations after warm-up: {name}", found, "0", late == 0))
    return _put_checks(rows)


def compilations(timing: str) -> list[int]:
    """XLA compilations up to each call of the engine, from a run's timing.jsonl."""
    counts = [json.loads(line)["compilations"] for line in timing.splitlines()]
    if len(counts) < 2:
        raise RuntimeError("the run ended with its first call: nothing came after warm-up")
    return counts


def _check(what: str, found: str, wanted: str, met: bool) -> dict[str, str]:
    print(f"{what}: {found} (wanted {wanted}): {'yes' if met else 'NO'}", flush=True)
    return {"check": what, "found": found, "wanted": wanted, "met": "yes" if met else "no", "commit": table.commit(),
            "date": table.today()}


def _put_checks(rows: list[dict[str, str]]) -> bool:
    table.update(PAGE, START, rows, CHECKS, ("check",))
    return all(found["met"] == "yes" for found in rows)


PARTS = {"ported": bench_ported, "fused": bench_fused, "threads": bench_threads, "recompile": bench_recompile}


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
