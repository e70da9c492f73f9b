"""Kill a run again and again, resume it each time, and compare it with one that was never stopped.

Everything about a chain follows from its seed: what each life is killed by and when. Kills come by the clock (start-up and
compilation, before anything is saved), by progress (anywhere in training or evaluation), and at a numbered operation of the
store (in the middle of a save). The run never stopped compiles everything and fills a compilation cache, from which the other
lives start quickly; those that are killed by the clock, and the last one, do without it.
"""

from __future__ import annotations

import datetime
import fcntl
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from shoal import store
from shoal.errors import ShoalError
from shoal.testing import faults

PLACES = ("before folder", "compiling", "running", "saving")
COUNTERS = ("steps", "episodes", "updates", "mean_return", "eval_return")

_POINTS = 14  # operations of a save and the prune after it, at least: a kill there comes when it is due or earlier, never too late
_NEARLY = 0.97  # of the run: a kill that has not come by then comes now
_LIFE_S = 900.0  # a life that takes longer hangs
_LEAVE_S = 5.0  # for workers to end when their driver has


class Kill(NamedTuple):
    """What ends a life."""

    by: str  # clock, progress or save
    at: float  # seconds after the start, or the share of the run's steps
    extra: float  # progress: seconds after that; save: which operation, as a share of a save's


class Life(NamedTuple):
    """How a life went."""

    kill: Kill
    landed: str  # one of PLACES
    seconds: float
    step: int  # of the newest row of metrics


class Outcome(NamedTuple):
    """A chain and the run it is compared with."""

    lives: list[Life]  # the killed ones; one more ran to the end
    result: dict[str, Any]
    reference: dict[str, Any]
    differences: list[str]  # what is not equal; empty if the promise holds
    replay: str  # one line that runs the same chain again

    def landed(self) -> dict[str, int]:
        return {place: sum(life.landed == place for life in self.lives) for place in PLACES}


