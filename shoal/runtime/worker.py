"""A worker: a process that keeps some of a run's lanes and makes their chunks. ``python -m shoal.runtime.worker``, started by its driver.

It is told what to do in lines of JSON on a socket it inherits, reads parameters from memory that the driver writes and writes chunks
into memory that the driver reads. It ends with its driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1
IDLE_S = 600.0  # without a word from the driver, after which a worker leaves; it would be started again


def main(descriptor: int, kind: Any = None) -> int:
    from shoal.runtime.wire import Gone, Line

    line = Line(socket.socket(fileno=descriptor))
    plan = line.receive(60.0)
    if plan is None:
        return 3
    _die_with(plan["driver"])
    try:
        (kind or _Worker)(line, plan).run()
    except Gone:
        return 0
    except BaseException as error:  # SystemExit too: an environment may call sys.exit
        _report(line, error)
        return 1
    return 0


def _die_with(driver: int) -> None:
    """See to it that this process does not outlive its driver, however that ends and whatever this one is doing."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the thread below sees it within a second
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(1.0)
        os._exit(4)

    threading.Thread(target=watch, daemon=True, name="shoal-driver").start()


def _report(line: Any, error: BaseException) -> None:
    from shoal.errors import EnvError, ShoalError

    root = error.__cause__ if isinstance(error, EnvError) and error.__cause__ is not None else error
    if isinstance(root, SystemExit):
        text, fatal = f"the environment called sys.exit({root.code!r})", False
    elif isinstance(root, MemoryError):
        text, fatal = f"out of memory: {error}", False
    else:
        text, fatal = str(error), isinstance(root, ShoalError)
    said = text if isinstance(error, ShoalError) or isinstance(root, SystemExit | MemoryError) else f"{type(error).__name__}: {text}"
    line.send({"is": "error", "kind": type(error).__name__, "text": " ".join(said.split()), "fatal": fatal,
               "trace": "".join(traceback.format_exception(error))}, 5.0)


def armed(plan: dict[str, Any]) -> str:
    """The role that tests want to fail in this worker, and in this life of it; mostly none."""
    if "SHOAL_FAULT" not in os.environ:
        return ""
    from shoal.testing import faults

    return faults.arm_worker(plan["index"], plan["life"])


def _wrapped(kind: Any, make_fn: Any) -> Any:
    return lambda: kind(make_fn())


class Params:
    """What the driver has published, read where it lies."""

    def __init__(self, plan: dict[str, Any]):
        from shoal.runtime.wire import Layout, Pages

        self._layout, self._slots, self._start = Layout.read(plan["layout"]), plan["slots"], plan["start"]
        self._pages = Pages(fd=plan["fd"])
        self._stamps = self._pages.array("int64", (self._slots + 1,), 0)
        self._views: dict[int, list[Any]] = {}  # by slot
        self._kept: list[Any] = []  # a version in memory of our own: fresh memory costs more than what is copied into it

    def _at(self, slot: int) -> list[Any]:
        if slot not in self._views:
            self._views[slot] = self._layout.views(self._pages, self._start + slot * self._layout.size)
        return self._views[slot]

    def latest(self, version: int, deadline_s: float) -> tuple[int, Any]:
        from shoal.errors import DeadlineError

        slot = version % self._slots
        if self._stamps[slot] != version:  # it is published before it is asked for
            raise DeadlineError(f"parameters of version {version} are not published, but {self._stamps[slot]}")
        return version, self._at(slot)

    def newest(self, deadline_s: float) -> tuple[int, Any]:
        """The newest version, in memory of our own: the driver goes on writing while it is used. It stays until the next call."""
        import numpy as np

        from shoal.errors import DeadlineError

        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            version = int(self._stamps[self._slots])
            slot = version % self._slots
            if self._stamps[slot] == version:
                theirs = self._at(slot)
                self._kept = self._kept or [np.empty_like(x) for x in theirs]
                for mine, x in zip(self._kept, theirs, strict=True):
                    np.copyto(mine, x)
                if self._stamps[slot] == version:  # it was not written over meanwhile
                    return version, self._kept
        raise DeadlineError("no version of the parameters stays long enough to be read")


