"""TD3 and DDPG, number by number, with critics and policies that are straight lines."""

from __future__ import annotations

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import lane, registry
from shoal.algos.ddpg import DDPG
from shoal.algos.td3 import TD3
from shoal.errors import ConfigError
from shoal.ops import blocks
from shoal.runtime.cut import on_device
from shoal.specs import Box, Discrete, EnvSpec
from shoal.testing import check_algorithm
from shoal.testing.probes import ContinuousProbe, Kind
from shoal.types import Batch, Transition

SPEC = EnvSpec("box", Box((3,)), Box((1,), -1.0, 1.0))
KEY, RATE = jax.random.key(0), 0.01
PLAIN = {"hidden": (), "optimiser": "sgd", "learning_rate": RATE, "discount": 0.5, "tau": 0.25}
AGENT, SINGLE = on_device(TD3(**PLAIN)), on_device(DDPG(**PLAIN))
update = jax.jit(lambda algorithm, state, batch, key: algorithm.update(state, batch, key))
act = jax.jit(lambda algorithm, params, memory, obs, role, noise: algorithm.act(params, memory, obs, role, noise))


def line(net, weights, biases):
    """A network, or critics, of one layer with these weights and biases."""
    layer = lambda m: (m.arrays if hasattr(m, "arrays") else m.stacked.net.arrays).layers[0]
    old = layer(net)
    new = [jnp.broadcast_to(jnp.asarray(x, jnp.float32), like.shape) for x, like in ((weights, old.weight), (biases, old.bias))]
    return eqx.tree_at(lambda m: (layer(m).weight, layer(m).bias), net, tuple(new))


def flat_state(algorithm=AGENT):
    """Everything answers 0."""
    state = algorithm.init(SPEC, KEY)
    zero = [line(x, 0.0, 0.0) for x in (state.actor.net, state.critics, state.target_net, state.target_critics)]
    return state._replace(actor=eqx.tree_at(lambda a: a.net, state.actor, zero[0]), critics=zero[1], target_net=zero[2],
                          target_critics=zero[3])


def slopes(*by_action):
    """Weights of critics that answer these numbers times the action."""
    return np.array([[[0], [0], [0], [slope]] for slope in by_action], np.float32)


def batch(num=64, weight=1.0, seed=0, **changed):
    draw = np.random.default_rng(seed)
    obs, after = (draw.normal(size=(num, 3)).astype(np.float32) for _ in range(2))
    data = Transition(obs, draw.uniform(-1, 1, (num, 1)).astype(np.float32), draw.normal(size=num).astype(np.float32),
                      np.ones(num, np.float32), after, np.zeros(num, bool), np.ones(num, np.float32), ())._replace(**changed)
    return Batch(data, (), (), 1.0, jnp.full(num, weight, jnp.float32))


def bias(net):
    return np.asarray((net.arrays if hasattr(net, "arrays") else net.stacked.net.arrays).layers[0].bias)


def same(one, other):
    return all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@pytest.mark.parametrize(("algorithm", "answers", "least"), [(AGENT, (3.0, 5.0), 3.0), (AGENT, (5.0, 3.0), 3.0), (SINGLE, (4.0,), 4.0)])
def test_targets_take_the_smallest_critic_and_end_with_the_episode(algorithm, answers, least):
    alive = (np.arange(64) % 2).astype(np.float32)
    state, given = flat_state(algorithm), batch(alive=alive)
    state = state._replace(target_critics=line(state.target_critics, 0.0, np.array(answers)[:, None]))
    done = update(algorithm, state, given, KEY)
    target = given.data.reward + 0.5 * least * alive
    np.testing.assert_allclose(done.priorities, np.abs(target), rtol=1e-5)  # critics answer 0
    np.testing.assert_allclose(bias(done.state.critics), np.full((len(answers), 1), RATE * target.mean()), rtol=1e-4)
    np.testing.assert_allclose(done.metrics["value_loss"], 0.5 * len(answers) * (target**2).mean(), rtol=1e-5)


def test_target_actions_are_smoothed_by_noise_that_is_cut():
    """Target critics that answer the action show the noise itself."""
    state, given = flat_state(), batch(4096, reward=np.zeros(4096, np.float32))
    state = state._replace(target_critics=line(state.target_critics, slopes(1.0, 1.0), 0.0))
    seen = 2.0 * np.asarray(update(AGENT, state, given, KEY).priorities)  # the discount is a half
    assert abs(seen.max() - 0.5) < 1e-6 and abs(seen.mean() - 0.2 * math.sqrt(2 / math.pi)) < 0.01
    still = update(on_device(dataclasses.replace(AGENT, target_noise=0.0)), state, given, KEY)
    assert not np.asarray(still.priorities).any()


def test_policy_climbs_the_first_critic_and_targets_follow_it():
    state = flat_state()
    state = state._replace(critics=line(state.critics, slopes(2.0, -7.0), 0.0))
    still = batch(reward=np.zeros(64, np.float32), action=np.zeros((64, 1), np.float32))  # critics are right and stay
    after = update(AGENT, state, still, KEY).state
    np.testing.assert_allclose(bias(after.actor.net), RATE * 2.0, rtol=1e-4)  # tanh has slope 1 at 0
    np.testing.assert_allclose(bias(after.target_net), 0.25 * RATE * 2.0, rtol=1e-4)
    new, mixed = (np.asarray(c.stacked.net.arrays.layers[0].weight) for c in (after.critics, after.target_critics))
    np.testing.assert_allclose(mixed, 0.25 * new, rtol=1e-6)