def plan_kills(kills: int, seed: int) -> list[Kill]:
    """``kills`` of them: a fifth by the clock, the first included; a quarter in a save; the rest by progress, which rises."""
    draw = random.Random(seed)
    by_clock, in_save = max(1, kills // 5), max(1, kills // 4)
    kinds = ["save"] * in_save + ["progress"] * (kills - by_clock - in_save) + ["clock"] * (by_clock - 1)
    draw.shuffle(kinds)
    shares = iter(sorted(draw.uniform(0.02, 0.92) for kind in kinds if kind != "clock"))
    plan = []
    for kind in ["clock", *kinds]:
        if kind == "clock":  # 0.5 s is before the folder exists, 4 s inside the first compilation
            plan.append(Kill(kind, draw.uniform(0.5, 4.0), 0.0))
        else:
            plan.append(Kill(kind, next(shares), draw.uniform(0.0, 0.25) if kind == "progress" else draw.random()))
    return plan


def chain(args: list[str], kills: int, seed: int, folder: Path, *, cold_end: bool = True) -> Outcome:
    """Train with ``args`` (what follows ``shoal train``, without ``--out``) once undisturbed and once under ``kills`` kills.

    ``--checkpoint-every`` should be a number of steps that the run holds many of. Both run folders lie below ``folder``.
    Without ``cold_end`` the last life, too, uses the cache.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replay = f"chain({args!r}, kills={kills}, seed={seed}, folder=…)"
    calm, killed, cache = folder / "calm", folder / "killed", folder / "cache"
    reference = _finish(_start(args, calm, None, cache=cache), calm, replay)
    total, every = int(reference["steps"]), _cadence(args)
    lives: list[Life] = []
    for kill in plan_kills(kills, seed):
        life = _live(args, killed, kill, total, every, cache, f"{replay}, at life {len(lives) + 1} of {lives}")
        if life is None:
            break
        lives.append(life)
    done = f"{replay}; lives {[(*life.kill, life.landed, round(life.seconds, 2), life.step) for life in lives]}"
    result = _finish(_start(args, killed, None, cache=None if cold_end else cache), killed, done)
    return Outcome(lives, result, reference, compare(killed, calm, result, reference), done)


def compare(folder: Path, other: Path, result: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """What differs between two finished runs that should be one; empty if nothing does."""
    differences = [f"{name}: {result[name]} instead of {reference[name]}" for name in ("params_sha256", *COUNTERS)
                   if result[name] != reference[name]]
    for name in ("metrics.jsonl", "metrics.csv"):
        if (folder / name).read_bytes() != (other / name).read_bytes():
            differences.append(f"{name} differs")
    for kind, find in (("newest", store.newest), ("best", store.best)):
        (one, skipped), (two, _) = find(folder), find(other)
        differences += skipped
        if one.step != two.step or store.sha256(one.tensors) != store.sha256(two.tensors):
            differences.append(f"the {kind} checkpoint's tensors differ (step {one.step} and {two.step})")
        timed = {"used_s", "steps_again"}  # what earlier lives cost; all else in a checkpoint's record is part of the cut
        if {k: v for k, v in one.meta.items() if k not in timed} != {k: v for k, v in two.meta.items() if k not in timed}:
            differences.append(f"the {kind} checkpoint's counters differ")
    return differences


def _start(args: list[str], folder: Path, fault: str | None, *, cache: Path | None) -> subprocess.Popen[str]:
    """A life: ``train`` where there is no run yet, else ``resume``."""
    fresh = not (folder / store.CONFIG).exists()
    command = ["train", *args, "--out", str(folder), "--json"] if fresh else ["resume", str(folder), *_plugins(args), "--json"]
    environment = {name: value for name, value in os.environ.items() if name != faults.VARIABLE}
    environment |= {"SHOAL_CACHE": str(cache or "off"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    if fault:
        environment[faults.VARIABLE] = fault
    log = folder.with_name(f"{folder.name}.log")
    with open(log, "a") as file:
        return subprocess.Popen([sys.executable, "-m", "shoal", *command], env=environment, stdout=subprocess.PIPE, stderr=file,
                                text=True)


def _plugins(args: list[str]) -> list[str]:
    """The ``--plugin`` flags among ``args``: a run folder cannot import them, so every life is told."""
    return [part for flag, value in itertools.pairwise(args) if flag == "--plugin" for part in (flag, value)]


def _finish(process: subprocess.Popen[str], folder: Path, replay: str) -> dict[str, Any]:
    """Let a life run to its end; its result."""
    try:
        out, _ = process.communicate(timeout=_LIFE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ShoalError(f"a life took more than {_LIFE_S} s: {replay}") from None
    if process.returncode:
        log = folder.with_name(f"{folder.name}.log").read_text()[-2000:]
        raise ShoalError(f"a life ended with exit code {process.returncode}: {replay}\n{log}")
    return json.loads(out.splitlines()[-1])


def _live(args: list[str], folder: Path, kill: Kill, total: int, every: int, cache: Path, replay: str) -> Life | None:
    """One life up to its kill; None if it came to its end first."""
    fault = None
    if kill.by == "save":
        ahead = max(0, int(kill.at * total) - _saved_step(folder)) // every
        fault = f"store:*:{ahead * _POINTS + 1 + int(kill.extra * _POINTS)}:kill"
    before, saved, dead = _mark(folder), _saved_step(folder), _attempts(folder)
    begun, workers = time.monotonic(), set()  # type: ignore[var-annotated]
    process = _start(args, folder, fault, cache=None if kill.by == "clock" else cache)
    due = begun + kill.at if kill.by == "clock" else None
    goal = total * (kill.at if kill.by == "progress" else _NEARLY)
    while process.poll() is None:
        now = time.monotonic()
        workers |= _children(process.pid)
        step = _step(folder) if _mark(folder) != before else 0
        if due is None and step >= goal:
            due = now + (kill.extra if kill.by == "progress" else 0.0)
        if due is not None and (now >= due or step >= total * _NEARLY):
            process.kill()
            process.wait()
        elif now - begun > _LIFE_S:
            process.kill()
            process.wait()
            raise ShoalError(f"a life took more than {_LIFE_S} s: {replay}")
        else:
            time.sleep(0.01)
    if process.stdout is not None:
        process.stdout.close()
    _await_ends(workers, replay)
    if process.returncode == 0:
        return None
    if process.returncode != -signal.SIGKILL:
        log = folder.with_name(f"{folder.name}.log").read_text()[-2000:]
        raise ShoalError(f"a life ended with exit code {process.returncode}: {replay}\n{log}")
    struck = fault is not None and due is None  # at an operation of the store
    return Life(kill, _landed(folder, before, saved, dead, struck), time.monotonic() - begun, _step(folder))


def _children(pid: int) -> set[int]:
    """The processes that a life has started."""
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:  # it is over, or this is not Linux
        return set()


def _await_ends(workers: set[int], replay: str) -> None:
    """A life's workers end with it, soon."""
    until = time.monotonic() + _LEAVE_S
    while left := {pid for pid in workers if _is_running(pid)}:
        if time.monotonic() > until:
            raise ShoalError(f"workers {sorted(left)} outlive their driver: {replay}")
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _landed(folder: Path, before: tuple[int, int], saved: int, dead: set[str], struck: bool) -> str:
    """Where a kill hit: by what it ``struck``, else judged by what it left behind and by what was there when the life began."""
    if not (folder / store.CONFIG).exists():
        return "before folder"
    if struck or _attempts(folder) - dead:  # those of earlier lives stay until the next prune
        return "saving"
    point, _ = store.newest(folder)
    now = _mark(folder)
    set_back = now[0] == point.lengths.get("metrics.jsonl", 0)  # to its checkpoint, and nothing added since
    return "compiling" if point.step == saved and (now == before or set_back) else "running"


def _attempts(folder: Path) -> set[str]:
    """Checkpoints half made or half removed."""
    return {path.name for path in (folder / store.CHECKPOINTS).glob(".tmp-*")}


def _mark(folder: Path) -> tuple[int, int]:
    """Changes whenever a life writes or truncates metrics."""
    try:
        status = (folder / "metrics.jsonl").stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _step(folder: Path) -> int:
    """The step of the newest whole row of metrics."""
    try:
        with open(folder / "metrics.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().split(b"\n")
        return int(json.loads(lines[-2])["step"]) if len(lines) > 1 else 0
    except (OSError, ValueError, KeyError, IndexError):  # not there yet, or read in the middle of a truncation
        return 0


def _saved_step(folder: Path) -> int:
    paths = store.found(folder)
    return int(paths[0].name.partition(".")[0].removeprefix("step-")) if paths else 0


def _cadence(args: list[str]) -> int:
    place = args.index("--checkpoint-every") if "--checkpoint-every" in args else -1
    if place < 0 or not args[place + 1].isdigit() or int(args[place + 1]) < 1:
        raise ShoalError("a chain needs --checkpoint-every with a number of steps")
    return int(args[place + 1])


def write_row(path: Path, variant: str, outcome: Outcome) -> None:
    """Put a chain's outcome into the table at ``path``, in place of that variant's row; several processes may do so at once."""
    landed = outcome.landed()
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=path.parent, capture_output=True, text=True, check=False)
    cells = [variant, str(len(outcome.lives)), str(len(outcome.lives) + 1), *(str(landed[place]) for place in PLACES),
             "no: " + "; ".join(outcome.differences) if outcome.differences else "yes", git.stdout.strip() or "unknown",
             datetime.datetime.now(datetime.UTC).date().isoformat()]
    head = ["variant", "kills", "lives", *PLACES, "equal", "commit", "date"]
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        rows = {line.split("|")[1].strip(): line for line in file.read().splitlines() if line.startswith("| ")}
        rows[variant] = f"| {' | '.join(cells)} |"
        rows.pop("variant", None)
        lines = ["# Runs killed and resumed", "",
                 "Each run was killed with SIGKILL at random moments, resumed each time, and compared with the same run never",
                 "stopped: learner state, lanes and counters of the newest and the best checkpoint, `metrics.jsonl` byte by byte.",
                 "The four columns in the middle say where the kills landed. Written by `SHOAL_DOCS=1 make chaos`.",
                 "What single faults come to is in [faults.md](faults.md).", "",
                 f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(rows[name] for name in sorted(rows))]
        file.truncate(0)
        file.write("\n".join(lines) + "\n")
