"""Tables under MPI: ``mpiexec -n 4 shoal train q_learning ENV --runtime mpi``. Lanes are spread over ranks; rank 0 drives.

All ranks walk through the same row of collective calls, none of them under a condition that ranks could see differently: rank 0 says what
comes next in a header of fixed size, and everyone does it. Buffers only. Every wait has a deadline. A rank that fails ends the job.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from shoal.errors import ConfigError, MissingError, ShoalError
from shoal.plan import Plan
from shoal.tabular.engine import Here, Tables, lane_part
from shoal.tabular.lane import Lap, Orders
from shoal.tabular.setup import Setup, open_setup

RUN, KEEP, FORGET, CUT, LOAD, END = range(6)
_HEADER = 8  # numbers: what to do, and five more
_IDLE_S = 3600.0  # that ranks wait for rank 0, which may be saving or evaluating
_MEET_S = 300.0  # that ranks wait for one another at the start
_SHARED = re.compile(r"/dev/shm/mpich_shm_\S+$")


@functools.cache
def world() -> Any:
    """All ranks; says in one line what is missing."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise MissingError("runtime = 'mpi' needs mpi4py and an MPI library: pip install 'shoal[mpi]'") from error
    except RuntimeError as error:
        raise MissingError(f"runtime = 'mpi': mpi4py finds no MPI library ({str(error).splitlines()[0]}): pip install mpich") from error
    waited(MPI.COMM_WORLD.Ibarrier(), _MEET_S, "the start of all ranks")
    _unname_memory()
    return MPI.COMM_WORLD


