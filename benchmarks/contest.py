"""The contest behind every row of ``docs/speed.md``: warmed-up processes, asked for samples in turn.

Ratios are taken pair by pair; a round in which others took more than 5 % of the CPU time is dropped and repeated.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import signal
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
Adam, learning rate 2.5e-4 (annealed linearly, except in rejax, which has no schedule, RLlib and Sample Factory), discount 0.99,
GAE 0.95, clip 0.2, entropy 0.01.

All rows with several processes: 16 environments in two workers (shoal), in two env runners with the learner in the driver (RLlib), in
two rollout workers (Sample Factory) or in a process each (Stable-Baselines3). Sample Factory never waits, so all of it is stopped by a
signal between samples, and its environments count its steps; it needs an older Gymnasium.

All stepping rows: nothing is learned. Peers are given actions drawn beforehand; shoal draws them a chunk of 128 steps at a time and
delivers whole chunks to a main loop whose algorithm does nothing with them. EnvPool's environments are written in C++: nothing is
claimed against it.

All rows of parameters: *steps* are exchanges. The driver writes a version, the worker is told, reads all of it and says so; in step it
reads where the driver wrote, without waiting into memory of its own. The peer is one copy into shared memory, a signal through a pipe,
one copy out and a signal back. A ratio of 0.667 is 1.5 times the time.

All DQN rows: a 120×84 relu network, plain (not double) targets, 10,000 rows of replay, batches of 128, an update for every 10
environment steps, the target network copied every 500 steps, Adam with 2.5e-4, epsilon fixed at 0.05. shoal's chunks are 10 steps,
so that a policy is used for as long as the peers use theirs. CleanRL's JAX script and PureJaxRL are on no package index and stand
as measured earlier on such a machine: CleanRL ran 1.19 times as fast as Stable-Baselines3, so shoal is held to 3 × 1.19 of the
latter's rate with one environment, and to 6 × 1.19 of the same rate with eight; PureJaxRL's compiled DQN ran at 32 k steps/s there,
and rejax's with the same settings stands for it here. All SAC rows: 256×256 networks, twin critics, batches of 256, one update per
environment step, 100,000 rows of replay; shoal's policy and critics learn on a core each, with `--threads 1` for XLA's part in them and
with 2. *The limit* there is no peer: as many products of 256³ as an update of either has, half of them on each of two cores, with no
environment, no replay, no loss and no optimiser around them, and nobody waiting for anybody.

All rows of tables: learning rate 0.1, epsilon 0.1, 64-bit floats. The loop by hand keeps nothing but the table, and breaks ties to the
first action, so that it learns nothing on FrozenLake 8×8 and its branches are easy to predict; shoal draws by address, breaks ties at
random, counts visits and episodes, and learns. *In Python*: Gymnasium's own environment is stepped, with a compiled call for each
step, or with NumPy as textbooks have it. dist_classicrl is on no package index: as measured earlier on such a machine it took 39,000
steps/s at most where the textbook loop took 88,000 (FrozenLake), and 25,000 where that took 51,000 and 36,000 (Taxi), so twice its
rate is 0.88 and 1.14 of that loop's.

All replay rows: capacity 10⁶, filled with 10⁵ rows of two observations of eight numbers, action, reward and end; a cycle adds one row,
draws 256 and, where prioritised, takes their normalised weights and changes their priorities. *Steps* are cycles. In a scan 256
cycles are one compiled call.
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
        # a session of its own: whatever it starts can be ended with it
        self._process = subprocess.Popen(command, cwd=table.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                                         text=True, env={**os.environ, **(env or {})}, start_new_session=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.about: dict[str, Any] = json.loads(self._wait("READY ", START_S).removeprefix("READY "))
        except BaseException:
            self.close()
            raise

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
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_session(self._process.pid)
        self._errors.close()


def end_session(leader: int) -> None:
    """End whatever is left of the processes that ``leader`` started, stopped ones too; where there is no /proc, nothing."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # gone meanwhile
            state, _, _, session = stat.read_text().rsplit(")", 1)[1].split()[:4]
            if int(session) == leader and state != "Z":
                os.kill(int(stat.parent.name), signal.SIGKILL)


class Work(NamedTuple):
    """The same work for everyone."""

    name: str
    num_envs: int
    num_steps: int
    target: float = 0.0

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


def keep(name: str, kept: list[dict[str, Any]], dropped: list[dict[str, Any]]) -> None:
    """The samples of a part, in a file."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    data = {"commit": table.commit(), "date": table.today(), "kept": kept, "dropped": dropped}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def record(name: str, kept: list[dict[str, Any]], dropped: list[dict[str, Any]], rows: list[dict[str, str]]) -> None:
    """The samples behind the rows, and the rows themselves."""
    keep(name, kept, dropped)
    table.update(PAGE, START, rows, COLUMNS, KEYS)
    for found in rows:
        print(f"{found['work']}: shoal ({found['shoal']}) {found['steps/s']}, {found['peer']} {found['peer steps/s']}: "
              f"{found['ratio']}× ({found['range']}), target {found['target']}: {found['met']}", flush=True)


def close(workers: list[Worker]) -> None:
    for worker in workers:
        worker.close()


class Entry(NamedTuple):
    """A contestant that has not been started."""

    name: str
    module: str
    args: list[str]
    home: str = ""  # the peers' environment that it runs in; none: shoal's
    env: dict[str, str] | None = None


class Pair(NamedTuple):
    """Two contestants by name; a row of the page."""

    ours: str
    peer: str
    target: float | None = None  # none: nothing is claimed


def start(entries: list[Entry]) -> tuple[list[Worker], list[str]]:
    """Those that warmed up, and the names of peers that cannot be installed or do not start. One of ours that does not is an error."""
    workers: list[Worker] = []
    absent: list[str] = []
    for name, module, args, home, env in entries:
        try:
            workers.append(Worker(name, peers.python(home) if home else sys.executable, module, args, env))
        except BaseException as error:
            if not home or not isinstance(error, (OSError, RuntimeError, subprocess.SubprocessError)):
                close(workers)
                raise
            print(f"{name}: NOT run: {error}", flush=True)
            absent.append(name)
    return workers, absent


def compete(part: str, work: Work, entries: list[Entry], pairs: list[Pair]) -> bool:
    """Samples of all in turn and a row for each pair. Whether all targets are met, and nobody was missing."""
    workers, absent = start(entries)
    try:
        there = {worker.name: worker for worker in workers}
        held = [pair for pair in pairs if pair.ours in there and pair.peer in there]
        if not held:
            return False
        kept, dropped = rounds(workers)
        rows = [row(work._replace(target=pair.target or 0.0), there[pair.ours], there[pair.peer], kept, pair.target is not None)
                for pair in held]
        record(part, kept, dropped, rows)
        return not absent and all(found["met"] != "no" for found in rows)
    finally:
        close(workers)
