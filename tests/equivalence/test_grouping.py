"""How many iterations a call of the ported engine makes is a matter of time, and changes nothing that the run does."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import shoal
from shoal.runtime import ported
from shoal.runtime.ported import Ported
from shoal.types import Limits

FOREVER = Limits(40, 2**30, float("inf"))


def engine(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Ported:
    monkeypatch.setattr(ported, "_CALL_S", seconds)
    agent = shoal.DQN(num_steps=5, hidden=(8,), start_size=10, update_every=10, batch_size=8, capacity=200, horizon=1000.0)
    made = Ported(agent, None, lambda: shoal.make("CartPole-v1"), num_envs=1, lane_envs=1)
    made.init(3)
    return made


def test_one_at_a_time_and_all_at_once_are_the_same_run(monkeypatch):
    slow = engine(monkeypatch, 0.0)
    single = [slow.run(FOREVER).iterations for _ in range(40)]
    fast = engine(monkeypatch, 60.0)
    calls = [fast.run(FOREVER).iterations, fast.run(FOREVER._replace(iterations=39)).iterations]
    assert [len(call) for call in single] == [1] * 40 and [len(call) for call in calls] == [1, 39]  # the first one compiles
    for a, b in zip(sum(single, []), sum(calls, []), strict=True):
        np.testing.assert_equal(a, b)
    for a, b in zip(jax.tree.leaves(slow.learner()), jax.tree.leaves(fast.learner()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_call_ends_where_it_must(monkeypatch):
    made = engine(monkeypatch, 60.0)
    made.run(FOREVER)
    ended = made.run(Limits(10_000, 3, float("inf"))).iterations
    assert sum(i.episodes for i in ended) >= 3 > sum(i.episodes for i in ended[:-1])
    assert len(made.run(Limits(10_000, 2**30, 1.0)).iterations) == 1  # the mean of CartPole's episodes is more than that
