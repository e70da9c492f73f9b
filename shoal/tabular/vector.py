"""Choosing, stepping and learning for all environments of a lane at once, in NumPy: the numbers of ``kernels``, to the bit.

What is read and chosen is read and chosen together. Changes are applied in rounds: the first of every pair, then the second, and so on,
which is their order; what remembers more than a step is written environment by environment.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np

from shoal.tabular import bound, draws
from shoal.tabular.elementary import _LEAST, _LN2_HIGH, _LN2_LOW, _PER_LN2, poly_exp
from shoal.tabular.rule import BOLTZMANN, DOUBLE, EPSILON, FLOATS, GREEDY, ONE_STEP, RECENT, TAKEN, TRACES, At, Kind, Rule, World


@functools.cache
def load(kind: Kind) -> types.SimpleNamespace:
    """The kernels of a kind."""
    return types.SimpleNamespace(walk=functools.partial(walk, kind), act=functools.partial(act, kind), learn=functools.partial(learn, kind),
                                 duel=bound.plain(kind).duel, turn=bound.plain(kind).turn)


class Lane:
    """A lane's arrays by name, as views; and what its numbers are read by."""

    def __init__(self, kind: Kind, rule: Rule, at: At, q: np.ndarray, n: np.ndarray, legal: np.ndarray, f: np.ndarray, i: np.ndarray):
        self.kind, self.rule, self.at, self.q, self.n, self.legal, self.f, self.i = kind, rule, at, q, n, legal, f, i
        self.plain = bound.plain(kind)
        self.keys = self["key"].view(np.uint64)
        self.rows = q[:rule.cells].reshape(-1, rule.num_actions)
        self.other = q[rule.cells:].reshape(-1, rule.num_actions) if kind.target == DOUBLE else None
        self.allowed = legal.reshape(-1, rule.num_actions).astype(bool) if kind.masked else None

    def __getitem__(self, name: str) -> np.ndarray:
        start = getattr(self.at, name)
        return (self.f if name in FLOATS else self.i)[start:start + self.rule.envs]

    def worth(self, rows: np.ndarray) -> np.ndarray:
        """[B, A]: -inf where an action is not legal."""
        x = self.rows[rows] if self.other is None else self.rows[rows] + self.other[rows]
        return x if self.allowed is None else np.where(self.allowed[rows], x, -np.inf)

    def legal_at(self, rows: np.ndarray) -> np.ndarray:
        return np.ones((len(rows), self.rule.num_actions), bool) if self.allowed is None else self.allowed[rows]


def exp(x: np.ndarray) -> np.ndarray:
    """``elementary.exp``; -inf gives 0."""
    x = np.maximum(x, 2 * _LEAST)
    whole = np.floor(x * _PER_LN2 + 0.5)
    return np.where(x < _LEAST, 0.0, np.ldexp(poly_exp(x - whole * _LN2_HIGH - whole * _LN2_LOW), whole.astype(np.int64)))


