"""Mistakes that other systems of this kind have made with tables, each held off by a test of its name."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shoal
from shoal import envs
from shoal.plan import Plan
from shoal.specs import Discrete, EnvSpec
from shoal.tabular.engine import Here
from shoal.tabular.lane import Orders, TableLane
from shoal.tabular.merge import merged
from shoal.tabular.setup import Setup, open_setup

LEARNERS = (shoal.QLearning, shoal.Sarsa, shoal.ExpectedSarsa, shoal.DoubleQLearning, shoal.NStepSarsa, shoal.QLambda, shoal.SarsaLambda,
            shoal.MonteCarlo, shoal.DynaQ)
TABLES = ("list", "numpy", pytest.param("compiled", marks=pytest.mark.slow))
HALF: dict[str, Any] = {"discount": 0.5, "learning_rate": 0.5, "epsilon_schedule": "constant", "epsilon_start": 0.0}


class Endless:
    """One state in which every step pays 1; a step never ends the process, or (``over``) always does."""

    def __init__(self, limit: int, over: bool = False):
        self.spec, self.over = EnvSpec("endless", obs=Discrete(1), action=Discrete(1), max_episode_steps=limit), over

    def model(self) -> Any:
        return [[[(1.0, 0, 1.0, self.over)]]], np.ones(1)


class EndlessInPython:
    """The same, stepped in Python."""

    def __init__(self, limit: int, over: bool = False):
        self.spec, self.over, self.steps = Endless(limit).spec, over, 0

    def reset(self, seed: int) -> int:
        self.steps = 0
        return 0

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self.steps += 1
        return 0, 1.0, self.over, self.steps == self.spec.max_episode_steps, {}

    def close(self) -> None:
        """Nothing to let go of."""


def opened(learner: Any, make_fn: Any, num_envs: int = 1, **plan: Any) -> Setup:
    if learner.table == "compiled":
        pytest.importorskip("numba")
    return open_setup(learner, Plan(**{"env": "object:given", "num_envs": num_envs, "lane_envs": num_envs} | plan), make_fn)


def train(tmp_path: Path, env: Any = "FrozenLake-v1", learner: Any = None, **settings: Any) -> Any:
    """A small run in a folder of its own."""
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    who = learner or shoal.QLearning(table="numpy", horizon=4000.0, sync_every=50)
    return shoal.train(who, env, **{"seed": 3, "out": folder, "quiet": True, "eval_episodes": 2, "log_every": 400} | settings)


# truncation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["model", "python"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_truncation_bootstraps_and_termination_does_not(learner: Any, path: str):
    """Paid 1 for ever at a discount of 1/2 is worth 2, however often one stops watching; paid once, 1."""
    for limit, over, worth in ((1, False, 2.0), (3, False, 2.0), (5, True, 1.0)):
        world, how = (Endless, "auto") if path == "model" else (EndlessInPython, "ported")
        setup = opened(learner(table="list", **HALF), lambda w=world, at=limit, end=over: w(at, end), path=how)
        lane, (q, n) = TableLane(setup, 0), setup.blank()
        lap = lane.run(q, n, Orders(0, 300, 0, -1))
        assert q == pytest.approx(worth, abs=1e-5)  # a change of a millionth is not swept on
        assert (lap.steps, lap.episodes) == (300, 300 // (1 if over else limit))


def test_an_environment_that_is_only_ever_truncated_does_not_hang(tmp_path: Path):
    run = train(tmp_path, Endless(limit=9), episodes=7, num_envs=1)
    assert (run.result["episodes"], run.result["steps"], run.result["mean_return"]) == (7, 63, 9.0)
    run = train(tmp_path, "CliffWalking-v1", episodes=5, max_episode_steps=13, num_envs=1)
    assert run.result["episodes"] == 5 and run.result["steps"] <= 65 and run.result["eval_return"] == -13.0


# repeated pairs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_repeated_pairs_in_a_step_are_all_learned(table: str):
    """Goals are read before anything is written: 1 + 1/2 · 1 for all three, applied one after the other."""
    setup = opened(shoal.QLearning(table=table, initial_value=1.0, **HALF), lambda: Endless(0), num_envs=3)
    lane, (q, n) = TableLane(setup, 0), setup.blank()
    lane.run(q, n, Orders(0, 1, 0, -1))
    assert q.tolist() == [1.4375] and n.tolist() == [3]  # 1, 1.25, 1.375, 1.4375


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("by_visits", [0.0, 4.0])
def test_repeated_pairs_are_learned_in_the_order_of_the_environments(table: str, by_visits: float):
    chances = [[[(0.25, 0, 1.0, True), (0.25, 0, -3.0, True), (0.25, 1, 7.0, True), (0.25, 1, 0.0, True)]] * 2] * 2
    env = SimpleNamespace(model=lambda: (chances, np.full(2, 0.5)), spec=SimpleNamespace(max_episode_steps=0))
    learner = shoal.QLearning(table=table, learning_rate_visits=by_visits, **HALF | {"epsilon_start": 1.0})
    setup = opened(learner, lambda: env, num_envs=12)
    lane, (q, n), at = TableLane(setup, 0), setup.blank(), setup.at
    lane.run(q, n, Orders(0, 1, 0, -1))
    cells, gains = lane.view("cell").tolist(), lane.f[at.gain:at.gain + 12].tolist()
    assert max(cells.count(cell) for cell in cells) >= 3

    def folded(pairs: Any) -> list[float]:
        values, visits = [0.0] * 4, [0] * 4
        for cell, gain in pairs:
            pace = 0.5 * by_visits / (by_visits + visits[cell]) if by_visits else 0.5
            values[cell] += pace * (gain - values[cell])
            visits[cell] += 1
        return values

    pairs = list(zip(cells, gains, strict=True))
    assert q.tolist() == folded(pairs) != folded(pairs[::-1])
    assert n.tolist() == [cells.count(cell) for cell in range(4)]


# merging -------------------------------------------------------------------------------------------------------------


def test_merging_weighs_by_visits_and_leaves_what_nobody_saw():
    plan = Plan(env="FrozenLake-v1", num_envs=8, lane_envs=1, seed=2)
    setup = open_setup(shoal.QLearning(table="list", initial_value=0.3, learning_rate=0.2), plan, lambda: envs.from_plan(plan))
    crew, (q, n) = Here(setup), setup.blank()
    laps = crew.run(q, n, Orders(0, 60, 0, -1))
    assert (q == 0.3).all() and not n.any()  # every lane had a table of its own
    values, counts = merged(q, n, [(lap.q, lap.n) for lap in laps])
    visits = np.stack([lap.n for lap in laps])
    assert counts.tolist() == visits.sum(0).tolist() and counts.sum() == 480
    seen, alone = (visits > 0).sum(0), np.argmax(visits > 0, axis=0)
    assert (seen == 0).sum() > 4 and (seen == 1).sum() > 2 and (seen > 2).sum() > 4
    assert (values[seen == 0] == 0.3).all()
    for cell in range(len(values)):
        if seen[cell] == 1:
            assert values[cell] == laps[alone[cell]].q[cell]
        elif seen[cell]:
            right = sum(int(lap.n[cell]) * float(lap.q[cell]) for lap in laps) / int(counts[cell])
            assert values[cell] == pytest.approx(right, rel=1e-12)


def test_merging_one_lane_changes_nothing(tmp_path: Path):
    shas = {train(tmp_path, learner=shoal.QLearning(table="numpy", horizon=4000.0, sync_every=every), num_envs=num_envs,
                  lane_envs=num_envs, steps=3000).result["params_sha256"] for every in (7, 10**9) for num_envs in (1,)}
    assert len(shas) == 1
    merged_often, merged_once = (train(tmp_path, learner=shoal.QLearning(table="numpy", horizon=4000.0, sync_every=every), num_envs=2,
                                       lane_envs=1, steps=3000).result["params_sha256"] for every in (7, 10**9))
    assert merged_often != merged_once


# budgets -------------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "one table": {"num_envs": 8}, "lanes": {"num_envs": 8, "lane_envs": 1}, "lanes of two": {"num_envs": 8, "lane_envs": 2},
    "python": {"num_envs": 8, "path": "ported"}, "python, lanes": {"num_envs": 8, "lane_envs": 4, "path": "ported"},
    "game": {"num_envs": 8, "env": "tictactoe", "learner": shoal.QLearning(table="list", horizon=4000.0, sync_every=50)},
    "game, lanes": {"num_envs": 8, "lane_envs": 1, "env": "tictactoe",
                    "learner": shoal.QLearning(table="list", horizon=4000.0, sync_every=50)},
    "one environment": {"num_envs": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_budget_of_steps_is_exact_and_a_longer_one_goes_on_from_there(tmp_path: Path, name: str):
    part = train(tmp_path, steps=1003, **SETTINGS[name])
    assert (part.result["steps"], part.result["updates"], part.result["stopped_by"]) == (1003, 1003, "steps")
    engine = part._loop.engine
    assert engine.table()[1].sum() == 1003 if "game" not in name else engine.table()[1].sum() > 900  # open moves are not learned yet
    again = shoal.resume(part.folder, steps=2)
    assert again.result["steps"] == 1005
    again = shoal.resume(part.folder, steps=2995)
    whole = train(tmp_path, steps=4000, **SETTINGS[name])
    for field in ("params_sha256", "steps", "updates", "episodes", "mean_return", "eval_return"):
        assert again.result[field] == whole.result[field], field
    assert part.result["params_sha256"] != whole.result["params_sha256"]


@pytest.mark.parametrize("steps", [1, 7, 8, 9])
def test_a_budget_smaller_than_a_vector_of_environments(tmp_path: Path, steps: int):
    for lane_envs in (8, 1):
        run = train(tmp_path, steps=steps, num_envs=8, lane_envs=lane_envs)
        assert run.result["steps"] == steps and run._loop.engine.table()[1].sum() == steps


@pytest.mark.parametrize("name", SETTINGS)
def test_a_budget_of_episodes_is_exact(tmp_path: Path, name: str):
    run = train(tmp_path, episodes=57, **SETTINGS[name])
    assert (run.result["episodes"], run.result["stopped_by"]) == (57, "episodes")
    few = train(tmp_path, episodes=3, **SETTINGS[name])  # fewer than environments: the others do nothing
    assert few.result["episodes"] == 3


@pytest.mark.parametrize("name", ["one table", "lanes", "python, lanes"])
def test_a_budget_of_episodes_after_one_of_steps(tmp_path: Path, name: str):
    """Which left off in the middle of a vector of environments, and between two merges. No environment is beyond its share yet."""
    run = train(tmp_path, steps=1003, **SETTINGS[name])
    before = run.result["episodes"]
    result = run._loop.run(episodes=before + 333)
    assert (result["episodes"], result["stopped_by"]) == (before + 333, "episodes")


# ties ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_ties_do_not_always_go_to_the_first(tmp_path: Path, table: str):
    """The second arm always pays and the first never: who never tries it never learns that."""
    if table == "compiled":
        pytest.importorskip("numba")
    for ties, num_envs in itertools.product(("random", "first"), (1, 4)):
        learner = shoal.QLearning(table=table, ties=ties, epsilon_start=0.0, epsilon_end=0.0, horizon=100.0)
        run = train(tmp_path, "rigged_bandit", learner, steps=400, num_envs=num_envs, env_options={"probability": 1.0})
        tries = run._loop.engine.table()[1]
        assert (tries[1] > 350) if ties == "random" else (tries.tolist() == [400, 0])
        assert run.result["eval_return"] == (1.0 if ties == "random" else 0.0)


# games ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("learner", [shoal.QLearning, shoal.Sarsa, shoal.SarsaLambda, shoal.NStepSarsa, shoal.MonteCarlo])
def test_who_loses_a_game_learns_it(table: str, learner: Any):
    """At a rate of 1 the last moves of a game are worth what it ended with: 1 to the winner, -1 to the loser, whose move let it happen."""
    setup = opened(learner(table=table, discount=1.0, learning_rate=1.0, epsilon_schedule="constant", epsilon_start=1.0),
                   lambda: envs.from_plan(Plan(env="tictactoe")), env="tictactoe")
    lane, at, ends, steps, quota = TableLane(setup, 0), setup.at, [], np.ones(2, np.int64), np.full(2, 2**62)
    arrays: list[Any] = [setup.wf, setup.wi, *setup.blank(), lane.legal, lane.f, lane.i]
    if table == "list":
        arrays = [x.tolist() for x in arrays]
    (q, _, _, f, i), duel = arrays[2:], setup.kernels().duel
    for t in range(2000):
        row, mover, before, cells = i[at.row], i[at.place], i[at.ended], list(i[at.cell:at.cell + 2])
        duel(setup.rule, at, setup.world, *arrays, t, t + 1, steps, quota)
        if i[at.ended] > before:
            action = i[at.action + mover]
            won = setup.source.reward[row, action]
            assert q[row * 9 + action] == won and q[cells[1 - mover]] == -won
            ends.append(f[at.returns + before % 100])
            assert ends[-1] == (won if mover == 0 else -won) and list(i[at.cell:at.cell + 2]) == [-1, -1]
    assert all(ends.count(result) > 10 for result in (-1.0, 0.0, 1.0))


def test_a_trained_player_knows_a_losing_move(tmp_path: Path):
    """A win at once is worth 1; a move that allows the other one, as it was seen to do, is worth less than nothing."""
    pytest.importorskip("numba")
    learner = shoal.QLearning(table="compiled", discount=1.0, learning_rate=0.5, horizon=1e6)
    engine = train(tmp_path, "tictactoe", learner, steps=400_000, num_envs=1)._loop.engine
    game, values, tries = engine.setup.source, engine.values(), engine.table()[1].reshape(-1, 9)
    wins = (game.reward > 0) & (tries > 10)
    assert (values[wins] > 0.99).all() and wins.sum() > 300
    moves = np.argwhere((tries > 10) & (game.over == 0))
    losing = [(state, action) for state, action in moves.tolist() if wins[game.after[state, action]].any()]
    lost = np.array([values[place] for place in losing])
    assert len(lost) > 300 and (lost < 0).mean() > 0.9 and lost.mean() < -0.5
