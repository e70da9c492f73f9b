"""Tables with rows only for what was seen."""

from __future__ import annotations

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError
from shoal.tabular.sparse import FIRST_ROWS, Seen, grown

LOW, HIGH = (-2.4, -3.0, -0.21, -3.0), (2.4, 3.0, 0.21, 3.0)


def agent(kind=shoal.QLearning, **fields):
    return kind(sparse=True, low=LOW, high=HIGH, **({"bins": 12} | fields))


def train(folder, learner, steps=3_001, env="CartPole-v1", **settings):
    return shoal.train(learner, env, steps=steps, seed=1, out=folder, eval_episodes=3, num_envs=4, lane_envs=4, **settings)


@pytest.mark.parametrize("kind", [shoal.QLearning, shoal.DoubleQLearning])
def test_all_tables_agree_and_a_dense_one_learns_the_same(tmp_path, kind):
    runs = [train(tmp_path / table, agent(kind, table=table, horizon=1e4)) for table in ("list", "numpy")]
    assert runs[0].result["params_sha256"] == runs[1].result["params_sha256"]
    dense = train(tmp_path / "dense", kind(bins=12, low=LOW, high=HIGH, table="numpy", horizon=1e4))
    engine, whole = runs[0]._loop.engine, dense._loop.engine
    keys = engine.setup.rows.keys()
    assert 100 < len(keys) < 12**4
    assert np.array_equal(engine.values()[:len(keys)], whole.values()[keys])  # what was seen is worth the same
    unseen = np.ones(12**4, bool)
    unseen[keys] = False
    assert not whole.values()[unseen].any()


def test_a_table_grows_with_what_is_seen_and_resumes_exactly(tmp_path):
    learner = agent(bins=60, table="numpy", horizon=1e4)
    whole = train(tmp_path / "whole", learner, 9_000)
    assert whole._loop.engine.setup.rows.num > FIRST_ROWS
    assert len(whole._loop.engine.q) >= whole._loop.engine.setup.rows.num * 2
    train(tmp_path / "part", learner, 4_003)
    again = shoal.resume(tmp_path / "part", steps=9_000 - 4_003)
    assert again.result["params_sha256"] == whole.result["params_sha256"] and again.result["episodes"] == whole.result["episodes"]
    policy = shoal.load(tmp_path / "part")
    assert policy.act(np.array([0.0, 0.0, 0.01, 0.0])) in (0, 1)
    assert policy.act(np.array([2.39, 2.9, -0.2, 2.9])) in (0, 1)  # never seen


def test_grown_keeps_both_parts_in_place():
    two = grown(np.array([1.0, 2.0, 3.0, 4.0]), 2, 3, 2, 9.0)
    assert two.tolist() == [1.0, 2.0, 9.0, 3.0, 4.0, 9.0]


def test_rows_are_numbered_as_they_come():
    rows = type("Rows", (), {"num": 10, "index": staticmethod(int), "mask": staticmethod(lambda obs: None)})()
    seen = Seen(rows)
    assert [seen.index(x) for x in (7, 3, 7, 9)] == [0, 1, 0, 2] and seen.find(4) == -1 and seen.keys().tolist() == [7, 3, 9]
    again = Seen(rows)
    again.load(seen.keys())
    assert again.find(9) == 2 and again.num == 3


@pytest.mark.parametrize("learner, env, settings, said", [
    (shoal.QLearning(sparse=True), "FrozenLake-v1", {}, "all states of 'FrozenLake-v1' are known beforehand"),
    (agent(shoal.DynaQ), "CartPole-v1", {}, "the model of dyna_q has a place for every state"),
    (agent(), "CartPole-v1", {"runtime": "processes"}, "in one table; leave --runtime"),
    (agent(bins=10**6), "CartPole-v1", {}, "use fewer bins"),
])
def test_what_cannot_be_sparse(tmp_path, learner, env, settings, said):
    with pytest.raises(ConfigError, match=said):
        shoal.train(learner, env, steps=100, out=tmp_path / "run", **settings)
