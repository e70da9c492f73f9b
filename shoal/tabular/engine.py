"""The engine of tables: laps of all lanes, merged; exact budgets; the cut. Who runs the lanes, its crew, changes no bit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from shoal import faultpoint
from shoal.errors import DivergedError, Interrupted, StoreError
from shoal.tabular import score
from shoal.tabular.lane import Lap, Orders, TableLane
from shoal.tabular.merge import merged
from shoal.tabular.rule import RECENT
from shoal.tabular.setup import HOST, Setup, aligned
from shoal.types import EpisodeEnd, Iteration, Limits, Report

_CALL_S = 0.2  # what a call should take: the main loop looks at signals, saves and writes between two
_HOST_STEPS = 2000  # environment steps in Python between two looks at signals
_FREE = 2**31 - 1  # a limit that is none


class Crew(Protocol):
    """Whoever keeps the lanes."""

    workers: int

    def run(self, q: np.ndarray, n: np.ndarray, orders: Orders, *, tentative: bool = False) -> list[Lap]: ...  # one of every lane, in order
    def keep(self) -> None: ...  # lanes stand where the last lap led them
    def forget(self) -> None: ...  # they stand where they stood before it
    def tensors(self) -> dict[str, np.ndarray]: ...
    def load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[str]: ...
    def timing(self) -> dict[str, Any]: ...
    def ledger(self, laps: int) -> dict[str, int]: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...


class Here:
    """A crew of one: all lanes in this process, one after the other."""

    workers = 1

    def __init__(self, setup: Setup, which: list[int] | None = None):
        """``which`` lanes; all, unless others keep some."""
        self.lanes = [TableLane(setup, lane) for lane in (range(setup.num_lanes) if which is None else which)]
        self._before: list[dict[str, np.ndarray]] | None = None

    def run(self, q: np.ndarray, n: np.ndarray, orders: Orders, *, tentative: bool = False, apart: bool = False) -> list[Lap]:
        """``apart``: the table is needed as it was."""
        if tentative:
            self._before = [lane.tensors() for lane in self.lanes]
        if len(self.lanes) == 1 and not tentative and not apart:
            return [self.lanes[0].run(q, n, orders)]
        return [lane.run(aligned(q), aligned(n), orders) for lane in self.lanes]

    def keep(self) -> None:
        self._before = None

    def forget(self) -> None:
        for lane, before in zip(self.lanes, self._before or [], strict=False):
            lane.load(before)
        self._before = None

    def tensors(self) -> dict[str, np.ndarray]:
        return {f"lane{lane.lane}.{name}": x for lane in self.lanes for name, x in lane.tensors().items()}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[str]:
        return [note for lane in self.lanes for note in lane.load(lane_part(tensors, lane.lane), inexact)]

    def timing(self) -> dict[str, Any]:
        return {}

    def ledger(self, laps: int) -> dict[str, int]:
        made = laps * len(self.lanes)
        return {"produced": made, "learned": made, "buffered": 0, "in_flight": 0, "dropped": 0, "lost": 0, "redone": 0, "restarts": 0}

    def rest(self) -> None:
        """Nothing runs between two calls."""

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()


def lane_part(tensors: dict[str, np.ndarray], lane: int) -> dict[str, np.ndarray]:
    """What tensors say of one lane, under its own names."""
    prefix = f"lane{lane}."
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}


class Answer(NamedTuple):
    """A table that is not where the run stands: after a part of a lap that a budget ends with. The lap is made whole if the run goes on."""

    q: np.ndarray
    n: np.ndarray
    steps: int
    episodes: int


class Tables:
    """Learns in one table, or in one for each lane that are merged."""

    def __init__(self, setup: Setup, plan: Any, crew_fn: Callable[[Setup], Any] = Here, *, stream_episodes: bool = False):
        self.setup, self.plan, self._crew_fn, self._stream = setup, plan, crew_fn, stream_episodes
        self.spec, self.algorithm = None, setup.learner
        self.path = "ported" if setup.mode == HOST else "fused"
        self.steps_per_iteration = self._unit() * setup.num_envs
        self._crew: Any = None
        self._pace = 0.0  # seconds per iteration, as seen
        self.logs: Path | None = None
        self.warn_fn: Callable[[str], None] = lambda text: None
        self.stop_fn: Callable[[], bool] = bool

    def _unit(self) -> int:
        """Vector steps that are told of together; whole laps between merges. It changes no bit."""
        wanted = (self.plan.log_every or max(1, self.plan.steps // 500) or 10_000) // self.setup.num_envs
        unit = max(1, min(wanted, 2**20 if self.setup.mode != HOST else 10 * _HOST_STEPS // self.setup.num_envs))
        every = self.setup.learner.sync_every
        return -(-unit // every) * every if self.setup.num_lanes > 1 else unit

    # set-up

    def settle(self, folder: Path, warn_fn: Callable[[str], None], stop_fn: Callable[[], bool], trace: bool) -> None:
        self.logs, self.warn_fn, self.stop_fn = folder / "logs", warn_fn, stop_fn
        if trace:
            warn_fn("--trace shows chunks of lanes, which tables do not have: nothing is written")

    def init(self, seed: int) -> None:
        self.setup = self.setup._replace(seed=seed)
        self.q, self.n = self.setup.blank()
        self._t = self._laps = self.episodes = self._lost = 0
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._answer: Answer | None = None
        self._crew = self._crew_fn(self.setup)

    # running

    def run(self, limits: Limits) -> Report:
        """As many iterations as take a moment. Timing decides only how they are grouped."""
        done: list[Iteration] = []
        begun, episodes, steps = time.perf_counter(), 0, 0
        while not done or (len(done) < limits.iterations and episodes < limits.episodes and steps < limits.steps
                           and time.perf_counter() - begun < _CALL_S and not done[-1].mean_return >= limits.target):
            try:
                done.append(self._iterate(limits.steps - steps, limits.episodes - episodes))
            except Interrupted:
                break
            episodes, steps = episodes + done[-1].episodes, steps + (done[-1].steps or 0)
            if self.stop_fn():
                break
        return Report(done, time.perf_counter() - begun, 0.0)

    def _iterate(self, steps_left: int, episodes_left: int) -> Iteration:
        """One unit, in laps; or what is left of the budget."""
        faultpoint.at("driver", "ask")
        answer, self._answer = self._answer, None
        again = Iteration({}, -answer.episodes, 0.0, 0, 0.0, [], -answer.steps) if answer else None  # told of already
        left = steps_left + (answer.steps if answer else 0)
        quota = self.episodes + episodes_left + (answer.episodes if answer else 0) if episodes_left < _FREE else -1
        unit, every, envs = self.steps_per_iteration // self.setup.num_envs, self.setup.learner.sync_every, self.setup.num_envs
        stop, laps = self._t + unit - self._t % unit, []
        while self._t < stop:
            end = min(stop, self._t + every - self._t % every) if self.setup.num_lanes > 1 else min(stop, self._t + self._longest())
            whole = min(end - self._t, left // envs)
            if self.setup.num_lanes > 1 and whole < end - self._t:  # a merge is not reached: it will be, if the run goes on
                laps.append(self._tentative(Orders(self._t, self._t + whole, left % envs, quota)))
                break
            if whole:
                laps.append(self._lap(Orders(self._t, self._t + whole, 0, quota)))
                left -= whole * envs
            elif left:
                laps.append(self._tentative(Orders(self._t, self._t, left, quota)))
                break
            if not left or (quota >= 0 and self.episodes >= quota):
                break
        return self._told([*([again] if again else []), *laps])

    def _longest(self) -> int:
        """Vector steps of a lap without merges: not too long where Python steps, nor for all episodes to be told of."""
        per = self.setup.num_envs
        most = max(1, _HOST_STEPS // per) if self.setup.mode == HOST else 2**40
        return max(1, min(most, RECENT // per)) if self._stream else most

    def _lap(self, orders: Orders) -> Iteration:
        laps = self._crew.run(self.q, self.n, orders)
        self.q, self.n = self._joined(laps)
        if self.setup.learner.sparse:  # it may have grown
            self.setup = self.setup._replace(rule=self.setup.rule._replace(cells=len(self.q) // self.setup.tables))
        self._crew.keep()
        self._t, self._laps = orders.stop, self._laps + 1
        ended = self._ended(laps)
        self._recent.extend(ended[:, 2].tolist())
        told = self._counted(laps, ended, list(self._recent))
        self.episodes += told.episodes
        self._watch(laps)
        return told

    def _tentative(self, orders: Orders) -> Iteration:
        """A part of a lap: what it comes to is the answer, but lanes stay where they are."""
        laps = self._crew.run(self.q, self.n, orders, tentative=True)
        q, n = self._joined(laps)
        ended = self._ended(laps)
        told = self._counted(laps, ended, [*self._recent, *ended[:, 2].tolist()][-RECENT:])
        self._crew.forget()
        self._answer = Answer(q.copy(), n.copy(), told.steps or 0, told.episodes)
        return told

    def _joined(self, laps: list[Lap]) -> tuple[np.ndarray, np.ndarray]:
        if len(laps) == 1:
            return laps[0].q, laps[0].n
        return merged(self.q, self.n, [(lap.q, lap.n) for lap in laps])

    def _ended(self, laps: list[Lap]) -> np.ndarray:
        """float64 [episodes, 4]: the last ones of all lanes, by vector step, then environment; return and length follow."""
        rows = np.concatenate([lap.recent for lap in laps])
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        return rows if self._stream else rows[-RECENT:]

    def _counted(self, laps: list[Lap], ended: np.ndarray, recent: list[float]) -> Iteration:
        mean = float(np.mean(recent[-RECENT:])) if recent else float("nan")
        told = [EpisodeEnd(int(env), int(t), value, int(length)) for t, env, value, length in ended.tolist()] if self._stream else []
        return Iteration({}, sum(lap.episodes for lap in laps), float(sum(lap.return_sum for lap in laps)),
                         sum(lap.length_sum for lap in laps), mean, told, sum(lap.steps for lap in laps))

    def _told(self, laps: list[Iteration]) -> Iteration:
        """Several laps as one iteration."""
        from shoal.tabular.bound import plain

        level = plain(self.setup.kind).level_at(self.setup.rule, self._t)
        _, n = self.table()
        metrics = {"exploration": float(level), "visited": float(np.count_nonzero(n)) / len(n)}
        return Iteration(metrics, sum(lap.episodes for lap in laps), float(sum(lap.return_sum for lap in laps)),
                         sum(lap.length_sum for lap in laps), laps[-1].mean_return, [end for lap in laps for end in lap.ended],
                         sum(lap.steps or 0 for lap in laps))

    def _watch(self, laps: list[Lap]) -> None:
        if not np.isfinite(self.q).all():
            raise DivergedError(f"{int((~np.isfinite(self.q)).sum())} values of the table are not finite at vector step {self._t}; "
                                "try a smaller learning_rate, or check the environment's rewards")
        lost = sum(lap.lost for lap in laps)
        if lost and not self._lost:
            self.warn_fn(f"a pair has more than model_outcomes = {self.setup.rule.outcomes} outcomes: others are left out; "
                         "give --model-outcomes a larger number")
        self._lost = lost

    # the cut

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """The table and counters as they are now."""
        return (self._answer.q, self._answer.n) if self._answer else (self.q, self.n)

    def cut(self) -> dict[str, np.ndarray]:
        out = {"q": self.q.copy(), "n": self.n.copy(), "recent": np.asarray(self._recent, np.float64),
               "place": np.array([self._t, self._laps, self.episodes], np.int64)}
        if self.setup.learner.sparse:
            out["keys"] = self.setup.rows.keys()
        if self._answer:
            out |= {"answer.q": self._answer.q, "answer.n": self._answer.n,
                    "answer.told": np.array([self._answer.steps, self._answer.episodes], np.int64)}
        return out | self._crew.tensors()

    def attach(self, folder: Path) -> dict[str, str]:
        """All of it is in the tensors."""
        return {}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool = False) -> list[str]:
        self.load_policy(tensors)
        self._t, self._laps, self.episodes = (int(x) for x in self._checked(tensors["place"], "place", (3,), np.int64))
        self._recent = deque(tensors["recent"].tolist(), maxlen=RECENT)
        return self._crew.load(tensors, inexact)

    def load_policy(self, tensors: dict[str, np.ndarray]) -> None:
        """Only the table, for acting."""
        if self.setup.learner.sparse:
            self._checked(tensors["keys"], "keys", (len(tensors["keys"]),), np.int64)
            self.setup.rows.load(tensors["keys"])
            size: tuple[int, ...] = (max(len(self.q), len(np.atleast_1d(tensors["q"]))),)
        else:
            size = self.q.shape
        self.q, self.n = self._checked(tensors["q"], "q", size, np.float64), self._checked(tensors["n"], "n", size, np.int64)
        if "answer.q" in tensors:
            self._checked(tensors["answer.q"], "answer.q", np.shape(tensors["answer.q"])[:1], np.float64)
            self._checked(tensors["answer.n"], "answer.n", np.shape(tensors["answer.q"]), np.int64)
            self._checked(tensors["answer.told"], "answer.told", (2,), np.int64)
            steps, episodes = (int(x) for x in tensors["answer.told"])
            self._answer = Answer(np.array(tensors["answer.q"]), np.array(tensors["answer.n"]), steps, episodes)

    def _checked(self, given: np.ndarray, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A copy of what was saved, if it can be that."""
        if given.shape != shape or given.dtype != dtype:
            raise StoreError(f"{name} is {given.dtype} {given.shape}, expected {np.dtype(dtype)} {shape}")
        return aligned(given)

    def learner(self) -> dict[str, np.ndarray]:
        q, n = self.table()
        keys = {"learner.keys": self.setup.rows.keys()} if self.setup.learner.sparse else {}
        return {"learner.q": q, "learner.n": n} | keys

    # acting

    def values(self) -> np.ndarray:
        """float64 [rows, actions]: what each pair is worth by whoever acts; -inf where an action is not legal."""
        q, _ = self.table()
        cells, num = len(q) // self.setup.tables, self.setup.rule.num_actions
        x = (q[:cells] + q[cells:] if self.setup.tables == 2 else q).reshape(-1, num)
        legal = self._legal()
        return x if legal is None else np.where(legal.reshape(-1, num) != 0, x, -np.inf)

    def _legal(self) -> np.ndarray | None:
        host = self.setup.mode == HOST  # what may be done is learned as it is seen, by each lane
        return self.setup.legal if self.setup.kind.masked and not host else None

    def policy(self) -> np.ndarray:
        """int64 [rows]: the best action of each, the first among equals."""
        return np.argmax(self.values(), axis=1)

    def evaluate(self, episodes: int, greedy: bool = True) -> Any:
        faultpoint.at("driver", "evaluate")
        return score.play(self.setup, self.values(), episodes, greedy)

    # accounts

    @property
    def workers(self) -> int:
        return self._crew.workers

    def timing(self) -> dict[str, Any]:
        return self._crew.timing()

    def staleness(self) -> dict[str, int]:
        return {}

    def ledger(self) -> dict[str, int]:
        return self._crew.ledger(self._laps)

    def rest(self) -> None:
        if self._crew is not None:
            self._crew.rest()

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
