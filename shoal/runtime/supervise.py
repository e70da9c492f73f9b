"""What to do about a worker that failed: why it did, in a line, and whether and when to start it again. Plain data and arithmetic."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ConfigError, DivergedError, EnvError, MissingError, ReplayError, ShoalError, StoreError, WorkerError

FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 30.0
SAME = 3  # times that the same traceback may come at the same chunk
IN_A_ROW = 10  # failures of a worker that delivers nothing in between
_KINDS: dict[str, type[ShoalError]] = {
    kind.__name__: kind for kind in (ConfigError, DivergedError, EnvError, MissingError, ReplayError, StoreError)}


class Cause(NamedTuple):
    """Why a worker failed."""

    kind: str  # class of an error, or killed, memory, exited, silent
    text: str  # one line
    fatal: bool = False  # trying again would only repeat it
    trace: str = ""  # Python's, where there is one


class Place(NamedTuple):
    """Who failed, and at what."""

    worker: int
    life: int
    pid: int
    lanes: tuple[int, ...]
    seq: int  # the chunk it was to make; -1 before the first

    def __str__(self) -> str:
        lanes = f"lane {self.lanes[0]}" if len(self.lanes) == 1 else f"lanes {', '.join(map(str, self.lanes))}"
        return f"worker {self.worker} (life {self.life}, pid {self.pid}, {lanes})"


class Restarts:
    """Counts failures. ``limit`` is for the whole run, 0 for none."""

    def __init__(self, limit: int = 0):
        self.limit, self.total = limit, 0
        self._row: dict[int, int] = {}  # by worker: failures since it last delivered
        self._same: dict[tuple[int, int, str], int] = {}  # by worker, chunk and traceback

    def delivered(self, worker: int) -> None:
        """A worker has got on: what stopped it before does not stop it always."""
        if self._row.pop(worker, None):
            self._same = {key: count for key, count in self._same.items() if key[0] != worker}

    def failed(self, place: Place, cause: Cause) -> float:
        """Seconds to wait before the worker is started again; raises where it should not be."""
        if cause.fatal:
            raise error_of(place, cause)
        self.total += 1
        row = self._row[place.worker] = self._row.get(place.worker, 0) + 1
        if cause.kind not in ("killed", "memory"):  # those come from outside, and may come again
            key = place.worker, place.seq, cause.trace or cause.text
            self._same[key] = self._same.get(key, 0) + 1
            if self._same[key] >= SAME:
                raise error_of(place, cause, f"the same {SAME} times at chunk {place.seq}; ")
        if row >= IN_A_ROW:
            raise error_of(place, cause, f"{row} failures in a row; ")
        if self.limit and self.total > self.limit:
            raise error_of(place, cause, f"{self.total} restarts, more than max_restarts = {self.limit}; ")
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (row - 1))


def error_of(place: Place, cause: Cause, why: str = "") -> ShoalError:
    """The error that stops the run."""
    return _KINDS.get(cause.kind, WorkerError)(f"{place}: {why}{cause.text}")


def ended(status: int, oom_kills: int, log: str = "") -> Cause:
    """Why a process ended that said nothing, from its exit status and how often the kernel killed for memory meanwhile."""
    last = f"; last words: {log}" if log else ""
    if status == -signal.SIGKILL and oom_kills > 0:
        return Cause("memory", "killed by the kernel: out of memory; try fewer workers or smaller environments")
    if status < 0:
        return Cause("killed", f"killed by {signal.Signals(-status).name}{last}")
    return Cause("exited", f"exited with status {status}{last}")


def oom_kills() -> int:
    """How many processes the kernel has killed for memory, here and in this container, as far as it says."""
    total = 0
    for path, name in (("/proc/vmstat", "oom_kill"), ("/sys/fs/cgroup/memory.events", "oom_kill")):
        try:
            fields = dict(line.split() for line in Path(path).read_text().splitlines())
        except (OSError, ValueError):
            continue
        total += int(fields.get(name, 0))
    return total


def told(message: dict[str, Any]) -> Cause:
    """The cause that a worker gave itself before it left."""
    return Cause(str(message["kind"]), str(message["text"]), bool(message["fatal"]), str(message["trace"]))