class _Worker:
    def __init__(self, line: Any, plan: dict[str, Any]):
        from shoal import faultpoint
        from shoal.runtime import device
        from shoal.runtime.trace import Trace
        from shoal.runtime.wire import Pages, Slots

        self._line, self._lag, self._deadline_s = line, int(plan["lag"]), float(plan["deadline_s"])
        self._beat: Any = memoryview(Pages(fd=plan["beat_fd"]).array("int64", (8,), 0))  # type: ignore[arg-type]
        device.prepare("cpu", 1)
        self._struck = armed(plan)
        faultpoint.at("worker", "start")
        self._slots = Slots(Pages(fd=plan["chunks_fd"]))
        self._layouts: dict[int, tuple[Any, int]] = {}
        self._params = Params(plan["params"])
        self._trace = Trace(plan.get("trace"), "worker", plan["index"], plan["life"])
        with self._trace.span("start"):
            self._open(plan)

    def _open(self, plan: dict[str, Any]) -> None:
        """Make the lanes, and bring them to where the driver says they stand."""
        import safetensors.numpy

        from shoal import faultpoint
        from shoal.runtime import lanes
        from shoal.runtime.place import rebuild
        from shoal.runtime.wire import Pages
        from shoal.tensors import filled

        algorithm, env, make_fn = rebuild(plan)
        if self._struck == "env" and make_fn is not None:
            from shoal.testing.faults import Struck

            make_fn = _wrapped(Struck, make_fn)
        world = self._world = lanes.tried(lanes.open_world(
            algorithm, env, make_fn, seed=plan["seed"], num_lanes=plan["num_lanes"], lane_envs=plan["lane_envs"], mode=plan["mode"]))
        first = (plan["life"] + plan["life_before"]) * world.num_lanes if plan.get("free") else 0  # draws of a life of its own
        made = lanes.make_lanes(world, [first + index for index in plan["lanes"]], self._beat)
        self.lanes, self._free = {actor.lane - first: actor for actor in made}, bool(plan.get("free"))
        self._learner: Any = None
        if plan.get("learns"):
            from shoal.runtime.serving import Learner

            self._learner = Learner(world)
        notes: list[Any] = []
        if plan["state_bytes"]:
            pages = Pages(fd=plan["state_fd"])
            tensors = safetensors.numpy.load(pages.array("uint8", (plan["state_bytes"],), 0).tobytes())
            like = lanes.record_like(world) if env is None else None
            for index, actor in self.lanes.items():
                if f"lane{index}" not in plan["standing"]:
                    continue
                if like is None:
                    actor.state = filled(actor.state, tensors, f"lane{index}")
                else:
                    record = lanes.from_tensors(like, tensors, f"lane{index}")
                    notes += [[index, note] for note in actor.restore(record, inexact=bool(plan["inexact"]))]
        self._beat[0] = -1  # until a step is taken, which is after all has been compiled
        faultpoint.at("worker", "ready")
        self._line.send({"is": "ready", "notes": notes, "mode": world.mode}, self._deadline_s)

    def run(self) -> None:
        from shoal import faultpoint, loops

        if self._free:
            return self._run_freely()
        while True:
            message = self._line.receive(IDLE_S)
            if message is None or message["is"] == "end":
                return self._close()
            if message["is"] == "evaluate":
                with self._trace.span("evaluate"):
                    self._evaluate(message)
                continue
            for index in message["lanes"]:
                begun, self._beat[3] = time.monotonic_ns(), index
                faultpoint.at("worker", "chunk")
                with self._trace.span("chunk", lane=index, seq=message["seq"]):
                    loops.run_actor(self.lanes[index], self._params, self, first=message["seq"], count=1, lag=self._lag,
                                    deadline_s=self._deadline_s)
                self._beat[5] += time.monotonic_ns() - begun

    def _run_freely(self) -> None:
        """Make chunks, lane by lane, as long as there is room for them."""
        from shoal import faultpoint
        from shoal.runtime.stream import ROOM

        room, seqs = dict.fromkeys(self.lanes, ROOM), dict.fromkeys(self.lanes, 0)
        while True:
            message = self._line.receive(0.0 if any(room.values()) else IDLE_S)
            if message is not None:
                if message["is"] == "end":
                    return self._close()
                if message["is"] == "evaluate":
                    with self._trace.span("evaluate"):
                        self._evaluate(message)
                else:
                    room[message["lane"]] += 1
                continue
            if not any(room.values()):
                return self._close()
            index = min((lane for lane in room if room[lane]), key=lambda lane: seqs[lane])
            begun, self._beat[3] = time.monotonic_ns(), index
            version, params = self._params.newest(self._deadline_s)
            faultpoint.at("worker", "chunk")
            with self._trace.span("chunk", lane=index, seq=seqs[index], version=version):
                self._make_freely(index, params, version, seqs[index])
            room[index], seqs[index] = room[index] - 1, seqs[index] + 1
            self._beat[5] += time.monotonic_ns() - begun

    def _make_freely(self, index: int, params: Any, version: int, seq: int) -> None:
        """One chunk, or what was learned from it."""
        actor = self.lanes[index]
        if self._learner is None:
            return self.put(actor.make(params, version, seq)._replace(lane=index, after=()), self._deadline_s)
        chunk = actor.make(self._learner.policy(params), version, seq)
        pushed = self._learner.push(params, chunk, actor.lane)
        return self.put(chunk._replace(lane=index, data=pushed, memory=(), after=()), self._deadline_s)

    def _evaluate(self, message: dict[str, Any]) -> None:
        """Play some of an evaluation's episodes."""
        from shoal import faultpoint
        from shoal.host_lane import PLAY, STEP
        from shoal.scoring import play_waves

        faultpoint.at("worker", "evaluate")
        world, (actor, *_) = self._world, self.lanes.values()
        assert world.make_fn is not None
        params = self._params.latest(message["version"], self._deadline_s)[1]
        act_fn = actor.acting_fn(params if self._learner is None else self._learner.policy(params))
        self._beat[2] = PLAY
        which = [range(first, end) for first, end in message["waves"]]
        for wave, scores in play_waves(world.algorithm, act_fn, world.make_fn, world.seed, which, message["greedy"], world.lane_envs,
                                       self._beat):
            self._line.send({"is": "scores", "first": wave.start, "scores": [x.tolist() for x in scores]}, self._deadline_s)
        self._beat[2] = STEP

    def put(self, chunk: Any, deadline_s: float) -> None:
        import jax
        import numpy as np

        from shoal import faultpoint

        actor = self.lanes[chunk.lane]
        after = actor.stand() if chunk.after is None else chunk.after
        leaves = [np.asarray(x) for x in jax.tree.leaves((chunk.data, chunk.memory, after, chunk.episodes))]
        offset, layout = self._slots.write((chunk.lane, chunk.seq % 2), leaves)
        if id(layout) not in self._layouts:
            self._layouts[id(layout)] = layout, len(self._layouts)  # kept, so that no other gets its id
            self._line.send({"is": "layout", "leaves": layout.kinds}, deadline_s)
        faultpoint.at("worker", "send")
        self._beat[4] += 1
        self._line.send({"is": "chunk", "lane": chunk.lane, "seq": chunk.seq, "version": chunk.version, "at": offset,
                         "layout": self._layouts[id(layout)][1]}, deadline_s)

    def _close(self) -> None:
        from shoal import faultpoint
        from shoal.host_lane import CLOSE

        faultpoint.at("worker", "close")
        self._trace.close()
        for index, actor in self.lanes.items():
            self._beat[2], self._beat[3] = CLOSE, index
            actor.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides when to stop
    code = main(int(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # not by way of handlers that an environment's package may have left
