"""A lane of tables: some environments, what they remember, and one lap after another on a table that it is given."""

from __future__ import annotations

import functools
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.envs.gymnasium import GymEnv
from shoal.errors import EnvError, ReplayError
from shoal.specs import Discrete
from shoal.tabular.rule import RECENT, headed
from shoal.tabular.setup import GAME, HOST, MODEL, Setup, lane_arrays
from shoal.tabular.sparse import grown


_PIECE = 2**22  # steps that a lap may take before it says that it gets on


class Orders(NamedTuple):
    """What a lap is to be. Plain numbers, the same for all lanes."""

    first: int  # vector step it begins at
    stop: int
    more: int  # environments, counted over all lanes, that take a step more
    episodes: int  # that all environments together may come to; -1: any number


class Lap(NamedTuple):
    """What became of a lap."""

    lane: int
    q: np.ndarray
    n: np.ndarray
    steps: int  # environment steps that were taken
    episodes: int  # that ended
    length_sum: int
    return_sum: float
    recent: np.ndarray  # [≤ RECENT, 4] float64: vector step, environment, return and length of the last ones, in order
    lost: int  # outcomes for which a model had no place


def quotas(setup: Setup, lane: int, episodes: int) -> np.ndarray:
    """int64 [B]: episodes that each environment of a lane may come to: the budget shared out evenly, the first ones one more."""
    numbers = np.arange(lane * setup.lane_envs, (lane + 1) * setup.lane_envs)
    return np.full(len(numbers), 2**62) if episodes < 0 else episodes // setup.num_envs + (numbers < episodes % setup.num_envs)


def names(setup: Setup) -> list[str]:
    """What ``TableLane.tensors`` answers, in order."""
    host = [*(f"actions{e}" for e in range(setup.lane_envs)), "checksum"] if setup.mode == HOST else []
    return ["floats", "ints", *(["legal"] if setup.mode == HOST and setup.kind.masked else []), *host]


