"""Fused and ported: the same keys, nearly the same numbers; and within each path, the same bits however the run is cut up."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algos.ppo import PPO
from shoal.envs import make
from shoal.runtime.fused import Fused
from shoal.runtime.ported import Ported
from shoal.types import Limits

AGENT = PPO(num_steps=16, num_epochs=2, num_minibatches=2, learning_rate=1e-3, hidden=(16,), init_scheme="xavier",
            normalise_obs=True, normalise_reward=True)
SIZES = {"num_envs": 8, "lane_envs": 4}  # two lanes
SEED = 2**35 + 7
# Seen after one iteration, relative to the largest number of a tensor: cartpole 0, pendulum 3e-8, since one program takes 8 rows
# at a time where the other takes 4; a mistaken key moves weights by 4e-3.
TOLERANCE = 2e-6


def build(path, name, lag=0):
    env, options = make(name, 20), SIZES | {"stream_episodes": True}
    return Fused(AGENT, env, **options) if path == "fused" else Ported(AGENT, env, None, lag=lag, **options)


FUSED: dict = {}


def engine_of(path, name="cartpole", lag=0, seed=SEED):
    """An engine at its start. A fused one is built once per environment: its program is its own, a second ``init`` keeps it."""
    engine = build(path, name, lag) if path == "ported" else FUSED.setdefault(name, build(path, name))
    engine.init(seed)
    return engine


def advance(engine, iterations, at_once=2**30):
    seen = []
    while len(seen) < iterations:
        seen += engine.run(Limits(min(at_once, iterations - len(seen)), 2**30, float("inf"))).iterations
    return seen


def assert_same_bits(a, b):
    assert a.keys() == b.keys() and len(a) > 10
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("name", ["cartpole", pytest.param("pendulum", marks=pytest.mark.slow)])
def test_one_iteration_agrees_between_paths(name):
    fused, ported = engine_of("fused", name), engine_of("ported", name)
    assert_same_bits(fused.learner(), ported.learner())  # the same state to start from
    start = fused.learner()
    first, second = advance(fused, 1)[0], advance(ported, 1)[0]
    a, b = fused.learner(), ported.learner()
    for leaf in a:
        scale = max(float(np.abs(a[leaf]).max()), 1e-3) if a[leaf].size else 1.0
        np.testing.assert_allclose(a[leaf], b[leaf], rtol=0, atol=TOLERANCE * scale, err_msg=leaf)
    weights = [leaf for leaf in a if "weight" in leaf and "optimiser" not in leaf]
    assert weights and all(np.abs(a[leaf] - start[leaf]).max() > 20 * TOLERANCE * np.abs(a[leaf]).max() for leaf in weights)
    assert first.episodes == second.episodes and first.length_sum == second.length_sum
    assert [(e.env, e.step, e.length) for e in first.ended] == [(e.env, e.step, e.length) for e in second.ended]
    np.testing.assert_allclose([e.returns for e in first.ended], [e.returns for e in second.ended], rtol=1e-4)
    for metric in first.metrics:
        assert first.metrics[metric] == pytest.approx(second.metrics[metric], rel=1e-3, abs=1e-4), metric


@pytest.mark.parametrize("path", ["fused", "ported"])
def test_same_seed_same_bits_and_other_seed_other_bits(path):
    runs = []
    for seed in (SEED, SEED, SEED - 2**35):
        engine = engine_of(path, seed=seed)
        advance(engine, 3)
        runs.append(engine.cut())
    assert_same_bits(runs[0], runs[1])
    assert any((runs[0][name] != runs[2][name]).any() for name in runs[0] if "learner" in name)


def test_grouping_of_iterations_changes_nothing():
    engine = engine_of("fused")
    one_by_one = advance(engine, 5, at_once=1)
    apart = engine.cut()
    engine.init(SEED)
    advance(engine, 2)
    together = advance(engine, 3)
    assert_same_bits(apart, engine.cut())
    assert [i.metrics for i in one_by_one[2:]] == [i.metrics for i in together]


@pytest.mark.parametrize(("path", "lag"), [("fused", 0), ("ported", 0), ("ported", 1)])
def test_a_cut_run_continues_to_the_same_bits(path, lag):
    engine = engine_of(path, lag=lag)
    advance(engine, 2)
    middle = {name: x.copy() for name, x in engine.cut().items()}
    rest = advance(engine, 2)
    straight = engine.cut()
    engine = engine_of(path, lag=lag)
    advance(engine, 1)  # stands elsewhere before it is loaded
    assert engine.load(middle) == []
    assert_same_bits(engine.cut(), middle)
    again = advance(engine, 2)
    assert_same_bits(engine.cut(), straight)
    assert [i.metrics for i in again] == [i.metrics for i in rest] and [i.ended for i in again] == [i.ended for i in rest]


@pytest.mark.parametrize("path", ["fused", "ported"])
def test_init_starts_anew(path):
    engine = engine_of(path)
    first = advance(engine, 1)[0]
    engine.init(SEED)
    assert advance(engine, 1)[0].metrics == first.metrics


def test_lag_one_acts_with_the_policy_before():
    """Chunks 0 and 1 are made with version 0, so the first iterations agree with lag 0 and the third does not."""
    late, now = engine_of("ported", lag=1), engine_of("ported")
    assert advance(late, 1)[0].metrics == advance(now, 1)[0].metrics
    assert late.cut().keys() > now.cut().keys()  # the policy that makes the next chunk is in the cut
    assert advance(late, 1)[0].metrics != advance(now, 1)[0].metrics
