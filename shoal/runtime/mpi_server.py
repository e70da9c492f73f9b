"""Tables under MPI without waiting: workers send what they have learned to rank 0, which serves the table and is its only writer.

A worker learns a lap from the table it was last sent and sends its table and visits; rank 0 takes them in the order they come, weighs them
against what others have learned of the same pairs meanwhile, and sends the table back. What was in flight when a job dies is lost.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.runtime.mpi import Gathered, waited
from shoal.tabular.engine import Here
from shoal.tabular.lane import Lap, Orders
from shoal.tabular.merge import merged
from shoal.tabular.setup import Setup

_LAP, _TABLE = 1, 2  # tags of messages


class Server(Gathered):
    """Rank 0 serves; the other ranks keep the lanes."""

    def __init__(self, setup: Setup, comm: Any, deadline_s: float):
        super().__init__(setup, comm, deadline_s)
        self.lanes.close()
        self.mine = list(range(comm.rank - 1, setup.num_lanes, comm.size - 1)) if comm.rank else []
        self.lanes, self.workers, self._laps = Here(setup, self.mine), comm.size - 1, 0

    def _lap(self, orders: Orders, tentative: bool) -> list[Lap]:
        """One lap of every lane; ranks do not wait for one another within it."""
        for array in (self._q, self._n):
            waited(self.comm.Ibcast(array, root=0), self._deadline_s, "the table to all ranks")
        return self._take() if not self.comm.rank else self._learn(orders)

    def _learn(self, orders: Orders) -> list[Lap]:
        """Workers: lap by lap, each on the table that the one before was answered with."""
        for lane in self.lanes.lanes:
            lap = lane.run(self._q.copy(), self._n.copy(), orders)
            recent = np.zeros((100, 4))
            recent[:len(lap.recent)] = lap.recent
            told = np.array([lane.lane, lap.steps, lap.episodes, lap.length_sum, lap.lost, len(lap.recent)], np.float64)
            message = np.concatenate([told, [lap.return_sum], recent.reshape(-1), lap.q, (lap.n - self._n).astype(np.float64)])
            waited(self.comm.Isend(message, dest=0, tag=_LAP), self._deadline_s, "a lap to rank 0")
            for array in (self._q, self._n):
                waited(self.comm.Irecv(array, source=0, tag=_TABLE), self._deadline_s, "the table from rank 0")
        return []

    def _take(self) -> list[Lap]:
        """Rank 0: apply laps as they come."""
        from mpi4py import MPI

        cells, laps = len(self._q), list[Lap]()
        bases = {rank: self._n.copy() for rank in range(1, self.comm.size)}  # the counters each rank was last sent
        message, status = np.zeros(7 + 400 + 2 * cells), MPI.Status()
        while len(laps) < self.setup.num_lanes:
            until = time.monotonic() + self._deadline_s
            while not self.comm.Iprobe(source=MPI.ANY_SOURCE, tag=_LAP, status=status):
                if time.monotonic() > until:
                    raise ShoalError(f"MPI: no rank has sent a lap for {self._deadline_s:g} s")
                time.sleep(1e-5)
            source = status.Get_source()
            self.comm.Recv(message, source=source, tag=_LAP)
            laps.append(self._applied(message, bases[source]))
            bases[source] = self._n.copy()
            for array in (self._q, self._n):
                waited(self.comm.Isend(array.copy(), dest=source, tag=_TABLE), self._deadline_s, "the table to a rank")
        self._laps += len(laps)
        return [lap._replace(q=self._q, n=self._n) for lap in sorted(laps, key=lambda lap: lap.lane)]

    def _applied(self, message: np.ndarray, base: np.ndarray) -> Lap:
        """A lap joins the table: every pair by its visits, against those of others since the lap's rank was sent the table."""
        cells = len(self._q)
        lane, steps, episodes, length_sum, lost, rows = (int(x) for x in message[:6])
        theirs, visits = message[407:407 + cells], message[407 + cells:].astype(np.int64)
        q, _ = merged(self._q, base, [(self._q, self._n), (theirs, base + visits)])
        self._q[:] = q
        self._n += visits
        recent = message[7:407].reshape(100, 4)[:rows].copy()
        return Lap(lane, self._q, self._n, steps, episodes, length_sum, float(message[6]), recent, lost)

    def ledger(self, laps: int) -> dict[str, int]:
        return super().ledger(laps) | {"produced": self._laps, "learned": self._laps}


