"""Many weights: whether an update is kept is chosen outside the compiled call, to the same bits as inside it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shoal.algos.sac import SAC
from shoal.envs import make
from shoal.errors import DivergedError
from shoal.runtime import ported
from shoal.types import Limits

AGENT = SAC(num_steps=1, capacity=64, start_size=4, batch_size=8, hidden=(8,), horizon=100.0)


def engine(monkeypatch, large, agent=AGENT):
    monkeypatch.setattr(ported, "_LARGE", 0 if large else 2**62)
    made = ported.Ported(agent, make("pendulum", 20), None, num_envs=1, lane_envs=1)
    made.init(5)
    assert made._single == large
    return made


def advance(made, iterations):
    """The iterations that were made, until it refused too many."""
    seen = []
    try:
        while len(seen) < iterations:
            seen += made.run(Limits(1, 2**30, float("inf"))).iterations
    except DivergedError:
        pass
    return seen


def assert_same(a, b):
    assert a.keys() == b.keys() and len(a) > 10
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_the_same_bits(monkeypatch):
    inside, outside = engine(monkeypatch, False), engine(monkeypatch, True)
    start = outside.learner()
    for iterations in (2, 20):  # before there is enough to draw from, and after
        told, also = advance(inside, iterations), advance(outside, iterations)
        assert [x.metrics.keys() for x in told] == [x.metrics.keys() for x in also]
        for x, y in zip(told, also, strict=True):
            np.testing.assert_array_equal(list(x.metrics.values()), list(y.metrics.values()))
        assert_same(inside.cut(), outside.cut())
        moved = any((start[name] != x).any() for name, x in outside.learner().items())
        assert moved == (iterations == 20)
    resumed = engine(monkeypatch, True)
    resumed.load(inside.cut())
    advance(inside, 5)
    advance(resumed, 5)
    assert_same(inside.cut(), resumed.cut())


@pytest.mark.parametrize("large", [False, True])
def test_a_refused_update_leaves_everything_as_it_was(monkeypatch, large):
    made = engine(monkeypatch, large, dataclasses.replace(AGENT, learning_rate=1e38))
    refused, before = 0, made.learner()
    for _ in range(100):  # at first the weights become huge, then what follows from them is no number
        told = advance(made, 1)
        after = made.learner()
        if not told:
            break
        if told[0].metrics["refused"]:
            refused += 1
            assert_same(before, after)
        before = after
    assert refused == 9  # the tenth in a row ends the run
    assert_same(before, after)
    assert all(np.isfinite(x).all() for x in after.values())