def test_policy_and_targets_move_at_every_second_update_only():
    states = [AGENT.init(SPEC, KEY)]
    for i in range(4):
        states.append(update(AGENT, states[-1], batch(seed=i), KEY).state)
    slow = [(s.actor.net, s.target_net, s.target_critics, s.actor_optimiser) for s in states]
    assert [same(a[:3], b[:3]) for a, b in zip(slow, slow[1:], strict=False)] == [False, True, False, True]
    assert all(not same(a.critics, b.critics) for a, b in zip(states, states[1:], strict=False))
    single = SINGLE.init(SPEC, KEY)
    for _ in range(2):
        before, single = single, update(SINGLE, single, batch(), KEY).state
        assert not same(before.actor.net, single.actor.net)


def test_weights_are_the_critics_and_valid_is_everyones():
    state, half = AGENT.init(SPEC, KEY), (np.arange(64) < 32).astype(np.float32)
    none = update(AGENT, state, batch(weight=0.0), KEY).state
    assert same(none.critics, state.critics) and not same(none.actor.net, state.actor.net)
    given = batch(valid=half)
    spoilt = batch(valid=half, obs=np.where(half[:, None] > 0, given.data.obs, 9.0).astype(np.float32))
    assert same(update(AGENT, state, given, KEY).state, update(AGENT, state, spoilt, KEY).state)


def test_large_batches_in_blocks_are_means_of_their_rows():
    still = on_device(dataclasses.replace(AGENT, target_noise=0.0))
    state, given = still.init(SPEC, KEY), batch(blocks.BLOCK_ROWS)
    twice = jax.tree.map(lambda x: np.concatenate([x, x]), given._replace(steps=()))._replace(steps=1.0)
    one, two = (update(still, state, b, KEY) for b in (given, twice))
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(two.priorities, np.tile(one.priorities, 2), rtol=1e-5)


# acting ------------------------------------------------------------------------------------------------------------------


def test_gaussian_noise_and_actions_at_random():
    num = 4096
    state, obs, noise = flat_state(), np.zeros((num, 3), np.float32), AGENT.draw(SPEC, KEY, (num,))
    explore, greedy = (lane.role(0.0, num, greedy=flag) for flag in (False, True))
    first = np.asarray(act(AGENT, state.actor, (), obs, explore, noise).action)
    np.testing.assert_allclose(np.histogram(first, 8, (-1, 1))[0], num / 8, rtol=0.2)
    learned = eqx.tree_at(lambda a: (a.net, a.fresh), state.actor, (line(state.actor.net, 0.0, 0.5), jnp.zeros(())))
    later = np.asarray(act(AGENT, learned, (), obs, explore, noise).action)
    np.testing.assert_allclose([later.mean(), later.std()], [np.tanh(0.5), 0.1], atol=0.005)
    for params, action in ((state.actor, 0.0), (learned, np.tanh(0.5))):
        np.testing.assert_allclose(act(AGENT, params, (), obs, greedy, noise).action, action, atol=1e-6)
    assert float(update(AGENT, state, batch(), KEY).state.actor.fresh) == 0.0


def test_ornstein_uhlenbeck_noise_lasts_as_long_as_its_episode():
    """Its spread and its memory from step to step are the process's own; a world of episodes of one step starts it anew each time."""
    lasting = on_device(dataclasses.replace(SINGLE, warm_up=False))
    num, steps, memory = 512, 40, lasting.memory(SPEC, 512)
    obs, noise, params = np.zeros((num, 3), np.float32), lasting.draw(SPEC, KEY, (steps, num)), flat_state(lasting).actor
    seen = []
    for t in range(steps):
        acted = act(lasting, params, memory, obs, lane.role(0.0, num), jax.tree.map(lambda x, t=t: x[t], noise))
        memory = acted.memory
        seen.append(np.asarray(memory)[:, 0])
        np.testing.assert_allclose(acted.action, np.asarray(memory).clip(-1, 1), atol=1e-6)
    spread = 0.2 * math.sqrt((1 - math.exp(-0.3)) / 0.3)
    np.testing.assert_allclose(seen[0].std(), spread, rtol=0.08)
    np.testing.assert_allclose(seen[-1].std(), 0.2 / math.sqrt(0.3), rtol=0.08)
    np.testing.assert_allclose(np.corrcoef(seen[-2], seen[-1])[0, 1], math.exp(-0.15), atol=0.03)
    env = ContinuousProbe(jnp.int32(Kind.CONSTANT))
    at = lane.start(lasting, env, KEY, 0, 4)
    after, data, _ = lane.rollout(lasting, env, lasting.init(env.spec, KEY).actor, at, lane.draw(lasting, env, KEY, 0, 0, 4),
                                  lane.role(0.0, 4))
    assert not np.asarray(after.memory).any() and np.asarray(data.action).any()


@pytest.mark.parametrize("space", [Discrete(3), Box((1,))], ids=["choice", "open"])
@pytest.mark.parametrize("algorithm", [AGENT, SINGLE], ids=["TD3", "DDPG"])
def test_other_actions_are_refused(algorithm, space):
    with pytest.raises(ConfigError, match=f"'odd': {type(algorithm).__name__} expects actions"):
        algorithm.init(EnvSpec("odd", Box((3,)), space), KEY)


@pytest.mark.parametrize("algorithm", [TD3, DDPG])
def test_they_keep_an_algorithms_side(algorithm):
    findings = check_algorithm(algorithm(num_steps=2, hidden=(8,)), env_fn=ContinuousProbe, kinds=(), num_envs=4, must=True)
    assert findings and registry.find("algo", algorithm.__name__.lower()) is algorithm