def _nth(marked: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The place of the true entry number ``number`` [B] in every row of ``marked`` [B, A]."""
    return np.argmax(np.cumsum(marked, axis=1) > number[:, None], axis=1)


def choose(lane: Lane, rows: np.ndarray, level: float, bits: np.ndarray) -> np.ndarray:
    """An action for each row, as exploration has it."""
    x, legal = lane.worth(rows), lane.legal_at(rows)
    if lane.kind.explore == EPSILON:
        best = x == x.max(axis=1, keepdims=True)
        greedy = _nth(best, draws.pick_batch(bits, best.sum(axis=1))) if lane.kind.ties else np.argmax(best, axis=1)
        return np.where(draws.half_batch(bits) < level, _nth(legal, draws.pick_batch(bits, legal.sum(axis=1))), greedy)
    if lane.kind.explore == BOLTZMANN:
        return _by_worth(x, legal, level, bits)
    return _by_bound(lane, rows, x, legal, bits)


def _by_worth(x: np.ndarray, legal: np.ndarray, level: float, bits: np.ndarray) -> np.ndarray:
    parts = np.where(legal, exp((x - x.max(axis=1, keepdims=True)) / level), 0.0)
    total = np.zeros(len(x))
    for a in range(x.shape[1]):
        total = total + parts[:, a]
    left, chosen, going = draws.half_batch(bits) * total, np.full(len(x), -1), np.ones(len(x), bool)
    for a in range(x.shape[1]):
        here = going & legal[:, a]
        chosen = np.where(here, a, chosen)
        left = np.where(here, left - parts[:, a], left)
        going &= ~(here & (left < 0.0))
    return chosen


def _by_bound(lane: Lane, rows: np.ndarray, x: np.ndarray, legal: np.ndarray, bits: np.ndarray) -> np.ndarray:
    cells, rule = lane.rule.cells, lane.rule
    tried = lane.n[:cells].reshape(-1, rule.num_actions)[rows]
    if lane.kind.target == DOUBLE:
        tried = tried + lane.n[cells:].reshape(-1, rule.num_actions)[rows]
    total, new = np.where(legal, tried, 0).sum(axis=1), legal & (tried == 0)
    spread = np.array([lane.plain.log(int(s)) if s else 0.0 for s in total])
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.argmax(np.where(legal, x + rule.bonus * np.sqrt(spread[:, None] / tried), -np.inf), axis=1)
    return np.where(new.any(axis=1), _nth(new, draws.pick_batch(bits, new.sum(axis=1))), top)


def value(lane: Lane, rows: np.ndarray, taken: np.ndarray, level: float, side: np.ndarray) -> np.ndarray:
    """What rows are worth to whoever stands there next."""
    target, every = lane.kind.target, np.arange(len(rows))
    if target == GREEDY:
        return lane.worth(rows).max(axis=1)
    if target == TAKEN:
        return lane.rows[rows, taken]
    if target == DOUBLE:
        assert lane.other is not None
        first, second = lane.rows[rows], lane.other[rows]
        mine = np.where(side[:, None] == 1, second, first)
        chosen = np.argmax(np.where(lane.legal_at(rows), mine, -np.inf), axis=1)
        return np.where(side == 1, first[every, chosen], second[every, chosen])
    x, legal = lane.rows[rows], lane.legal_at(rows)
    top, total, weight = lane.worth(rows).max(axis=1), np.zeros(len(rows)), np.zeros(len(rows))
    shares = exp((lane.worth(rows) - top[:, None]) / level) if lane.kind.explore == BOLTZMANN else np.ones_like(x)
    for a in range(x.shape[1]):
        weight = np.where(legal[:, a], weight + shares[:, a], weight)
        total = np.where(legal[:, a], total + shares[:, a] * x[:, a], total)
    return total / weight if lane.kind.explore == BOLTZMANN else (1.0 - level) * top + level * (total / weight)


def decide(lane: Lane, here: np.ndarray, t: int) -> None:
    """What environments ``here`` do at vector step ``t``."""
    rows, action, level = lane["row"][here], lane["action"][here], lane.plain.level_at(lane.rule, t)
    new = choose(lane, rows, level, draws.draw_batch(lane.keys[here], 2 * lane["moves"][here]))
    cells = rows * lane.rule.num_actions + np.where(action < 0, new, action)
    if lane.kind.family == TRACES and lane.kind.target == GREEDY:
        lane["used"][here[lane.q[cells] < lane.worth(rows).max(axis=1)]] = 0
    lane["cell"][here] = cells


def roll(lane: Lane, world: World, wf: np.ndarray, wi: np.ndarray, here: np.ndarray) -> None:
    """One step of environments ``here`` by their model."""
    pair = lane["place"][here] * lane.rule.num_actions + lane["cell"][here] % lane.rule.num_actions
    bits = draws.draw_batch(lane.keys[here], 2 * lane["moves"][here] + 1)
    if world.even:
        k = pair * world.outcomes + draws.share_batch(bits, world.outcomes)
    else:
        chance = wf[world.chance + pair[:, None] * world.outcomes + np.arange(world.outcomes - 1)]
        k = pair * world.outcomes + (draws.unit_batch(bits)[:, None] >= chance).sum(axis=1)
    place, over = wi[world.after + k], wi[world.over + k] != 0
    lane["coin"][here], lane["gain"][here], lane["next_place"][here] = draws.coin_batch(bits), wf[world.reward + k], place
    lane["next_row"][here], lane["alive"][here] = wi[world.row + place], np.where(over, 0.0, 1.0)
    lane["last"][here] = over | (lane["length"][here] + 1 >= world.limit if world.limit else False)


def read(lane: Lane, here: np.ndarray, t: int) -> None:
    """All that is needed of the table before it is written."""
    rule, level, rows = lane.rule, lane.plain.level_at(lane.rule, t + 1), lane["next_row"][here]
    alive, action = lane["alive"][here] > 0.0, np.full(len(here), -1)
    if lane.kind.target == TAKEN:
        action = np.where(alive, choose(lane, rows, level, draws.draw_batch(lane.keys[here], 2 * lane["moves"][here] + 2)), -1)
    boot = np.where(alive, rule.discount * value(lane, rows, action, level, lane["coin"][here]), 0.0)
    lane["action"][here] = np.where(lane["last"][here] != 0, -1, action)
    if lane.kind.family == TRACES:
        boot = lane["gain"][here] + boot - lane.q[lane["cell"][here]]
    lane["boot"][here] = boot


def write(lane: Lane, here: np.ndarray) -> None:
    """Every environment's change, in order."""
    rule, kind = lane.rule, lane.kind
    if kind.family != ONE_STEP:
        for e in here.tolist():
            lane.plain.write(rule, lane.at, lane.q, lane.n, lane.legal, lane.f, lane.i, e)
        return
    cells, goals = lane["cell"][here], lane["gain"][here] + lane["boot"][here]
    if kind.target == DOUBLE:
        cells = cells + lane["coin"][here] * rule.cells
    left = np.arange(len(cells))
    while len(left):
        _, first = np.unique(cells[left], return_index=True)  # the first of every pair that is left
        some, mine = cells[left[first]], goals[left[first]]
        lane.n[some] += 1
        pace = rule.rate * rule.rate_visits / (rule.rate_visits + (lane.n[some] - 1)) if kind.by_visits else rule.rate
        lane.q[some] += pace * (mine - lane.q[some])
        left = np.delete(left, first)


def settle(lane: Lane, here: np.ndarray, t: int) -> None:
    """Move on: count the step, and the episodes that ended."""
    at, f, i = lane.at, lane.f, lane.i
    lane["place"][here], lane["row"][here] = lane["next_place"][here], lane["next_row"][here]
    lane["moves"][here] += 1
    lane["length"][here] += 1
    lane["total"][here] += lane["gain"][here]
    for e in here[lane["last"][here] != 0].tolist():
        k = int(i[at.ended]) % RECENT
        f[at.returns + k], i[at.lengths + k], i[at.step + k], i[at.env + k] = f[at.total + e], i[at.length + e], t, e
        i[at.ended] += 1
        f[at.return_sum] += f[at.total + e]
        i[at.length_sum] += i[at.length + e]
        i[at.episode + e] += 1
        i[at.length + e], f[at.total + e] = 0, 0.0


def walk(kind: Kind, rule: Rule, at: At, world: World, wf: Any, wi: Any, q: Any, n: Any, legal: Any, f: Any, i: Any, first: int, stop: int,
         steps: Any, quota: Any) -> int:
    """``kernels.walk``."""
    lane = Lane(kind, rule, at, q, n, legal, f, i)
    for t in range(first, stop):
        moves = (t - first < steps) & (lane["episode"] < quota)
        here = np.flatnonzero(moves)
        lane["cell"][~moves] = -1
        if not len(here):
            return t - first
        decide(lane, here, t)
        roll(lane, world, wf, wi, here)
        read(lane, here, t)
        write(lane, here)
        settle(lane, here, t)
        over = here[lane["last"][here] != 0]
        if len(over):
            u = draws.unit_batch(draws.draw_batch(lane.keys[over] ^ np.uint64(draws.STARTS), lane["episode"][over]))
            chance = wf[world.start_chance:world.start_chance + world.num_starts - 1]
            place = wi[world.start + (u[:, None] >= chance).sum(axis=1)]
            lane["place"][over], lane["row"][over] = place, wi[world.row + place]
    return stop - first


def act(kind: Kind, q: Any, n: Any, legal: Any, f: Any, i: Any, t: int) -> None:
    """``kernels.act``."""
    plain = bound.plain(kind)
    lane = Lane(kind, plain.rule_of(f, i), plain.at_of(i), q, n, legal, f, i)
    decide(lane, np.flatnonzero(lane["cell"] >= 0), t)


def learn(kind: Kind, q: Any, n: Any, legal: Any, f: Any, i: Any, t: int) -> None:
    """``kernels.learn``."""
    plain = bound.plain(kind)
    lane = Lane(kind, plain.rule_of(f, i), plain.at_of(i), q, n, legal, f, i)
    here = np.flatnonzero(lane["cell"] >= 0)
    lane["coin"][here] = draws.coin_batch(draws.draw_batch(lane.keys[here], 2 * lane["moves"][here] + 1))
    read(lane, here, t)
    write(lane, here)
    settle(lane, here, t)
    lane["row"][here] = lane["place"][here]