def _unname_memory() -> None:
    """Take the name of MPICH's shared memory away, now that every rank has it open: it goes with the last of them, however that ends."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return  # not Linux
    for line in maps.splitlines():
        if found := _SHARED.search(line):
            Path(found[0]).unlink(missing_ok=True)


def waited(request: Any, deadline_s: float, what: str) -> None:
    """Wait for a call to be done, at most so long."""
    until, pause = time.monotonic() + deadline_s, 0.0
    while not request.Test():
        if time.monotonic() > until:
            raise ShoalError(f"MPI: {what} took more than {deadline_s:g} s")
        time.sleep(pause)
        pause = min(1e-3, pause + 1e-6)


class Mpi:
    """Tables spread over the ranks of an MPI job."""

    name = "mpi"
    workers = "auto"

    def tables(self, learner: Any, env: Any, make_fn: Callable[[], Any], *, plan: Plan, stream_episodes: bool) -> Tables:
        """The engine of rank 0."""
        comm = world()
        check(plan, comm.size)
        return Tables(open_setup(learner, plan, make_fn), plan, lambda setup: crew_of(plan)(setup, comm, plan.step_timeout_s),
                      stream_episodes=stream_episodes)


def check(plan: Plan, ranks: int) -> None:
    """Refuse what cannot be spread over so many ranks."""
    num_lanes = plan.num_envs // plan.lane_size
    if plan.workers != "auto" and int(plan.workers) != ranks:
        raise ConfigError(f"workers = {plan.workers}, but the job has {ranks} ranks: leave --workers out, and say mpiexec -n")
    if ranks > num_lanes:
        raise ConfigError(f"{ranks} ranks, but num_envs makes {num_lanes} lane{'s' if num_lanes > 1 else ''} of {plan.lane_size}; "
                          f"try mpiexec -n {num_lanes} or --num-envs {ranks * plan.lane_size}")
    if plan.mode == "async" and ranks < 2:
        raise ConfigError("mode = 'async': one rank serves the table, so at least 2 are needed: mpiexec -n 2")


def crew_of(plan: Plan) -> Any:
    from shoal.runtime.mpi_server import Server

    return Server if plan.mode == "async" else Gathered


def rank() -> int:
    return world().rank


class Gathered:
    """The crew of a job: every rank runs its lanes, rank 0 gathers their tables in lane order."""

    def __init__(self, setup: Setup, comm: Any, deadline_s: float):
        self.setup, self.comm, self._deadline_s, self.workers = setup, comm, deadline_s, comm.size
        self.mine = list(range(comm.rank, setup.num_lanes, comm.size))
        self.lanes = Here(setup, self.mine)
        self._busy, self._looked, self._over = 0.0, time.monotonic(), False
        cells = setup.rule.cells * setup.tables
        self._q, self._n = np.zeros(cells), np.zeros(cells, np.int64)

    # what rank 0 says and everyone does

    def _tell(self, what: int, *numbers: int) -> None:
        """Rank 0: what comes next."""
        header = np.zeros(_HEADER, np.int64)
        header[:1 + len(numbers)] = what, *numbers
        waited(self.comm.Ibcast(header, root=0), self._deadline_s, "a word to all ranks")

    def hear(self) -> list[int]:
        """Other ranks: what comes next."""
        header = np.zeros(_HEADER, np.int64)
        waited(self.comm.Ibcast(header, root=0), _IDLE_S, "a word from rank 0")
        return header.tolist()

    def serve(self) -> None:
        """What ranks other than 0 do until the end."""
        while True:
            what, *numbers = self.hear()
            if what == RUN:
                self._lap(Orders(*numbers[:4]), bool(numbers[4]))
            elif what == KEEP:
                self.lanes.keep()
            elif what == FORGET:
                self.lanes.forget()
            elif what == CUT:
                self._gather_bytes(self._packed())
            elif what == LOAD:
                self._load(self._spread_bytes(b"", numbers[0]), bool(numbers[1]))
            else:
                return self.lanes.close()

    # laps

    def run(self, q: np.ndarray, n: np.ndarray, orders: Orders, *, tentative: bool = False) -> list[Lap]:
        self._q[:], self._n[:] = q, n
        self._tell(RUN, *orders, int(tentative))
        return self._lap(orders, tentative)

    def _lap(self, orders: Orders, tentative: bool) -> list[Lap]:
        """All ranks: the table to everyone, a lap of each lane, and what they came to back to rank 0."""
        for array in (self._q, self._n):
            waited(self.comm.Ibcast(array, root=0), self._deadline_s, "the table to all ranks")
        begun = time.monotonic()
        laps = self.lanes.run(self._q, self._n, orders, tentative=tentative, apart=True)
        self._busy += time.monotonic() - begun
        recent = np.zeros((len(laps), 100, 4))
        for place, lap in enumerate(laps):
            recent[place, :len(lap.recent)] = lap.recent
        told = np.array([[lap.steps, lap.episodes, lap.length_sum, lap.lost, len(lap.recent)] for lap in laps], np.int64)
        sums = np.array([lap.return_sum for lap in laps])
        parts = [self._gathered(np.ascontiguousarray(x)) for x in (
            np.stack([lap.q for lap in laps]), np.stack([lap.n for lap in laps]), told, sums, recent)]
        if self.comm.rank:
            return []
        rows = sorted(range(self.setup.num_lanes), key=lambda row: self._order()[row])
        return [self._lap_of(lane, [part[row] for part in parts]) for lane, row in enumerate(rows)]

    def _lap_of(self, lane: int, parts: list[Any]) -> Lap:
        q, n, told, total, recent = parts
        steps, episodes, length_sum, lost, rows = (int(x) for x in told)
        return Lap(lane, q, n, steps, episodes, length_sum, float(total), recent[:rows], lost)

    def _order(self) -> list[int]:
        """The lane of each row as rows come from the ranks."""
        return [lane for rank in range(self.comm.size) for lane in range(rank, self.setup.num_lanes, self.comm.size)]

    def _gathered(self, mine: np.ndarray) -> np.ndarray:
        """Rows [lanes of a rank, ...] of all ranks, one after the other, at rank 0."""
        each = mine[0].size
        counts = [len(range(rank, self.setup.num_lanes, self.comm.size)) * each for rank in range(self.comm.size)]
        out = np.zeros((self.setup.num_lanes, *mine.shape[1:]), mine.dtype)
        waited(self.comm.Igatherv(mine, [out, counts] if not self.comm.rank else None, root=0), self._deadline_s, "a lap of all ranks")
        return out

    def keep(self) -> None:
        self._tell(KEEP)
        self.lanes.keep()

    def forget(self) -> None:
        self._tell(FORGET)
        self.lanes.forget()

    # the cut: bytes of all ranks

    def _packed(self) -> bytes:
        return safetensors.numpy.save({name: np.asarray(x, order="C") for name, x in self.lanes.tensors().items()})

    def _gather_bytes(self, mine: bytes) -> list[bytes]:
        sizes = np.zeros(self.comm.size, np.int64)
        waited(self.comm.Iallgather(np.array([len(mine)], np.int64), sizes), self._deadline_s, "sizes of all ranks")
        out = np.zeros(int(sizes.sum()), np.uint8)
        sent = np.frombuffer(mine, np.uint8)
        waited(self.comm.Igatherv(sent, [out, sizes.tolist()] if not self.comm.rank else None, root=0), self._deadline_s, "a cut")
        ends = np.cumsum(sizes)
        return [out[end - size:end].tobytes() for size, end in zip(sizes, ends, strict=True)]

    def tensors(self) -> dict[str, np.ndarray]:
        self._tell(CUT)
        return {name: x for part in self._gather_bytes(self._packed()) for name, x in safetensors.numpy.load(part).items()}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[str]:
        own = {name: np.asarray(tensors[name], order="C") for name in tensors if name.startswith("lane")}
        data = safetensors.numpy.save(own)
        self._tell(LOAD, len(data), int(inexact))
        return self._load(self._spread_bytes(data, len(data)), inexact)

    def _spread_bytes(self, data: bytes, size: int) -> dict[str, np.ndarray]:
        buffer = np.zeros(size, np.uint8)
        if not self.comm.rank:
            buffer[:] = np.frombuffer(data, np.uint8)
        waited(self.comm.Ibcast(buffer, root=0), self._deadline_s, "a checkpoint to all ranks")
        return safetensors.numpy.load(buffer.tobytes())

    def _load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[str]:
        return [note for lane in self.lanes.lanes for note in lane.load(lane_part(tensors, lane.lane), inexact)]

    # accounts

    def timing(self) -> dict[str, Any]:
        now = time.monotonic()
        share, self._busy, self._looked = self._busy / max(1e-9, now - self._looked), 0.0, now
        return {"rank0_busy": round(min(1.0, share), 4), "efficiency": round(min(1.0, share), 4)}

    def ledger(self, laps: int) -> dict[str, int]:
        made = laps * self.setup.num_lanes
        return {"produced": made, "learned": made, "buffered": 0, "in_flight": 0, "dropped": 0, "lost": 0, "redone": 0, "restarts": 0}

    def rest(self) -> None:
        """Ranks wait for a word."""

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._tell(END)
            self.lanes.close()


def serve(plan: Plan) -> None:
    """What a rank other than 0 does with the plan that all were given. Ctrl-C reaches every rank: rank 0 saves, and ends the others."""
    from shoal import envs, registry

    for number in (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ():
        signal.signal(number, signal.SIG_IGN)
    comm = world()
    check(plan, comm.size)
    learner = registry.find("algo", plan.algo)(**plan.algorithm)
    setup = open_setup(learner, plan, lambda: envs.from_plan(plan, plan.env), free_bytes=2**62)
    crew_of(plan)(setup, comm, plan.step_timeout_s).serve()


class ending_the_job:  # noqa: N801 - reads as what it does
    """Whatever goes wrong in one rank is said there, and ends all of them: the others would wait for ever."""

    def __init__(self, comm: Any):
        self._comm = comm

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, SystemExit):
            return
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.write("shoal: interrupted\n")
            self._comm.Abort(128 + signal.SIGINT)
        said = " ".join(str(error).split()) if isinstance(error, ShoalError) else "".join(traceback.format_exception(error))
        sys.stderr.write(f"shoal: error: rank {self._comm.rank} of {self._comm.size} (pid {os.getpid()}): {said}\n")
        sys.stderr.flush()
        self._comm.Abort(2 if isinstance(error, ConfigError) else 1)
