"""Workers that learn by themselves and push: what is pushed and applied, and runs over real processes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from small_agents import small

import shoal
from shoal import rng
from shoal.errors import ConfigError
from shoal.params import deltas
from shoal.runtime.lanes import make_lanes, open_world
from shoal.runtime.serving import Learner, pushed_like
from shoal.types import Batch


def batch_of(algorithm, seed: int = 0):
    """A chunk of CartPole by an untrained policy, its state and the batch."""
    world = open_world(algorithm, shoal.make("cartpole"), None, seed=seed, num_lanes=1, lane_envs=4)
    state = algorithm.init(world.spec, rng.root(seed))
    (lane,) = make_lanes(world, [0])
    chunk = lane.make(jax.tree.leaves(algorithm.policy(state)), 0, 0)
    return world, state, chunk, Batch(chunk.data, (), algorithm.policy(state), 64.0)


propose, apply = jax.jit(deltas.propose), jax.jit(deltas.apply)
update = jax.jit(lambda algorithm, state, batch, key: algorithm.update(state, batch, key))


def assert_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), **tolerance), a, b)


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_a_push_applied_where_it_was_made_is_the_update(algo):
    algorithm = small(algo)
    assert deltas.by_gradients(algorithm) == (algo == "a2c")
    _, state, _, batch = batch_of(algorithm)
    pushed, own = propose(algorithm, state, deltas.own_part(state), batch, rng.root(1))
    after, metrics = apply(algorithm, state, pushed)
    expected = update(algorithm, state, batch, rng.root(1)).state
    assert float(metrics["refused"]) == 0.0
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(expected.critic), jax.tree.leaves(state.critic), strict=True))
    if algo == "a2c":
        assert_close(after, expected, rtol=1e-5, atol=1e-7)
    else:  # old + (new - old) rounds; the optimiser's state is the worker's, not the server's
        assert_close(after._replace(optimiser=()), expected._replace(optimiser=()), rtol=1e-4, atol=1e-7)
        assert_close(own, expected.optimiser, rtol=1e-5, atol=1e-7)
        assert_close(after.optimiser, state.optimiser, rtol=0, atol=0)


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_whole(algo, bad):
    algorithm = small(algo)
    _, state, _, batch = batch_of(algorithm)
    pushed, _ = propose(algorithm, state, deltas.own_part(state), batch, rng.root(1))
    leaves, structure = jax.tree.flatten(pushed)
    big = max(range(len(leaves)), key=lambda i: leaves[i].size)
    leaves[big] = leaves[big].at[(0,) * leaves[big].ndim].set(bad)
    after, metrics = apply(algorithm, state, jax.tree.unflatten(structure, leaves))
    assert float(metrics["refused"]) == 1.0
    assert_close(after, state, rtol=0, atol=0)


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_a_worker_pushes_what_the_server_expects(algo):
    algorithm = small(algo)
    world, state, chunk, batch = batch_of(algorithm)
    learner = Learner(world)
    pushed = learner.push(jax.tree.leaves(state), chunk, address=0)
    assert jax.tree.structure(pushed) == jax.tree.structure(pushed_like(world))
    key = rng.key(rng.root(world.seed), rng.Stream.LEARN, 0, 0)
    assert_close(pushed, propose(algorithm, state, deltas.own_part(state), batch, key)[0], rtol=1e-5, atol=1e-6)
    assert_close(learner.policy(jax.tree.leaves(state)), jax.tree.leaves(algorithm.policy(state)), rtol=0, atol=0)


@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("cartpole", marks=pytest.mark.slow)])
def test_a_run_with_a_kill_and_a_resume(run, monkeypatch, tmp_path, env):
    monkeypatch.setenv("SHOAL_FAULT", "worker:send:20+:kill")
    settings = {"mode": "async", "topology": "server", "out": tmp_path / "run"}
    first = run(env, small("a2c"), workers=2, steps=1600, **settings)
    assert first.result["updates"] == 50 == first.ledger["learned"]
    assert first.ledger["restarts"] >= 1 and first.ledger["lost"] <= first.ledger["restarts"]
    again = run(env, small("a2c"), workers=2, steps=2400, **settings)
    assert again.result["updates"] == 75 and again.ledger["learned"] == 25
    for ledger in (first.ledger, again.ledger):
        assert ledger["produced"] == sum(ledger[name] for name in ("learned", "buffered", "in_flight", "dropped", "lost")), ledger


@pytest.mark.parametrize(("agent", "settings", "told"), [
    (small("a2c"), {}, "topology = 'server': workers push without waiting; add --mode async"),
    (small("dqn"), {"mode": "async"}, "dqn learns from memory, which workers do not have"),
    (small("a2c", normalise_obs=True), {"mode": "async"}, "several workers cannot keep one normalisation"),
    (small("a2c"), {"workers": 0}, "topology = 'server' needs workers that do not wait"),
])
def test_what_cannot_be_is_refused(run, agent, settings, told):
    with pytest.raises(ConfigError, match=told):
        run("CartPole-v1", agent, **({"workers": 2, "topology": "server"} | settings))
