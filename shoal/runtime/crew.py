"""Lanes spread over worker processes. Whoever makes a chunk makes the same one, so how they are spread, and who dies, changes no bit."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from shoal import faultpoint
from shoal.errors import DeadlineError, Interrupted, ShoalError
from shoal.host_lane import HostRecord, Log, grown
from shoal.loops import Scores
from shoal.runtime import lanes as lanes_
from shoal.runtime import supervise
from shoal.runtime.hand import Hand
from shoal.runtime.lanes import World, beside, from_tensors, part, to_tensors
from shoal.runtime.trace import OFF, Trace
from shoal.runtime.wire import Garbled, Gone, Layout, Pages
from shoal.scoring import joined, waves
from shoal.tensors import filled, named
from shoal.types import Chunk, LaneState, Params, ParamSource

_START_S = 300.0  # for a worker to import, compile and bring its environments back
_CLOSE_S = 5.0  # for closing environments at the end of a run
STAMPS = 4096  # bytes before the first parameters: which version lies in each slot


class Crew:
    """The workers of a run."""

    asks = True  # for every chunk
    learns = False  # in workers, too: they compile that after their first steps
    staleness: Any = {}  # none is counted

    def __init__(self, world: World, params: ParamSource, lag: int, *, told: dict[str, Any], workers: int, step_timeout_s: float,
                 max_restarts: int, logs: Path | None, warn_fn: Callable[[str], None], stop_fn: Callable[[], bool], trace: Trace = OFF):
        self._world, self._params, self._lag, self.overlaps, self.workers = world, params, lag, lag > 0, workers
        self._told, self._timeout_s, self._warn, self._asked_to_stop = told, step_timeout_s, warn_fn, stop_fn
        self._restarts, self._trace = supervise.Restarts(max_restarts), trace
        share = [tuple(range(i, world.num_lanes, workers)) for i in range(workers)]
        self.hands = [Hand(i, mine, logs / f"worker-{i}.log" if logs else None) for i, mine in enumerate(share)]
        self._of = {index: hand for hand in self.hands for index in hand.lanes}
        self._structure: Any = None
        self._taken: deque[Chunk] = deque()
        self._now: dict[int, Any] = {}  # where lanes stood after what was learned from; none: at their start
        self._next: dict[int, Any] = {}  # after what came since
        self._inexact, self.mode = False, ""
        self._notes: list[tuple[int, str]] = []
        self._scores: dict[int, Scores] = {}  # of an evaluation, by first episode
        self._pages: Pages | None = None
        self._slots, self.learned, self._looked, self._busy = lag + 2, 0, time.monotonic(), [0.0] * workers

    # parameters

    def publish(self, version: int, params: Params, deadline_s: float) -> None:
        """Write a version where workers read it, and hold on to where lanes now stand: what made them go there has been learned from."""
        self._now |= self._next
        self.learned += len(self._next)
        self._next = {}
        if self._pages is not None:
            self._write(version, params)

    def _write(self, version: int, leaves: list[Any]) -> None:
        slot = version % self._slots
        assert self._pages is not None
        self._stamps[slot] = -1
        if slot not in self._views:
            self._views[slot] = self._layout.views(self._pages, STAMPS + slot * self._layout.size)
        for view, leaf in zip(self._views[slot], leaves, strict=True):
            np.copyto(view, np.asarray(leaf))
        self._stamps[slot] = version

    def _open(self) -> None:
        """Start everyone, with the parameters there are."""
        versions: dict[int, Any] = self._params.versions  # type: ignore[attr-defined]
        self._layout = Layout.of([np.asarray(x) for x in next(iter(versions.values()))])
        self._pages = Pages(STAMPS + self._slots * self._layout.size)
        self._views: dict[int, list[np.ndarray]] = {}  # by slot
        self._stamps = self._pages.array("int64", (self._slots + 1,), 0)  # the last: the newest of all
        self._stamps[:] = -1
        for version, leaves in sorted(versions.items())[-self._slots:]:
            self._write(version, leaves)
        self._structure = self._shape()
        for hand in self.hands:
            self._start(hand)

    def _shape(self) -> Any:
        """The structure of what a chunk carries."""
        return lanes_.chunk_like(self._world)

    # workers

    def _start(self, hand: Hand) -> None:
        faultpoint.at("driver", "start")
        standing = {index: self._next.get(index, self._now.get(index)) for index in hand.lanes}
        standing = {index: record for index, record in standing.items() if record is not None}
        tensors = {name: x for index, record in standing.items() for name, x in to_tensors(_whole(record), f"lane{index}").items()}
        data = safetensors.numpy.save({name: np.asarray(x, order="C") for name, x in tensors.items()}) if tensors else b""
        state = Pages(len(data)) if data else None
        if state is not None:
            state.array("uint8", (len(data),), 0)[:] = np.frombuffer(data, np.uint8)
        assert self._pages is not None
        world = self._world
        plan = self._told | {
            "seed": world.seed, "num_lanes": world.num_lanes, "lane_envs": world.lane_envs, "mode": self.mode, "lag": self._lag,
            "deadline_s": self._timeout_s, "standing": [f"lane{index}" for index in standing], "state_bytes": len(data),
            "inexact": self._inexact,
            "params": {"fd": self._pages.fd, "slots": self._slots, "start": STAMPS, "layout": self._layout.kinds}}
        try:
            hand.start(plan, (self._pages.fd,), state)
        except OSError as error:  # no more processes, or no memory for one
            self._failed(hand, hand.place, supervise.Cause("exited", f"could not be started: {error.strerror or error}"))
        finally:
            if state is not None:
                state.close()

    def _failed(self, hand: Hand, place: supervise.Place, cause: supervise.Cause) -> None:
        hand.stop()
        try:
            delay = self._restarts.failed(place, cause)
        except ShoalError:
            if cause.trace:
                self._warn(cause.trace.rstrip())
            raise
        hand.start_at = time.monotonic() + delay
        self._warn(f"{place}: {cause.text}; started again in {delay:.1f} s")

    def _wait(self, limit_s: float) -> None:
        """Hear what workers have to say, for at most so long; start again those whose time has come."""
        poll, by_fd = select.poll(), {}
        for hand in self.hands:
            if hand.process is None and time.monotonic() >= hand.start_at:
                self._start(hand)
            if hand.process is not None:
                by_fd[hand.line.fileno()] = hand
                poll.register(hand.line.fileno(), select.POLLIN)
        for fd, _ in poll.poll(limit_s * 1000):
            self._hear(by_fd[fd])
        for hand in self.hands:
            warm = hand.received or (hand.has_stepped and not self.learns)
            limit_s = self._timeout_s if warm else max(_START_S, self._timeout_s)
            if hand.process is not None and hand.is_silent(limit_s):
                cause = supervise.Cause("silent", f"no sign of life for {limit_s:g} s, {hand.whereabouts()}")
                self._failed(hand, hand.place, cause)

    def _hear(self, hand: Hand) -> None:
        try:
            while (message := hand.hear()) is not None:
                if message["is"] == "ready":
                    hand.ready, self.mode = True, self.mode or message["mode"]
                    self._notes += [(int(index), str(note)) for index, note in message["notes"]]
                    hand.say(makes=self.asks, plays=True)
                elif message["is"] == "chunk":
                    self._accept(hand, message)
                elif message["is"] == "scores" and hand.plays.pop(message["first"], None):
                    self._restarts.delivered(hand.index)
                    self._scores[message["first"]] = Scores(*(np.asarray(x) for x in message["scores"]))
                elif message["is"] == "error":
                    cause = supervise.told(message)
                    return self._failed(hand, hand.place, cause._replace(text=f"{cause.text} ({hand.whereabouts()})"))
        except Gone:
            place = hand.place
            self._failed(hand, place, hand.cause())
        except Garbled as error:
            self._failed(hand, hand.place, supervise.Cause("garbled", f"sent {error}"))

    def _accept(self, hand: Hand, message: dict[str, Any]) -> None:
        index, seq = message["lane"], message["seq"]
        if seq != hand.seq or index not in hand.owed:
            return  # of before a restart
        data, memory, after, episodes = self._unflatten(hand.views(message))
        chunk = Chunk(index, hand.life, seq, message["version"], data, memory, after, episodes)
        self._restarts.delivered(hand.index)
        self._next[index] = _standing(self._next.get(index, self._now.get(index)), chunk)
        self._taken.append(chunk)

    def _unflatten(self, views: list[Any]) -> Any:
        if len(views) != self._structure.num_leaves:
            raise Garbled(f"a chunk of {len(views)} arrays, not {self._structure.num_leaves}")
        return jax.tree.unflatten(self._structure, views)

    # ports

    def ask(self, seq: int, deadline_s: float) -> None:
        if self._pages is None:
            self._open()
        for hand in self.hands:
            hand.ask(seq, set(hand.lanes))

    def take(self, deadline_s: float) -> Chunk:
        if not self._taken:
            with self._trace.span("wait"):
                self._await_chunk()
        return self._taken.popleft()

    def _await_chunk(self) -> None:
        while not self._taken:
            self._wait(0.2)
            if not self._taken and self._asked_to_stop():
                raise Interrupted

    # evaluation

    @property
    def can_evaluate(self) -> bool:
        """Whether workers are there, and their environments live in Python."""
        return self._pages is not None and self._world.env is None

    def evaluate(self, version: int, episodes: int, greedy: bool) -> Scores:
        """Scores of ``episodes`` episodes, played by all workers: those that one process would find."""
        self._scores = {}
        all_waves = waves(episodes, self._world.lane_envs)
        for hand in self.hands:
            hand.play(version, greedy, all_waves[hand.index::self.workers])
        while len(self._scores) < len(all_waves):
            self._wait(0.2)
        return joined([self._scores[wave.start] for wave in all_waves])

    # the cut

    def tensors(self) -> dict[str, np.ndarray]:
        standing = [self._now.get(index) or self._at_start(index) for index in range(self._world.num_lanes)]
        if self._world.env is not None:
            return named(beside(standing, 0), "lanes")
        return {name: x for index, record in enumerate(standing) for name, x in to_tensors(_whole(record), f"lane{index}").items()}

    def _at_start(self, index: int) -> Any:
        (lane,) = lanes_.make_lanes(self._world, [index])
        try:
            return lane.state if self._world.env is not None else (lane.record(), [(Log(), 0) for _ in range(self._world.lane_envs)])
        finally:
            lane.close()

    def load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[tuple[int, str]]:
        world, self._inexact = self._world, inexact
        if world.env is not None:
            like = lanes_.state_like(world)
            joined = jax.tree.map(lambda x: np.zeros((x.shape[0] * world.num_lanes, *x.shape[1:]), x.dtype), like)
            joined = filled(joined, tensors, "lanes", np.asarray)
            self._now = {index: part(joined, index, world.lane_envs) for index in range(world.num_lanes)}
            return []
        empty = lanes_.record_like(world)
        for index in range(world.num_lanes):
            record = from_tensors(empty, tensors, f"lane{index}")
            self._now[index] = record, [(Log(np.array(actions)), len(actions)) for actions in record.actions]
        self._open()
        until = time.monotonic() + _START_S
        while not all(hand.ready for hand in self.hands):
            self._wait(0.2)
            if self._asked_to_stop():
                raise Interrupted
            if time.monotonic() > until:
                raise DeadlineError("workers were not ready in time")
        notes, self._notes, self._inexact = self._notes, [], False
        return notes

    # accounts

    def timing(self) -> dict[str, Any]:
        """How the last while went: what share of it each worker was at work, all of them on average, and how unevenly that was spread."""
        now, busy = time.monotonic(), [hand.busy_s for hand in self.hands]
        spent, (self._looked, self._busy), before = now - self._looked, (now, busy), self._busy
        shares = [max(0.0, b - a if b >= a else b) / max(spent, 1e-9) for a, b in zip(before, busy, strict=True)]  # less: a new life
        mean = sum(shares) / len(shares)
        return {f"worker{i}_busy": round(x, 4) for i, x in enumerate(shares)} | {
            "efficiency": round(mean, 4), "imbalance": round(max(shares) / mean, 4) if mean else 1.0, "policy_lag": self._lag,
            "queued": len(self._taken), "restarts": self._restarts.total}

    def ledger(self, iterations: int) -> dict[str, int]:
        """What became of chunks. It closes: produced = learned + buffered + in_flight + dropped + lost."""
        waiting = len(self._next)
        made = sum(int(hand.beat[4]) - hand.received for hand in self.hands if hand.process is not None)
        return {"produced": self.learned + waiting + made, "learned": self.learned, "buffered": 0, "in_flight": waiting + made,
                "dropped": 0, "lost": 0, "redone": sum(hand.redone for hand in self.hands), "restarts": self._restarts.total}

    def rest(self) -> bool:
        """Let workers go until there is something to do; where lanes stand is known. What they were asked for is forgotten."""
        for hand in self.hands:
            hand.owed.clear()
            hand.plays.clear()
        self.close()
        self._taken.clear()
        self._next = {}
        return True

    def close(self) -> None:
        for hand in self.hands:
            if hand.process is not None:
                hand.end()
        until = time.monotonic() + _CLOSE_S
        for hand in self.hands:
            hand.left(until)
        if self._pages is not None:
            self._pages.close()
            self._pages, self._stamps = None, self._stamps.copy()
            self._views.clear()


def _standing(before: Any, chunk: Chunk) -> Any:
    """Where a lane stands after a chunk, in memory of our own: a compiled one's state, a host one's record and its logs of actions."""
    after = jax.tree.map(np.array, chunk.after)
    if isinstance(after, LaneState):
        return after
    ended, actions = chunk.episodes.ended, chunk.data.action
    marks = before[1] if before is not None else [(Log(), 0) for _ in after.episode]
    return after, [grown(mark, actions[:, i], ended[:, i]) for i, mark in enumerate(marks)]


def _whole(standing: Any) -> HostRecord | LaneState:
    """As checkpoints keep it."""
    if isinstance(standing, LaneState):
        return standing
    record, marks = standing
    return record._replace(actions=tuple(log.rows(length) for log, length in marks))
