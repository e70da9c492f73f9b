"""Many weights: whether an update is kept is chosen outside the compiled call, and policy and values learn side by side; to the same bits
as inside one call, one after the other."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shoal import loops
from shoal.algos.sac import SAC
from shoal.algos.td3 import TD3
from shoal.envs import make
from shoal.errors import DivergedError
from shoal.runtime import halves, ported
from shoal.types import Limits

SMALL = {"num_steps": 1, "capacity": 64, "start_size": 4, "batch_size": 8, "hidden": (8,), "horizon": 100.0}
AGENTS = {"sac": SAC(**SMALL), "td3": TD3(**SMALL)}


def engine(monkeypatch, large, agent):
    monkeypatch.setattr(ported, "_LARGE", 0 if large else 2**62)
    made = ported.Ported(agent, make("pendulum", 20), None, num_envs=1, lane_envs=1)
    made.init(5)
    assert (made._single, made._halves is not None) == (large and isinstance(agent, TD3), large and isinstance(agent, SAC))
    return made


def advance(made, iterations, at_once=1):
    """The iterations that were made, until it refused too many."""
    seen = []
    try:
        while len(seen) < iterations:
            seen += made.run(Limits(min(at_once, iterations - len(seen)), 2**30, float("inf"))).iterations
    except DivergedError:
        pass
    return seen


def assert_same(a, b):
    assert a.keys() == b.keys() and len(a) > 10
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def assert_told_alike(told, also):
    assert [list(x.metrics) for x in told] == [list(x.metrics) for x in also]
    for x, y in zip(told, also, strict=True):
        np.testing.assert_array_equal(list(x.metrics.values()), list(y.metrics.values()))


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_the_same_bits(monkeypatch, agent):
    inside, outside = engine(monkeypatch, False, agent), engine(monkeypatch, True, agent)
    start = outside.learner()
    for iterations in (2, 20, 40):  # before there is enough to draw from, and after; at last several in a call
        at_once = iterations if iterations == 40 else 1
        assert_told_alike(advance(inside, iterations, at_once), advance(outside, iterations, at_once))
        assert_same(inside.cut(), outside.cut())
        moved = any((start[name] != x).any() for name, x in outside.learner().items())
        assert moved == (iterations > 2)
    resumed = engine(monkeypatch, True, agent)
    resumed.load(inside.cut())
    assert_told_alike(advance(inside, 5), advance(resumed, 5))
    assert_same(inside.cut(), resumed.cut())


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
def test_a_refused_update_leaves_everything_as_it_was(monkeypatch, agent):
    wild = dataclasses.replace(agent, learning_rate=1e38)
    inside, outside = engine(monkeypatch, False, wild), engine(monkeypatch, True, wild)
    refused, before = 0, outside.learner()
    for _ in range(100):  # at first the weights become huge, then what follows from them is no number
        told, also = advance(inside, 1), advance(outside, 1)
        assert_told_alike(told, also)
        after = outside.learner()
        assert_same(inside.learner(), after)
        assert all(np.isfinite(x).all() for x in after.values())
        if not told:
            break
        if told[0].metrics["refused"]:
            refused += 1
            assert_same(before, after)
        before = after
    assert refused == 9  # the tenth in a row ends the run
    assert_same(before, after)


def test_values_that_fail_aside_are_heard_of(monkeypatch):
    whole, fails = halves._half, False

    def failing_at_times(name, *what):
        half = whole(name, *what)

        def learn(*args):
            if fails and name == loops.HALVES[1]:
                raise RuntimeError("no values today")
            return half(*args)

        return learn

    monkeypatch.setattr(halves, "_half", failing_at_times)
    made = engine(monkeypatch, True, AGENTS["sac"])
    advance(made, 20)
    fails = True
    with pytest.raises(RuntimeError, match="no values today"):
        advance(made, 5, at_once=5)
    assert made._halves._under_way == 0
    made.close()


@pytest.mark.parametrize(("changed", "beside"), [({}, True), ({"prioritised": True}, False), ({"shards": 2, "capacity": 128}, True),
                                                 ({"updates": 2}, False), ({"store": "host"}, False)])
def test_halves_are_side_by_side_where_one_update_is_due_at_most_and_draws_change_nothing(monkeypatch, changed, beside):
    agent = dataclasses.replace(AGENTS["sac"], **changed)
    monkeypatch.setattr(ported, "_LARGE", 0)
    made = ported.Ported(agent, make("pendulum", 20), None, num_envs=2, lane_envs=1)
    made.algorithm = dataclasses.replace(made.algorithm, update_every=2)
    made.init(5)
    assert (made._halves is not None) == beside and not made._single
    assert sum(x.metrics["gradient_steps"] for x in advance(made, 10)) > 5
    assert np.isfinite(advance(made, 1)[0].metrics["value_loss"])
