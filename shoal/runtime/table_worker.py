"""A worker that learns in tables: it keeps some lanes and runs their laps. ``python -m shoal.runtime.table_worker``, started by its driver.

It needs no JAX, and does not import it where its environment is known as a model.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from shoal.runtime import worker

_TOGETHER_NS = 20_000_000


class TableWorker:
    """Lanes, and the laps they are asked for."""

    def __init__(self, line: Any, plan: dict[str, Any]):
        from shoal import faultpoint
        from shoal.runtime.wire import Pages, Slots

        self._line, self._deadline_s, self._shared = line, float(plan["deadline_s"]), bool(plan["shared"])
        self._beat: Any = memoryview(Pages(fd=plan["beat_fd"]).array("int64", (8,), 0))  # type: ignore[arg-type]
        struck = worker.armed(plan)
        faultpoint.at("worker", "start")
        self._slots, self._layouts = Slots(Pages(fd=plan["chunks_fd"])), {}  # type: ignore[var-annotated]
        self._params = worker.Params(plan["params"])
        self._done: list[dict[str, Any]] = []  # laps that the driver has not been told of
        self._told_at = time.monotonic_ns()
        self._open(plan, struck)

    def _open(self, plan: dict[str, Any], struck: str) -> None:
        """Make the lanes, and bring them to where the driver says they stand."""
        import safetensors.numpy

        from shoal import faultpoint, registry
        from shoal.runtime.told import plan_of
        from shoal.runtime.wire import Pages
        from shoal.tabular.lane import TableLane, names
        from shoal.tabular.setup import open_setup

        run = plan_of(plan)

        def make() -> Any:
            from shoal import envs

            env: Any = envs.from_plan(run, run.env)
            if struck == "env":
                from shoal.testing.faults import Struck

                env = Struck(env)
            return env

        learner = registry.find("algo", run.algo)(**run.algorithm)
        self.setup = open_setup(learner, run, make, free_bytes=2**62)._replace(seed=plan["seed"])
        self.lanes = {index: TableLane(self.setup, index) for index in plan["lanes"]}
        for lane in self.lanes.values():
            lane.beat_fn = self._tick
        self._names, notes = names(self.setup), []
        if plan["state_bytes"]:
            tensors = safetensors.numpy.load(Pages(fd=plan["state_fd"]).array("uint8", (plan["state_bytes"],), 0).tobytes())
            for index in plan["standing"]:
                own = {name: tensors[f"lane{index}.{name}"] for name in self._names}
                notes += [[index, note] for note in self.lanes[index].load(own, bool(plan["inexact"]))]
        self._beat[0] = -1
        faultpoint.at("worker", "ready")
        self._line.send({"is": "ready", "notes": notes, "mode": self.setup.mode}, self._deadline_s)

    def _tick(self) -> None:
        self._beat[0] += 1

    def run(self) -> None:
        from shoal import faultpoint
        from shoal.tabular.lane import Orders
        from shoal.tabular.setup import aligned

        while True:
            message = self._line.receive(worker.IDLE_S)
            if message is None or message["is"] == "end":
                for lane in self.lanes.values():
                    lane.close()
                return
            seq = message["seq"]
            q, n, orders = self._params.latest(seq, self._deadline_s)[1]
            for index in message["lanes"]:
                begun, self._beat[3] = time.monotonic_ns(), index
                faultpoint.at("worker", "chunk")
                table, counters = (q, n) if self._shared else (aligned(q), aligned(n))
                self._put(index, seq, self.lanes[index].run(table, counters, Orders(*orders.tolist())))
                self._beat[5] += time.monotonic_ns() - begun
                if self._shared or time.monotonic_ns() - self._told_at > _TOGETHER_NS:
                    self._tell()
            self._tell()

    def _tell(self) -> None:
        """Say which laps are done: short ones together, for the driver takes time from us to hear of each."""
        for message in self._done:
            self._line.send(message, self._deadline_s)
        self._done, self._told_at = [], time.monotonic_ns()

    def _put(self, index: int, seq: int, lap: Any) -> None:
        from shoal import faultpoint

        recent = np.zeros((128, 4))
        recent[:len(lap.recent)] = lap.recent
        told = np.array([lap.steps, lap.episodes, lap.length_sum, lap.lost, len(lap.recent)], np.int64)
        own = self.lanes[index].tensors()
        table = [np.zeros(0), np.zeros(0, np.int64)] if self._shared else [lap.q, lap.n]
        arrays = [*table, told, np.array([lap.return_sum]), recent, *(own[name] for name in self._names)]
        offset, layout = self._slots.write((index, seq % 2), arrays)
        if id(layout) not in self._layouts:
            self._layouts[id(layout)] = layout, len(self._layouts)  # kept, so that no other gets its id
            self._line.send({"is": "layout", "leaves": layout.kinds}, self._deadline_s)
        faultpoint.at("worker", "send")
        self._beat[4] += 1
        self._done.append({"is": "chunk", "lane": index, "seq": seq, "version": seq, "at": offset, "layout": self._layouts[id(layout)][1]})


def yield_to_driver() -> None:
    """Do not take the processor from a driver that wakes this worker: others are to be woken, too. Linux only."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


if __name__ == "__main__":
    yield_to_driver()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides when to stop
    code = worker.main(int(sys.argv[1]), TableWorker)
    sys.stderr.flush()
    os._exit(code)  # not by way of handlers that an environment's package may have left
