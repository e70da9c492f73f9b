"""Every learner's arithmetic by hand, on three states whose numbers are binary fractions, so that right is exactly right."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.plan import Plan
from shoal.tabular import bound, draws, vector
from shoal.tabular.lane import Orders, TableLane
from shoal.tabular.model import Model, from_transitions
from shoal.tabular.rule import BOLTZMANN, EPSILON, UCB, Kind
from shoal.tabular.setup import open_setup

TABLES = ("list", "numpy", pytest.param("compiled", marks=pytest.mark.slow))
TWO = ("list", "numpy")
P = {0: {0: [(1.0, 1, 1.0, False)], 1: [(1.0, 0, -1.0, False)]},
     1: {0: [(1.0, 2, 2.0, False)], 1: [(1.0, 0, 0.5, True)]},
     2: {0: [(1.0, 0, 3.0, True)], 1: [(1.0, 1, 0.0, False)]}}
Q = ((1.0, 4.0), (2.0, 8.0), (5.0, 3.0))
HALF: dict[str, Any] = {"discount": 0.5, "learning_rate": 0.5, "epsilon_schedule": "constant", "epsilon_start": 0.0, "ties": "first"}


def model(limit: int = 0, legal: Any = None, transitions: Any = None, start: int = 0) -> Model:
    P_ = transitions or P
    found = from_transitions(P_, np.eye(len(P_))[start], limit=limit)
    return found if legal is None else found._replace(legal=np.asarray(legal, np.uint8))


class Hand:
    """A lane that is told what to do. ``q`` and ``n`` are its table, [rows, actions], flat."""

    def __init__(self, learner: Any, source: Model, q: Any = Q, envs: int = 1, seed: int = 0):
        if learner.table == "compiled":
            pytest.importorskip("numba")
        plan = Plan(env="object:hand", num_envs=envs, lane_envs=envs, seed=seed)
        env = SimpleNamespace(model=lambda: source, spec=SimpleNamespace(max_episode_steps=source.limit))
        self.setup = open_setup(learner, plan, lambda: env)
        self.lane, (self.q, self.n), self.t = TableLane(self.setup, 0), self.setup.blank(), 0
        if q is not None:
            self.q[:] = np.ravel(q)

    def get(self, name: str) -> np.ndarray:
        return self.lane.view(name)

    def step(self, action: int | None = None, state: int | None = None) -> None:
        """A step of every environment: from ``state``, doing ``action``, where they are given."""
        for name, given in (("place", state), ("row", state), ("action", action)):
            if given is not None:
                self.get(name)[:] = given
        self.lane.run(self.q, self.n, Orders(self.t, self.t + 1, 0, -1))
        self.t += 1

    def table(self) -> list[list[float]]:
        return self.q.reshape(-1, self.setup.rule.num_actions).tolist()


@pytest.mark.parametrize("table", TABLES)
def test_q_learning(table: str):
    hand = Hand(shoal.QLearning(table=table, **HALF), model())
    hand.step(0, 0)
    assert hand.table() == [[3.0, 4.0], [2.0, 8.0], [5.0, 3.0]]  # 1 + (1 + 8/2 - 1) / 2
    hand.step(1)
    assert hand.table() == [[3.0, 4.0], [2.0, 4.25], [5.0, 3.0]]  # it ends there: 8 + (1/2 - 8) / 2, nothing follows
    assert hand.n.tolist() == [1, 0, 0, 1, 0, 0] and hand.get("row")[0] == 0 and hand.get("episode")[0] == 1


@pytest.mark.parametrize("table", TABLES)
def test_sarsa_learns_from_what_is_done_next_and_does_it(table: str):
    done = set()
    for seed in range(6):
        hand = Hand(shoal.Sarsa(table=table, **HALF | {"epsilon_start": 1.0}), model(), seed=seed)
        hand.step(0, 0)
        following = draws.pick(draws.draw(int(hand.get("key")[0]), 2), 2)
        assert hand.table()[0][0] == {0: 1.5, 1: 3.0}[following]  # 1 + (1 + 2/2 - 1) / 2, or 1 + (1 + 8/2 - 1) / 2
        hand.step()
        assert hand.n.tolist() == [1, 0, *np.eye(2)[following], 0, 0]
        done.add(following)
    assert done == {0, 1}


@pytest.mark.parametrize("table", TABLES)
def test_expected_sarsa_by_epsilon_and_by_temperature(table: str):
    hand = Hand(shoal.ExpectedSarsa(table=table, **HALF | {"epsilon_start": 0.25}), model())
    hand.step(0, 0)
    assert hand.table()[0] == [2.8125, 4.0]  # what follows: 3/4 · 8 + 1/4 · (2 + 8) / 2 = 7.25
    hand = Hand(shoal.ExpectedSarsa(table=table, exploration="boltzmann", temperature_start=2.0, **HALF), model())
    hand.step(0, 0)
    low, high = math.exp(2.0 / 2), math.exp(8.0 / 2)
    follows = (2.0 * low + 8.0 * high) / (low + high)
    assert hand.table()[0] == [pytest.approx(1 + (1 + follows / 2 - 1) / 2, rel=1e-14), 4.0]


@pytest.mark.parametrize("table", TABLES)
def test_double_q_learning_with_either_coin(table: str):
    other = ((1.0, 0.0), (6.0, 0.0), (0.0, 0.0))
    seen = set()
    for seed in range(6, 12):
        hand = Hand(shoal.DoubleQLearning(table=table, **HALF), model(), q=[Q, other], seed=seed)
        hand.step(0, 0)
        coin = draws.coin(draws.draw(int(hand.get("key")[0]), 1))
        first = hand.table()[0][0], hand.table()[3][0]
        # heads: the first table's best in state 1 is action 1, which the second values 0; tails: the second's is 0, the first values it 2
        assert first == {0: (1.0, 1.0), 1: (1.0, 1.5)}[coin], coin
        assert hand.n.tolist() == ([1] + [0] * 11 if coin == 0 else [0] * 6 + [1] + [0] * 5)
        seen.add(coin)
    assert seen == {0, 1}


@pytest.mark.parametrize("table", TABLES)
def test_several_steps_and_the_end(table: str):
    hand = Hand(shoal.NStepSarsa(n_steps=2, table=table, **HALF), model())
    hand.step(0, 0)
    assert hand.table() == [list(row) for row in Q] and not hand.n.any()  # one reward is not two
    hand.step(0)
    assert hand.table() == [[2.125, 4.0], [2.0, 8.0], [5.0, 3.0]]  # goal: 1 + (2 + 5/2) / 2
    hand.step(0)
    assert hand.table() == [[2.125, 4.0], [2.75, 8.0], [4.0, 3.0]]  # it ended: 2 + 3/2, and 3
    assert hand.get("used")[0] == 0


@pytest.mark.parametrize("table", TABLES)
def test_an_episode_shorter_than_the_steps_is_learned_whole(table: str):
    hand = Hand(shoal.NStepSarsa(n_steps=5, table=table, **HALF), model())
    for state in range(3):
        assert not hand.n.any()
        hand.step(0, state)
    assert hand.table() == [[1.875, 4.0], [2.75, 8.0], [4.0, 3.0]]  # goals: 1 + (2 + 3/2) / 2 = 2.75, 3.5 and 3
    assert hand.n.tolist() == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("table", TABLES)
def test_several_steps_cut_by_a_limit_go_on_in_value_and_not_in_memory(table: str):
    hand = Hand(shoal.NStepSarsa(n_steps=2, table=table, **HALF), model(limit=2))
    hand.step(0, 0)
    hand.step(0)
    assert hand.table() == [[2.125, 4.0], [3.25, 8.0], [5.0, 3.0]]  # 1 + (2 + 5/2) / 2 = 3.25, and 2 + 5/2 = 4.5
    assert (hand.get("used")[0], hand.get("row")[0], hand.get("episode")[0]) == (0, 0, 1)
    hand.step(0)
    assert hand.table() == [[2.125, 4.0], [3.25, 8.0], [5.0, 3.0]] and hand.get("used")[0] == 1  # a new episode


def visit_again(table: str, **own: Any) -> list[list[float]]:
    hand = Hand(shoal.SarsaLambda(table=table, trace_decay=0.5, **HALF, **own), model())
    hand.step(1, 0)
    assert hand.table()[0] == [1.0, 2.5]  # error -1 + 4/2 - 4 = -3
    hand.step(1)  # error -1 + 2.5/2 - 2.5 = -2.25, trace 1, or 1/4 more
    return hand.table()


@pytest.mark.parametrize("table", TABLES)
def test_traces_accumulate_or_are_replaced(table: str):
    assert visit_again(table, traces="replacing")[0] == [1.0, 1.375]
    assert visit_again(table, traces="accumulating")[0] == [1.0, 1.09375]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("learner", "third"), [(shoal.QLambda, [[2.5625, 4.0], [6.25, 2.0], [5.0, 3.0625]]),
                                                (shoal.SarsaLambda, [[2.56640625, 4.0], [6.265625, 2.0], [5.0, 3.0625]])])
def test_traces_reach_back_and_watkins_cuts_them(table: str, learner: Any, third: list):
    hand = Hand(learner(table=table, trace_decay=0.5, **HALF), model(), q=((1.0, 4.0), (8.0, 2.0), (5.0, 3.0)))
    hand.step(0, 0)
    assert hand.table()[0] == [3.0, 4.0]  # error 1 + 8/2 - 1 = 4
    hand.step(0)
    assert hand.table()[:2] == [[2.5625, 4.0], [6.25, 2.0]]  # error 2 + 5/2 - 8 = -3.5, of which a quarter reaches back
    hand.step(1)  # not the best of state 2; error 0 + 6.25/2 - 3 = 1/8
    assert hand.table() == third
    assert hand.get("used")[0] == (1 if learner is shoal.QLambda else 3)
    hand.step(1, 1)
    assert hand.get("used")[0] == 0  # the episode is over


def test_traces_that_are_too_small_are_dropped():
    for least, kept in ((0.25, 2), (0.26, 1)):
        hand = Hand(shoal.SarsaLambda(table="list", trace_decay=0.5, least=least, **HALF), model())
        hand.step(0, 0)
        hand.step(0)
        assert (hand.table()[0][0] == 3.0) == (kept == 1)


@pytest.mark.parametrize("table", TABLES)
def test_a_trace_starts_anew_in_an_episode_that_was_cut(table: str):
    hand = Hand(shoal.QLambda(table=table, trace_decay=0.5, **HALF), model(limit=1))
    hand.step(0, 0)
    assert hand.table()[0] == [3.0, 4.0] and hand.get("used")[0] == 0  # the error has what follows in it: 1 + 8/2 - 1


@pytest.mark.parametrize("table", TABLES)
def test_monte_carlo(table: str):
    hand = Hand(shoal.MonteCarlo(table=table, return_steps=9, **HALF), model())
    for state in range(3):
        assert not hand.n.any()
        hand.step(0, state)
    assert hand.table() == [[1.875, 4.0], [2.75, 8.0], [4.0, 3.0]]  # returns 2.75, 3.5 and 3
    hand.step(1, 0)
    hand.step(1)
    hand.step(0)
    hand.step(1)  # returns of (0, 1): -1 + (-1 + (1 + .25) / 2) / 2, and before it -1 + that / 2: every visit counts, the newest first
    assert hand.n.tolist() == [2, 2, 1, 1, 1, 0]
    later = -1 + (1 + 0.5 / 2) / 2
    first = -1 + later / 2
    value = 4.0 + (later - 4.0) / 2
    assert hand.table()[0][1] == value + (first - value) / 2


@pytest.mark.parametrize("table", TABLES)
def test_monte_carlo_cut_by_a_limit_takes_the_table_for_the_rest(table: str):
    for source, steps in ((model(limit=2), 9), (model(), 2)):
        hand = Hand(shoal.MonteCarlo(table=table, return_steps=steps, **HALF), source)
        hand.step(0, 0)
        hand.step(0)
        assert hand.table() == [[2.125, 4.0], [3.25, 8.0], [5.0, 3.0]]  # 2 + 5/2 = 4.5 and 1 + 4.5/2 = 3.25


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("sweeps", "values"), [(1, [1.0, 2.0, 3.0]), (2, [2.0, 3.5, 3.0]), (9, [2.75, 3.5, 3.0])])
def test_sweeping_reaches_back_as_far_as_it_may(table: str, sweeps: int, values: list):
    hand = Hand(shoal.DynaQ(planning_steps=sweeps, table=table, **HALF), model(), q=np.zeros(6))
    hand.step(0, 0)
    assert hand.table()[0] == [1.0, 0.0]
    hand.step(0)
    hand.step(0)
    assert [row[0] for row in hand.table()] == values
    assert hand.n.tolist() == [1, 0, 1, 0, 1, 0]


def test_a_model_is_the_mean_of_what_was_seen():
    hand = Hand(shoal.DynaQ(planning_steps=1, model_outcomes=2, table="list", **HALF), model())
    rule, at, kernels = hand.setup.rule, hand.setup.at, bound.plain(hand.setup.kind)
    f, i = hand.lane.f.tolist(), hand.lane.i.tolist()
    for gain, after in ((1.0, 2), (2.0, 2), (6.0, 5), (9.0, 4)):  # twice to row 1, once to the end in row 2; no place for another
        kernels.note(rule, at, f, i, 0, gain, after)
    assert kernels.backup(rule, at, hand.q.tolist(), [1], f, i, 0) == (1.0 + 2.0 + 6.0 + 0.5 * 2 * 8.0) / 3
    assert i[at.lost] == 1


def test_sweeping_goes_through_an_end_to_nobody():
    """State 0 is where (1, 1) ends, and what (1, 1) is worth does not follow from it."""
    hand = Hand(shoal.DynaQ(planning_steps=9, table="list", **HALF), model(), q=np.zeros(6))
    hand.step(1, 1)
    hand.step(0, 0)
    assert hand.table() == [[1.25, 0.0], [0.0, 0.5], [0.0, 0.0]]


def test_the_most_urgent_is_taken_first():
    hand = Hand(shoal.DynaQ(table="list", **HALF), model(transitions=[[[(1.0, 0, 0.0, True)]] * 4] * 50), q=None)
    at, kernels = hand.setup.at, bound.plain(hand.setup.kind)
    f, i, heap, source = hand.lane.f.tolist(), hand.lane.i.tolist(), {}, np.random.default_rng(1)
    for number in range(4000):
        if heap and source.random() < (0.2 if number < 1000 else 0.45):
            assert heap.pop(cell := kernels.pop(at, f, i)) >= max(heap.values(), default=0.0), cell
        else:
            cell, weight = int(source.integers(200)), float(source.random())
            kernels.press(at, f, i, cell, weight, 0.1)
            if weight > 0.1:
                heap[cell] = max(weight, heap.get(cell, 0.0))
        assert i[at.size] == len(heap) and (number != 999 or len(heap) > 100)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("learner", [shoal.QLearning, shoal.NStepSarsa, shoal.SarsaLambda, shoal.MonteCarlo])
def test_a_rate_falls_with_visits(table: str, learner: Any):
    """rate · v / (v + visits so far): half of it after v of them."""
    hand = Hand(learner(table=table, learning_rate_visits=2.0, **HALF), model(), q=np.zeros(6))
    right = 0.0
    for pace in (0.5, 1 / 3, 0.25, 0.2):
        hand.step(0, 2)
        right += pace * (3.0 - right)
        assert hand.table()[2][0] == pytest.approx(right, rel=1e-15)


# choosing ------------------------------------------------------------------------------------------------------------

LEARNERS = (shoal.QLearning, shoal.Sarsa, shoal.ExpectedSarsa, shoal.DoubleQLearning, shoal.NStepSarsa, shoal.QLambda, shoal.SarsaLambda,
            shoal.MonteCarlo, shoal.DynaQ)


def chosen(table: str, kind: Kind, q: Any, *, level: float = 0.0, n: Any = None, legal: Any = None, num: int = 20_000, bonus: float = 1.0
           ) -> np.ndarray:
    """How often each action of a row is chosen, over ``num`` draws."""
    hand = Hand(shoal.QLearning(table="list", **HALF | {"ucb_bonus": bonus}), model(transitions=[[[(1.0, 0, 0.0, True)]] * len(q)]), q=q)
    lane, rule = hand.lane, hand.setup.rule
    n = np.zeros(len(q), np.int64) if n is None else np.asarray(n)
    legal = np.ones(1, np.uint8) if legal is None else np.asarray(legal, np.uint8)
    bits = draws.draw_batch(np.full(num, 2**63 + 5, np.uint64), np.arange(num))
    if table == "list":
        choose = bound.plain(kind).choose
        actions = [choose(rule, hand.q.tolist(), n.tolist(), legal.tolist(), 0, level, b) for b in bits.tolist()]
    else:
        batch = vector.Lane(kind, rule, hand.setup.at, hand.q, n, legal, lane.f, lane.i)
        actions = vector.choose(batch, np.zeros(num, np.int64), level, bits)
    return np.bincount(actions, minlength=len(q))


def close(found: np.ndarray, shares: Any) -> bool:
    """By chi-square at 0.999, for up to five possibilities."""
    expected = np.asarray(shares) * found.sum()
    possible = expected > 0
    chi = float(((found - expected)[possible] ** 2 / expected[possible]).sum())
    return not found[~possible].any() and chi < {0: 1e-9, 1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}[int(possible.sum()) - 1]


@pytest.mark.parametrize("table", TWO)
def test_epsilon_and_ties(table: str):
    tied = (1.0, 2.0, 2.0, 0.0, 2.0)
    assert close(chosen(table, Kind(), tied), [0, 1 / 3, 1 / 3, 0, 1 / 3])
    assert chosen(table, Kind(ties=0), tied).tolist() == [0, 20_000, 0, 0, 0]
    assert close(chosen(table, Kind(ties=0), tied, level=0.5), [0.1, 0.6, 0.1, 0.1, 0.1])
    assert close(chosen(table, Kind(), tied, level=1.0), [0.2] * 5)
    assert close(chosen(table, Kind(masked=1), tied, level=0.3, legal=[1, 0, 1, 0, 1]), [0.1, 0, 0.45, 0, 0.45])


@pytest.mark.parametrize("table", TWO)
def test_temperature(table: str):
    worth = np.array([1.0, 2.0, 1.5, -3.0, 2.0])
    kind = Kind(explore=BOLTZMANN)
    for level in (0.5, 1.0, 10.0):
        assert close(chosen(table, kind, worth, level=level), np.exp(worth / level) / np.exp(worth / level).sum()), level
    legal, parts = np.array([1, 0, 1, 1, 0]), np.exp(worth) * [1, 0, 1, 1, 0]
    assert close(chosen(table, kind._replace(masked=1), worth, level=1.0, legal=legal), parts / parts.sum())
    assert chosen(table, kind, (0.0, 800.0, 0.0), level=1.0).tolist() == [0, 20_000, 0]  # exp alone would overflow


@pytest.mark.parametrize("table", TWO)
def test_upper_bounds(table: str):
    kind, worth = Kind(explore=UCB), (1.0, 0.0, 9.0)
    assert close(chosen(table, kind, worth, n=[0, 3, 0]), [0.5, 0, 0.5])  # never tried first, however little it is worth
    assert chosen(table, kind._replace(masked=1), (1.0, 0.0, 9.0), n=[4, 1, 0], legal=[1, 1, 0])[2] == 0
    for bonus, right in ((1.0, 0), (2.0, 1)):  # 1 + c · sqrt(ln 5 / 4) against c · sqrt(ln 5 / 1): 1.634 and 1.269, 2.269 and 2.537
        assert chosen(table, kind, (1.0, 0.0), n=[4, 1], bonus=bonus, num=10)[right] == 10


@pytest.mark.parametrize("table", TABLES)
def test_everything_is_tried_once_first(table: str):
    orders = set()
    for seed in range(5):
        stay = [[[(1.0, 0, float(action), False)] for action in range(4)]]
        hand, order = Hand(shoal.QLearning(table=table, exploration="ucb", **HALF), model(transitions=stay), q=None, seed=seed), []
        for _ in range(4):
            before = hand.n.copy()
            hand.step()
            order.append(int(np.argmax(hand.n - before)))
        assert sorted(order) == [0, 1, 2, 3]
        orders.add(tuple(order))
    assert len(orders) > 1


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("learner", LEARNERS)
def test_what_is_not_legal_is_not_done_nor_counted_on(table: str, learner: Any):
    """Illegal pairs are worth most, and nothing shows it."""
    legal = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
    P_ = [[[(1.0, (s + a + 1) % 3, 1.0, a == 2)] for a in range(3)] for s in range(3)]
    for own in ({"epsilon_start": 0.5, "exploration": "epsilon"}, {"exploration": "boltzmann"}, {"exploration": "ucb"}):
        if learner is shoal.ExpectedSarsa and own["exploration"] == "ucb":
            continue
        hand = Hand(learner(table=table, **HALF | own), model(legal=legal, transitions=P_, limit=7), q=None, envs=2)
        bad = np.tile(legal.reshape(-1) == 0, hand.setup.tables)
        hand.q[bad] = 1e6
        hand.lane.run(hand.q, hand.n, Orders(0, 300, 0, -1))
        assert hand.n.sum() > 580 and not hand.n[bad].any() and (hand.q[bad] == 1e6).all()
        assert hand.q[~bad].min() >= 0 and hand.q[~bad].max() <= 2.0  # at most 1 / (1 - discount)


@pytest.mark.parametrize("table", TWO)
def test_an_optimist_tries_everything(table: str):
    stay = [[[(1.0, 0, 0.0, True)]] * 5]
    for start, tried in ((1.0, 5), (0.0, 1), (-1.0, 1)):
        hand = Hand(shoal.QLearning(table=table, initial_value=start, **HALF), model(transitions=stay), q=None)
        assert (hand.q == start).all()
        hand.lane.run(hand.q, hand.n, Orders(0, 20, 0, -1))
        assert np.count_nonzero(hand.n) == tried


# schedules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "middle", "end"), [("constant", 0.8, 0.8), ("linear", 0.5, 0.2), ("exponential", 0.4, 0.2)])
def test_schedules(schedule: str, middle: float, end: float):
    own = HALF | {"epsilon_schedule": schedule, "epsilon_start": 0.8, "epsilon_end": 0.2, "horizon": 800.0, "epsilon_fraction": 0.5}
    hand = Hand(shoal.QLearning(table="list", **own), model(), envs=4)
    level_at, rule = bound.plain(hand.setup.kind).level_at, hand.setup.rule
    levels = [level_at(rule, t) for t in (0, 50, 100, 101, 10**9)]  # half of 800 steps of 4 environments are 100 vector steps
    assert levels == pytest.approx([0.8, middle, end, end, end], rel=1e-14) and levels[0] == 0.8 and levels[3] == end


def test_a_temperature_follows_the_schedule_and_may_rise():
    own = HALF | {"epsilon_schedule": "exponential", "exploration": "boltzmann", "temperature_start": 0.5, "temperature_end": 8.0,
                  "horizon": 100.0, "epsilon_fraction": 1.0}
    hand = Hand(shoal.QLearning(table="list", **own), model())
    level_at, rule = bound.plain(hand.setup.kind).level_at, hand.setup.rule
    assert [level_at(rule, t) for t in (0, 25, 50, 75, 100, 200)] == pytest.approx([0.5, 1.0, 2.0, 4.0, 8.0, 8.0], rel=1e-14)
    assert hand.setup.kind.explore == BOLTZMANN != EPSILON
