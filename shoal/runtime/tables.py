"""Laps of tables spread over worker processes: merged, to the same bits for any number of them, or on one table that all write at once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import safetensors.numpy

from shoal import faultpoint
from shoal.errors import ConfigError, Interrupted
from shoal.plan import Plan
from shoal.runtime import place, supervise
from shoal.runtime.crew import STAMPS, Crew
from shoal.runtime.hand import Hand
from shoal.runtime.wire import Garbled, Layout, Pages
from shoal.runtime.workers import num_cores
from shoal.tabular.engine import Here, Tables, lane_part
from shoal.tabular.lane import Lap, Orders, names
from shoal.tabular.setup import Setup, open_setup

_GRACE_S = 3.0  # that a lap may still take once the run is to stop
_RECENT_ROWS = 128


class TableHand(Hand):
    module = "shoal.runtime.table_worker"


class Merging(Crew):
    """Each lane on a table of its own, from the common one on."""

    shared = False

    def __init__(self, setup: Setup, **settings: Any):
        super().__init__(setup, None, 0, **settings)  # type: ignore[arg-type]
        self.hands = [TableHand(hand.index, hand.lanes, hand._log) for hand in self.hands]
        self._of = {index: hand for hand in self.hands for index in hand.lanes}
        self._setup, self._names, self._seq, self._laps = setup, names(setup), 0, {}  # type: ignore[var-annotated]
        self._lane_notes: list[str] = []
        self._told_of = np.zeros((len(self.hands), 4))  # by worker, since it was last asked for: steps, episodes, their lengths and returns
        self._told_at = time.monotonic()

    def _open(self) -> None:
        """Start everyone; ``_first`` is what the table is like."""
        self._layout = Layout.of(self._first)
        self._pages = Pages(STAMPS + self._slots * self._layout.size)
        self._views = {}
        self._stamps = self._pages.array("int64", (self._slots + 1,), 0)
        self._stamps[:] = -1
        for hand in self.hands:
            self._start(hand)

    def _start(self, hand: Hand) -> None:
        faultpoint.at("driver", "start")
        standing: dict[int, Any] = {index: (self._now | self._next)[index] for index in hand.lanes if index in self._now | self._next}
        tensors = {f"lane{index}.{name}": np.asarray(x, order="C") for index, record in standing.items() for name, x in record.items()}
        data = safetensors.numpy.save(tensors) if tensors else b""
        state = Pages(len(data)) if data else None
        if state is not None:
            state.array("uint8", (len(data),), 0)[:] = np.frombuffer(data, np.uint8)
        assert self._pages is not None
        plan = self._told | {
            "seed": self._world.seed, "deadline_s": self._timeout_s, "standing": list(standing), "state_bytes": len(data),
            "inexact": self._inexact, "shared": self.shared,
            "params": {"fd": self._pages.fd, "slots": self._slots, "start": STAMPS, "layout": self._layout.kinds}}
        try:
            hand.start(plan, (self._pages.fd,), state)
        except OSError as error:  # no more processes, or no memory for one
            self._failed(hand, hand.place, supervise.Cause("exited", f"could not be started: {error.strerror or error}"))
        finally:
            if state is not None:
                state.close()

    # laps

    def run(self, q: np.ndarray, n: np.ndarray, orders: Orders, *, tentative: bool = False) -> list[Lap]:
        """A lap of every lane, in their order."""
        leaves = [q, n, np.array(orders, np.int64)]
        if self._pages is None:
            self._first = leaves
            self._open()
        self._seq, self._laps = self._seq + 1, {}
        self._write(self._seq, leaves)
        for hand in self.hands:
            hand.ask(self._seq, set(hand.lanes))
        asked_at = 0.0
        while len(self._laps) < self._world.num_lanes:
            self._wait(0.2)
            if self._asked_to_stop() and len(self._laps) < self._world.num_lanes:
                asked_at = asked_at or time.monotonic()
                if time.monotonic() - asked_at > _GRACE_S:
                    self.forget()
                    raise Interrupted
        for note in self._lane_notes:
            self._warn(note)
        self._lane_notes = []
        return [self._laps[index] for index in range(self._world.num_lanes)]

    def _accept(self, hand: Hand, message: dict[str, Any]) -> None:
        index, seq = message["lane"], message["seq"]
        if seq != hand.seq or index not in hand.owed:
            return  # of before a restart
        views = hand.views(message)
        if len(views) != 5 + len(self._names) or views[2].shape != (5,) or views[4].shape != (_RECENT_ROWS, 4):
            raise Garbled(f"a lap of {len(views)} arrays, not {5 + len(self._names)}")
        q, n, told, sums, recent = views[:5]
        steps, episodes, length_sum, lost, rows = (int(x) for x in told)
        self._restarts.delivered(hand.index)
        self._next[index] = {name: np.array(x) for name, x in zip(self._names, views[5:], strict=True)}
        self._told_of[hand.index] += steps, episodes, length_sum, float(sums[0])
        self._laps[index] = Lap(index, q, n, steps, episodes, length_sum, float(sums[0]), np.array(recent[:max(0, rows)]), lost)

    def timing(self) -> dict[str, Any]:
        """As with chunks, and what each worker did in the last while."""
        now, done = time.monotonic(), self._told_of
        spent, self._told_at, self._told_of = max(1e-9, now - self._told_at), now, np.zeros_like(done)
        each = {f"worker{i}_{name}": value for i, (steps, episodes, lengths, returns) in enumerate(done.tolist()) for name, value in {
            "steps": int(steps), "steps_per_s": round(steps / spent, 1), "episodes": int(episodes),
            "mean_length": round(lengths / episodes, 3) if episodes else None,
            "mean_return": round(returns / episodes, 6) if episodes else None}.items()}
        return super().timing() | each

    def keep(self) -> None:
        self._now |= self._next
        self.learned += len(self._next)
        self._next = {}

    def forget(self) -> None:
        """Lanes have moved on where they are: they are started again where they stood."""
        self.rest()

    # the cut

    def tensors(self) -> dict[str, np.ndarray]:
        missing = [index for index in range(self._world.num_lanes) if index not in self._now]
        if missing:
            fresh = Here(self._setup)
            try:
                self._now |= {index: fresh.lanes[index].tensors() for index in missing}
            finally:
                fresh.close()
        return {f"lane{index}.{name}": x for index in range(self._world.num_lanes) for name, x in self._now[index].items()}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[str]:  # type: ignore[override]
        """Where lanes stand; they are brought there when workers start, with the first lap."""
        self._inexact = inexact
        self._now = {index: lane_part(tensors, index) for index in range(self._world.num_lanes)}
        for index, record in self._now.items():
            if sorted(record) != sorted(self._names):
                raise ConfigError(f"lane {index}: the checkpoint has {', '.join(sorted(record)) or 'nothing'} of it")
        return []

    def _hear(self, hand: Hand) -> None:
        super()._hear(hand)
        self._lane_notes += [note for _, note in self._notes]
        self._notes = []

    def rest(self) -> bool:
        for hand in self.hands:
            hand.owed.clear()
        self.close()
        self._laps, self._next = {}, {}
        return True


class LockFree(Merging):
    """All lanes on one table at once: stores of 8 aligned bytes, and no order among them. What a worker that dies has written stays."""

    shared = True

    def __init__(self, setup: Setup, **settings: Any):
        super().__init__(setup, **settings)
        self.lost = 0

    def run(self, q: np.ndarray, n: np.ndarray, orders: Orders, *, tentative: bool = False) -> list[Lap]:
        self._slots = 1
        laps = super().run(q, n, orders)
        table, counters = (np.array(x) for x in self._views[0][:2])
        return [lap._replace(q=table, n=counters) for lap in laps]

    def _failed(self, hand: Hand, place_: supervise.Place, cause: supervise.Cause) -> None:
        self.lost += len(hand.owed)  # their part of the lap is in the table, and is made again
        super()._failed(hand, place_, cause)

    def ledger(self, iterations: int) -> dict[str, int]:
        counts = super().ledger(iterations)
        return counts | {"produced": counts["produced"] + self.lost, "lost": self.lost, "redone": 0}


def check_workers(plan: Plan) -> int:
    """How many workers a plan asks for."""
    num_lanes = plan.num_envs // plan.lane_size
    if plan.workers == "auto":
        return min(num_lanes, num_cores())
    if int(plan.workers) > num_lanes:
        lanes = f"{num_lanes} lane{'s' if num_lanes > 1 else ''} of {plan.lane_size}"
        raise ConfigError(f"workers = {plan.workers}, but num_envs makes {lanes}; "
                          f"try --workers {num_lanes} or --num-envs {int(plan.workers) * plan.lane_size}")
    return int(plan.workers)


def engine(learner: Any, make_fn: Any, plan: Plan, stream_episodes: bool) -> Tables:
    """The engine for learning in tables with worker processes."""
    if plan.topology != "learner":
        raise ConfigError("topology = 'server': tables have it under MPI; use --runtime mpi --mode async")
    workers, told, free = check_workers(plan), place.describe(plan), plan.mode == "async"

    def crew(setup: Setup) -> Any:
        return (LockFree if free else Merging)(
            setup, told=told, workers=workers, step_timeout_s=plan.step_timeout_s, max_restarts=plan.max_restarts, logs=made.logs,
            warn_fn=made.warn_fn, stop_fn=made.stop_fn)

    made = Tables(open_setup(learner, plan, make_fn), plan, crew, stream_episodes=stream_episodes)
    return made