class TableLane:
    """One lane."""

    def __init__(self, setup: Setup, lane: int):
        self.setup, self.lane = setup, lane
        self.f, self.i = lane_arrays(setup, lane)
        self.legal = setup.legal.copy() if setup.mode == HOST and setup.kind.masked else setup.legal
        self._kernels = setup.kernels()
        self.beat_fn: Callable[[], None] = lambda: None  # is called now and then
        self.host = Host(setup, self) if setup.mode == HOST else None
        if setup.mode == MODEL:
            for e in range(setup.rule.envs):
                self._start(e)
        elif setup.mode == GAME:
            at = setup.at
            self.i[at.row:at.row + setup.rule.envs] = setup.wi[setup.world.start]

    def _start(self, e: int) -> None:
        from shoal.tabular.bound import plain

        plain(self.setup.kind).restart(self.setup.at, self.setup.world, self.setup.wf, self.setup.wi, self.i, e)

    def view(self, name: str, length: int = 0) -> np.ndarray:
        start = getattr(self.setup.at, name)
        return self.i[start:start + (length or self.setup.rule.envs)]

    def run(self, q: np.ndarray, n: np.ndarray, orders: Orders) -> Lap:
        """A lap on the table ``q`` and its counters ``n``, which change."""
        setup, at = self.setup, self.setup.at
        self.i[at.ended] = self.i[at.length_sum] = 0
        self.f[at.return_sum] = 0.0
        before = int(self.view("moves").sum())
        length = orders.stop - orders.first
        numbers = np.arange(self.lane * setup.lane_envs, (self.lane + 1) * setup.lane_envs)
        steps = length + (numbers < orders.more)
        quota = quotas(setup, self.lane, orders.episodes)
        if setup.mode == GAME:
            steps, quota = np.repeat(steps, 2), np.repeat(quota, 2)
        first, stop = orders.first, orders.stop + (1 if orders.more else 0)
        while first < stop:  # in pieces, so that whoever watches sees that it gets on
            end = min(stop, first + max(1, _PIECE // setup.rule.envs))
            q, n = self._advance(q, n, first, end, np.minimum(steps, end - first), quota)
            first, steps = end, np.maximum(steps - (end - first), 0)
            self.beat_fn()
        count, per = int(self.i[at.ended]), setup.rule.envs // setup.lane_envs
        order = [k % RECENT for k in range(max(0, count - RECENT), count)]
        env = self.i[at.env:at.env + RECENT][order] // per + self.lane * setup.lane_envs
        recent = np.stack([self.i[at.step:at.step + RECENT][order], env, self.f[at.returns:at.returns + RECENT][order],
                           self.i[at.lengths:at.lengths + RECENT][order]], axis=1).astype(np.float64)
        return Lap(self.lane, q, n, int(self.view("moves").sum()) - before, count, int(self.i[at.length_sum]),
                   float(self.f[at.return_sum]), recent, int(self.i[at.lost]))

    def _advance(self, q: np.ndarray, n: np.ndarray, first: int, stop: int, steps: np.ndarray, quota: np.ndarray
                 ) -> tuple[np.ndarray, np.ndarray]:
        """The table afterwards: the same arrays, unless it had to grow."""
        setup, rule, kernels = self.setup, self.setup.rule, self._kernels
        if self.host is not None:
            return self.host.advance(q, n, first, stop, steps, quota)
        whole = (steps == stop - first).all()
        if setup.table == "compiled" and setup.is_alone and whole:
            walk = kernels.duel_alone if setup.mode == GAME else kernels.walk_alone
            walk(rule, setup.at, setup.world, setup.wf, setup.wi, q, n, self.legal, self.f, self.i, first, stop, int(quota[0]))
            return q, n
        walk = kernels.duel if setup.mode == GAME else kernels.walk
        arrays: list[Any] = [setup.wf, setup.wi, q, n, self.legal, self.f, self.i]
        if setup.table == "list":
            arrays = [x.tolist() for x in arrays]
            walk(rule, setup.at, setup.world, *arrays, first, stop, steps.tolist(), quota.tolist())
            for mine, x in zip((q, n, self.f, self.i), (*arrays[2:4], *arrays[5:]), strict=True):
                mine[:] = x
        else:
            walk(rule, setup.at, setup.world, *arrays, first, stop, steps, quota)
        return q, n

    # where it stands

    def tensors(self) -> dict[str, np.ndarray]:
        own = {"floats": self.f, "ints": self.i} | ({"legal": self.legal} if self.host is not None and self.setup.kind.masked else {})
        return {name: x.copy() for name, x in own.items()} | (self.host.tensors() if self.host is not None else {})

    def load(self, tensors: dict[str, np.ndarray], inexact: bool = False) -> list[str]:
        """Stand where ``tensors`` say; a line for each environment that could only start anew."""
        if sorted(tensors) != sorted(names(self.setup)):
            raise ReplayError(f"lane {self.lane}: {', '.join(sorted(tensors)) or 'nothing'} of it, expected {', '.join(names(self.setup))}")
        for name, mine in (("floats", self.f), ("ints", self.i)):
            if tensors[name].shape != mine.shape or tensors[name].dtype != mine.dtype:
                raise ReplayError(f"lane {self.lane}: {name} of shape {tensors[name].shape}, expected {mine.shape}")
            mine[:] = tensors[name]
        if self.setup.learner.sparse:  # as many rows as there were
            self.setup = self.setup._replace(rule=self.setup.rule._replace(cells=int(self.i[len(self.setup.at) + 1])))
            if self.host is not None:
                self.host.setup = self.setup
        if "legal" in tensors:
            self.legal = np.array(tensors["legal"])
        return self.host.load(tensors, inexact) if self.host is not None else []

    def close(self) -> None:
        if self.host is not None:
            self.host.close()


class Host:
    """The environments of a lane that live in Python. Each episode is seeded by its address, and its actions kept, to bring them back."""

    def __init__(self, setup: Setup, lane: TableLane):
        from shoal import rng

        assert setup.make_fn is not None
        self.setup, self.lane = setup, lane
        self._seed_fn = functools.partial(rng.host_seed, setup.seed, rng.Stream.ENV, lane.lane)
        self.envs = [setup.make_fn() for _ in range(setup.lane_envs)]
        self.actions: list[list[int]] = [[] for _ in self.envs]
        self.arrays: list[Any] = []  # what a lap works on
        self._counted = isinstance(self.envs[0].spec.obs, Discrete) and not setup.kind.masked and not setup.learner.sparse
        for e in range(len(self.envs)):
            lane.i[setup.at.row + e] = self._reset(e)

    def _reset(self, e: int, ended: int = 0) -> int:
        """Begin an episode: the current one's number and ``ended`` that are not counted yet."""
        obs = self.envs[e].reset(self._seed_fn(e, int(self.lane.i[self.setup.at.episode + e]) + ended))
        self.actions[e] = []
        return self._row(obs)

    def _row(self, obs: Any) -> int:
        if self._counted and obs.__class__ is int and 0 <= obs < self.setup.rows.num:
            return int(obs)
        row = self.setup.rows.index(obs)
        if (row + 1) * self.setup.rule.num_actions > self.setup.rule.cells:
            self._grow()
        if self.setup.kind.masked:
            num = self.setup.rule.num_actions
            self.lane.legal[row * num:(row + 1) * num] = self.setup.choices.legal(self.setup.rows.mask(obs))
        return row

    def _grow(self) -> None:
        """Twice as many rows: only what is sparse comes to more than it began with."""
        setup, lane = self.setup, self.lane
        cells, more = setup.rule.cells, 2 * setup.rule.cells
        self.setup = lane.setup = setup._replace(rule=setup.rule._replace(cells=more))
        floats, ints = headed(self.setup.rule, setup.at)
        lane.i[:len(ints)] = ints
        for place, value in ((0, setup.learner.initial_value), (1, 0)):
            self.arrays[place] = grown(np.asarray(self.arrays[place]), cells, more, setup.tables, value)
        if setup.kind.masked:
            lane.legal = self.arrays[2] = np.concatenate([np.asarray(lane.legal, np.uint8), np.ones(cells, np.uint8)])
        if setup.table == "list":
            self.arrays[:3] = [np.asarray(x).tolist() for x in self.arrays[:3]]
            lane.legal = self.arrays[2]

    def advance(self, q: Any, n: Any, first: int, stop: int, steps: np.ndarray, quota: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        setup = self.setup
        try:
            if len(self.envs) == 1 and setup.table == "compiled" and not setup.kind.masked and not setup.learner.sparse:
                self._alone(q, n, first, stop, steps, quota)
                return q, n
            return self._together(q, n, first, stop, steps, quota)
        except EnvError:
            raise
        except Exception as error:
            raise EnvError(f"{self.envs[0].spec.name}: {type(error).__name__} in step or reset: {error}") from error

    def _together(self, q: Any, n: Any, first: int, stop: int, steps: np.ndarray, quota: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        setup, at, lane, kernels = self.setup, self.setup.at, self.lane, self.lane._kernels
        self.arrays = [q, n, lane.legal, lane.f, lane.i]
        kept = lane.f, lane.i
        if setup.table == "list":
            self.arrays = [x.tolist() for x in self.arrays]
            lane.legal, lane.f, lane.i = self.arrays[2:]
        f, i, num = self.arrays[3], self.arrays[4], setup.rule.num_actions
        try:
            for t in range(first, stop):
                moving = [e for e in range(setup.lane_envs) if t - first < steps[e] and i[at.episode + e] < quota[e]]
                if not moving:
                    break
                for e in range(setup.lane_envs):
                    i[at.cell + e] = -1
                for e in moving:
                    i[at.cell + e] = 0
                lane.beat_fn()
                kernels.act(*self.arrays, t)
                for e in moving:
                    self._step(e, int(i[at.cell + e]) % num, f, i)
                kernels.learn(*self.arrays, t)
        finally:
            if setup.table == "list":
                lane.legal = np.asarray(lane.legal, np.uint8)
                kept[0][:], kept[1][:] = lane.f, lane.i
                lane.f, lane.i = kept
        table, counters = np.asarray(self.arrays[0], np.float64), np.asarray(self.arrays[1], np.int64)
        if len(table) != len(q):
            return table, counters
        q[:], n[:] = table, counters
        return q, n

    def _step(self, e: int, action: int, f: Any, i: Any) -> None:
        at = self.setup.at
        obs, reward, terminated, truncated, _ = self.envs[e].step(self.setup.choices.action(action))
        self.actions[e].append(action)
        row, gain = self._row(obs), float(reward)
        if not np.isfinite(gain):
            raise EnvError(f"{self.envs[e].spec.name}: reward is not finite in environment {e}")
        over = bool(terminated or truncated)
        i[at.next_row + e], f[at.gain + e], f[at.alive + e], i[at.last + e] = row, gain, 0.0 if terminated else 1.0, int(over)
        i[at.next_place + e] = self._reset(e, 1) if over else row

    def _alone(self, q: Any, n: Any, first: int, stop: int, steps: np.ndarray, quota: np.ndarray) -> None:
        """One environment, learning and choosing in one call."""
        setup, at, lane, kernels = self.setup, self.setup.at, self.lane, self.lane._kernels
        f, i, legal, turn, index = lane.f, lane.i, lane.legal, kernels.turn, setup.rows.index
        stop = min(stop, first + int(steps[0]))
        if first >= stop or i[at.episode] >= quota[0]:
            return
        i[at.cell] = 0
        kernels.act(q, n, legal, f, i, first)
        action, left = int(i[at.cell]) % setup.rule.num_actions, int(quota[0] - i[at.episode])
        actions, log = [setup.choices.action(a) for a in range(setup.rule.num_actions)], self.actions[0].append
        env, counted, num_rows, beat_fn, final = self.envs[0], self._counted, setup.rows.num, lane.beat_fn, stop - 1
        bare, limit = isinstance(env, GymEnv), env.spec.max_episode_steps or sys.maxsize
        env_step, cut = (env.bare_step, first - int(i[at.length]) + limit - 1) if bare else (env.step, -1)  # cut: at which it counts enough
        for t in range(first, stop):
            obs, reward, terminated, truncated, _ = env_step(actions[action])
            log(action)
            if not t & 63:
                beat_fn()
            if obs.__class__ is int and counted and 0 <= obs < num_rows:
                row = obs
            else:
                row = int(obs) if counted and 0 <= obs < num_rows and obs == int(obs) else index(obs)
            onward = -1
            if terminated or truncated or t == cut:
                left, onward = left - 1, 2 * self._reset(0, 1) + (0 if terminated else 1)
                log, cut = self.actions[0].append, t + limit if bare else -1
                if not left:
                    final = t
            if t == final:
                break
            action = turn(q, n, f, i, t, row, float(reward), onward)
        i[at.next_row], f[at.gain], f[at.alive], i[at.last], i[at.next_place] = row, reward, 1.0, 0, row
        if onward >= 0:
            f[at.alive], i[at.last], i[at.next_place] = float(onward & 1), 1, onward >> 1
        kernels.learn(q, n, legal, f, i, t)  # what is done next is decided when it is done: the table may be another by then
        if bare:
            env.count = int(i[at.length])
        if not np.isfinite(q).all():
            raise EnvError(f"{self.envs[0].spec.name}: reward is not finite")

    # where they stand

    def tensors(self) -> dict[str, np.ndarray]:
        out = {f"actions{e}": np.asarray(actions, np.int64) for e, actions in enumerate(self.actions)}
        return out | {"checksum": np.array([zlib.crc32(str(int(row)).encode()) for row in self.lane.view("row")], np.int64)}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[str]:
        """Replay each environment's current episode."""
        notes, at = [], self.setup.at
        for e, env in enumerate(self.envs):
            actions = tensors[f"actions{e}"].tolist()
            row = self._row(env.reset(self._seed_fn(e, int(self.lane.i[at.episode + e]))))
            for action in actions:
                row = self._row(env.step(self.setup.choices.action(action))[0])
            self.actions[e] = actions
            if zlib.crc32(str(int(row)).encode()) != int(tensors["checksum"][e]):
                if not inexact:
                    raise ReplayError(f"{env.spec.name}: replaying an episode of environment {e} in lane {self.lane.lane} did not lead "
                                      "back to the observation it was saved at; --inexact-resume starts a new episode instead")
                notes.append(f"{env.spec.name}: environment {e} of lane {self.lane.lane} starts a new episode (replay differed)")
                self.lane.i[at.episode + e] += 1
                self.lane.i[at.row + e], self.lane.i[at.length + e], self.lane.f[at.total + e] = self._reset(e), 0, 0.0
                self.lane.i[at.action + e], self.lane.i[at.used + e] = -1, 0
        return notes

    def close(self) -> None:
        for env in self.envs:
            env.close()
