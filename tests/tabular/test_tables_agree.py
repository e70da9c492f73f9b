"""Lists, NumPy and compiled code: the same table, the same counters and the same lane, to the bit, for every learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import shoal
from shoal import envs
from shoal.plan import Plan
from shoal.tabular import lane as lanes
from shoal.tabular.lane import Orders, TableLane
from shoal.tabular.rule import FLOATS, ONE_STEP, sizes
from shoal.tabular.setup import GAME, open_setup

TABLES = ("list", "numpy", "compiled")
BETWEEN = ("coin", "next_place", "next_row", "alive", "last", "boot")  # lives from choosing to learning only
SMALL: dict[str, dict[str, Any]] = {"dyna_q": {"planning_steps": 2, "model_outcomes": 4}, "monte_carlo": {"return_steps": 200}}
LEARNERS = {"q_learning": shoal.QLearning, "sarsa": shoal.Sarsa, "expected_sarsa": shoal.ExpectedSarsa,
            "double_q_learning": shoal.DoubleQLearning, "n_step_sarsa": shoal.NStepSarsa, "q_lambda": shoal.QLambda,
            "sarsa_lambda": shoal.SarsaLambda, "monte_carlo": shoal.MonteCarlo, "dyna_q": shoal.DynaQ}
CLIFF: dict[str, Any] = {"env": "CliffWalkingSlippery-v1", "plan": {"max_episode_steps": 60}}  # every step costs; chance, and a limit
EXPLORATIONS = ("epsilon", "boltzmann", "ucb")
LAPS = ((0, 900), (900, 20_000))
ALL = [(name, explore) for name in LEARNERS for explore in EXPLORATIONS if (name, explore) != ("expected_sarsa", "ucb")]


class Stand(NamedTuple):
    """Where a lane stands after some laps."""

    q: np.ndarray
    n: np.ndarray
    parts: dict[str, np.ndarray]  # of the lane
    laps: list[tuple]
    between: tuple[str, ...]  # parts that mean nothing between two steps
    family: int


@pytest.fixture(autouse=True)
def _numba():
    pytest.importorskip("numba")


def learner(name: str, table: str, **own: Any) -> Any:
    return LEARNERS[name](table=table, **{"horizon": 6000.0} | SMALL.get(name, {}) | own)


def walk(who: Any, env: str, num_envs: int, steps: int, *, path: str = "auto", quota: int = -1, **plan: Any) -> Stand:
    """About ``steps`` steps in three laps, the first of which some environments take a step more of."""
    given = Plan(env=env, num_envs=num_envs, lane_envs=num_envs, path=path, seed=11, **plan)
    setup = open_setup(who, given, lambda: envs.from_plan(given))
    lane, (q, n), long = TableLane(setup, 0), setup.blank(), steps // num_envs
    ends = (long // 3, long // 3 + 7, long)
    laps = [lane.run(q, n, orders) for orders in (Orders(0, ends[0], num_envs // 2, quota), Orders(*ends[:2], 0, quota),
                                                  Orders(*ends[1:], 0, quota))]
    parts, num = {}, sizes(setup.kind, setup.rule)
    for name in setup.at._fields:
        start, array = getattr(setup.at, name), lane.f if name in FLOATS else lane.i
        parts[name] = array[start:start + num[name]].copy()
    if setup.mode == GAME:  # moves that wait for what comes of them; who moves, and nothing of the seat beside it
        parts["gain"][parts["cell"] < 0], parts["place"][1::2] = 0.0, 0
    tensors = {name: x for name, x in lane.tensors().items() if name not in ("floats", "ints")}  # of environments in Python
    lane.close()
    told = [(*lap[3:7], lap.recent.tobytes(), lap.lost) for lap in laps]
    return Stand(q, n, parts | tensors, told, (*BETWEEN, "action") if setup.mode == GAME else (*BETWEEN, "cell", "gain"), setup.kind.family)


def same(one: Stand, other: Stand, alone: bool = False) -> None:
    """``alone``: one of them is by the loop for one environment, which has no between."""
    assert one.q.tobytes() == other.q.tobytes() and one.n.tobytes() == other.n.tobytes()
    assert one.parts.keys() == other.parts.keys()
    for name in one.parts:
        if not (alone and name in one.between):
            assert one.parts[name].tobytes() == other.parts[name].tobytes(), name
    assert one.laps == other.laps


def agree(name: str, env: str, num_envs: int, steps: int, tables: tuple[str, ...] = TABLES, plan: dict[str, Any] | None = None,
          **own: Any) -> Stand:
    plain, *others = (walk(learner(name, table, **own), env, num_envs, steps, **plan or {}) for table in tables)
    for other in others:
        same(plain, other, alone=num_envs == 1 and plain.family == ONE_STEP)
    assert plain.n.sum() > steps // 2 and np.count_nonzero(plain.q) > 4
    return plain


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(("name", "env"), [("q_learning", "FrozenLake-v1"), ("double_q_learning", "Blackjack-v1"),
                                           ("q_lambda", "FrozenLake-v1")])
def test_some_learners_over_ten_thousand_steps(name: str, env: str, num_envs: int):
    """FrozenLake's outcomes are equally likely and it has a limit; Blackjack's are not, and states share rows."""
    agree(name, env, num_envs, 10_000)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(("name", "explore"), ALL)
def test_list_and_numpy(name: str, explore: str, num_envs: int):
    agree(name, num_envs=num_envs, steps=1200, tables=TABLES[:2], exploration=explore, **CLIFF)


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_over_a_hundred_thousand_steps(name: str, num_envs: int):
    agree(name, "FrozenLake-v1", num_envs, 100_000, horizon=60_000.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "explore"), [cell for cell in ALL if cell[1] != "epsilon"])
def test_every_way_to_explore(name: str, explore: str):
    agree(name, "FrozenLake-v1", 8, 40_000, exploration=explore, horizon=20_000.0)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rates that fall": ("q_learning", {"learning_rate_visits": 50.0}),
    "rates that fall, two tables": ("double_q_learning", {"learning_rate_visits": 50.0}),
    "rates that fall, traces": ("sarsa_lambda", {"learning_rate_visits": 50.0, "traces": "accumulating"}),
    "ties to the first": ("sarsa", {"ties": "first"}),
    "an exponential schedule": ("expected_sarsa", {"epsilon_schedule": "exponential", "exploration": "boltzmann"}),
    "a constant schedule": ("n_step_sarsa", {"epsilon_schedule": "constant", "epsilon_start": 0.3, "n_steps": 7}),
    "few traces": ("q_lambda", {"traces": "accumulating", "least": 0.5}),
    "a small model": ("dyna_q", {"model_outcomes": 2, "planning_steps": 5}),
    "an optimist": ("q_learning", {"initial_value": 3.0, "epsilon_start": 0.0, "epsilon_end": 0.0}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_list_and_numpy(variant: str):
    name, own = VARIANTS[variant]
    agree(name, num_envs=3, steps=3000, tables=TABLES[:2], **own, **CLIFF)


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, num_envs: int):
    name, own = VARIANTS[variant]
    agree(name, num_envs=num_envs, steps=30_000, **own, **CLIFF)


@pytest.mark.parametrize("name", ["q_learning", *(pytest.param(name, marks=pytest.mark.slow) for name in LEARNERS if name != "q_learning")])
def test_masks(name: str):
    agree(name, "Taxi-v4", 3, 6000, TABLES if name != "q_learning" else TABLES[:2], {"env_options": {"info_mask": True}})


@pytest.mark.parametrize("tables", [TABLES[:2], pytest.param(TABLES, marks=pytest.mark.slow)], ids=["two", "three"])
@pytest.mark.parametrize("name", ["q_learning", "n_step_sarsa"])
def test_who_has_ended_enough_episodes_rests(name: str, tables: tuple[str, ...]):
    for num_envs in (1, 3):
        plain = walk(learner(name, "list"), "FrozenLake-v1", num_envs, 3000, quota=31)
        assert sum(lap[1] for lap in plain.laps) == 31 and sum(lap[0] for lap in plain.laps) < 3000
        for table in tables[1:]:
            same(plain, walk(learner(name, table), "FrozenLake-v1", num_envs, 3000, quota=31), alone=num_envs == 1)


@pytest.mark.parametrize("name", ["q_learning", *(pytest.param(name, marks=pytest.mark.slow)
                                                  for name in ("sarsa", "expected_sarsa", "double_q_learning"))])
def test_the_loop_for_one_environment_is_the_one_for_many(name: str):
    """Of many seeds: a schedule that is a step late changes one action in a run, or none."""
    for seed in range(12):
        given = Plan(env="FrozenLake-v1", num_envs=1, lane_envs=1, seed=seed)
        setup = open_setup(learner(name, "compiled", horizon=2000.0), given, lambda plan=given: envs.from_plan(plan))
        kernels, rule, at, world, wf, wi = setup.kernels(), setup.rule, setup.at, setup.world, setup.wf, setup.wi
        ends = []
        for alone in (True, False):
            lane, (q, n) = TableLane(setup, 0), setup.blank()
            common = (rule, at, world, wf, wi, q, n, lane.legal, lane.f, lane.i)
            taken = [kernels.walk_alone(*common, *lap, 200) if alone else
                     kernels.walk(*common, *lap, np.array([lap[1] - lap[0]]), np.array([200])) for lap in LAPS]
            for between in (*BETWEEN, "cell", "gain"):
                (lane.f if between in FLOATS else lane.i)[getattr(at, between)] = 0
            ends.append((taken, q.tobytes(), n.tobytes(), lane.f.tobytes(), lane.i.tobytes()))
        assert ends[0] == ends[1]
        assert ends[0][0][0] == 900 and ends[0][0][1] < 19_100  # 200 episodes ended before all steps were taken


@pytest.mark.parametrize("table", ["list", "numpy", pytest.param("compiled", marks=pytest.mark.slow)])
def test_the_pieces_of_a_lap_change_no_bit(table: str, monkeypatch: pytest.MonkeyPatch):
    for num_envs, path in ((1, "auto"), (3, "auto"), (3, "ported")):
        whole = walk(learner("sarsa", table), "FrozenLake-v1", num_envs, 900, path=path)
        with monkeypatch.context() as patch:
            patch.setattr(lanes, "_PIECE", 17)
            same(whole, walk(learner("sarsa", table), "FrozenLake-v1", num_envs, 900, path=path), alone=True)


# games, Python's environments, merged lanes --------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_game(num_envs: int):
    agree("q_learning", "tictactoe", num_envs, 10_000)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_game_on_lists_and_numpy(name: str):
    agree(name, "tictactoe", 3, 1500, TABLES[:2])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "explore"), ALL)
def test_every_learner_in_a_game(name: str, explore: str):
    for num_envs in (1, 3):
        agree(name, "tictactoe", num_envs, 30_000, exploration=explore)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_environment_in_python(num_envs: int):
    """Alone, compiled code learns and chooses in one call."""
    agree("q_learning", "FrozenLake-v1", num_envs, 3000, plan={"path": "ported"})


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_on_an_environment_in_python(name: str, num_envs: int):
    agree(name, "FrozenLake-v1", num_envs, 20_000, plan={"path": "ported"})
    agree(name, "Taxi-v4", num_envs, 4000, plan={"path": "ported", "env_options": {"info_mask": True}})


def merged(tmp_path: Path, name: str, table: str, env: str, **settings: Any) -> tuple[str, int, float, bytes]:
    run = shoal.train(learner(name, table, sync_every=100), env, num_envs=8, lane_envs=1, seed=5, eval_episodes=5,
                      out=tmp_path / f"{name}-{table}-{env}", quiet=True, **settings)
    assert run.result["ledger"]["learned"] >= 8 * (settings["steps"] // 800)  # a lap of every lane between two merges
    return run.result["params_sha256"], run.result["episodes"], run.result["eval_return"], (run.folder / "metrics.jsonl").read_bytes()


def test_merged_lanes(tmp_path: Path):
    first, *others = (merged(tmp_path, "q_learning", table, "FrozenLake-v1", steps=12_345) for table in TABLES)
    assert all(other == first for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_merged_lanes_of_every_learner(tmp_path: Path, name: str):
    for env, steps in (("FrozenLake-v1", 20_003), ("tictactoe", 8001), ("CliffWalking-v1", 20_000)):
        first, *others = (merged(tmp_path, name, table, env, steps=steps) for table in TABLES)
        assert all(other == first for other in others), env
    first, *others = (merged(tmp_path, name, table, "Blackjack-v1", steps=4001, path="ported") for table in TABLES)
    assert all(other == first for other in others)
