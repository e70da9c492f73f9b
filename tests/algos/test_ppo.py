"""PPO's update, property by property, on small batches made by hand."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import lane, loops
from shoal.algos.ppo import PPO
from shoal.runtime.cut import on_device
from shoal.runtime.device import Compilations
from shoal.specs import MASK, Box, Discrete, EnvSpec, Group
from shoal.types import Batch, Transition

SPEC = EnvSpec("toy", Box((3,)), Discrete(3))
# schedules are there but idle: the horizon is infinite unless a test gives one
BASE = on_device(PPO(num_steps=8, num_epochs=4, num_minibatches=2, hidden=(8,), init_scheme="xavier", learning_rate=1e-2,
                     learning_rate_schedule="linear", clip_schedule="linear", entropy_schedule="linear"))
KEY = jax.random.key(0)
INF = float("inf")

init = jax.jit(lambda agent: agent.init(SPEC, KEY))
update = jax.jit(lambda agent, state, batch, key: agent.update(state, batch, key))
learn = jax.jit(loops.learn)


def agent(**fields):
    return on_device(dataclasses.replace(BASE, **fields))


def make_batch(state, *, seed=0, last=None, alive=None, behaviour=None, **fields):
    """A batch [8, 8] of random observations and actions; every step ends its episode unless told otherwise."""
    draw = np.random.default_rng(seed)
    ones = np.ones((8, 8), np.float32)
    normal = lambda *shape: draw.normal(size=shape).astype(np.float32)
    action = draw.integers(0, 3, (8, 8)).astype(np.int32)
    data = Transition(normal(8, 8, 3), action, normal(8, 8), 0 * ones, normal(8, 8, 3), ones > 0, ones, ())
    if last is not None:
        data = data._replace(last=last, alive=alive)
    return Batch(data._replace(**fields), (), state.actor if behaviour is None else behaviour, 64)


def assert_same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def moved(a, b):
    pairs = zip(jax.tree.leaves(jax.device_get(a)), jax.tree.leaves(jax.device_get(b)), strict=True)
    return max(float(np.abs(x - y).max()) for x, y in pairs if x.size)


@pytest.fixture(scope="module")
def state():
    return init(BASE)


def values(state, batch):
    return np.asarray(state.critic(jnp.asarray(batch.data.obs)))[..., 0]


def test_no_gradient_outside_the_clip(state):
    """The behaviour thought the actions rarer than the learner does: where they were good, there is nothing more to gain."""
    tilted = jax.tree.map(lambda x: jnp.array([0.0, -2.0, 0.0]) if x.shape == (3,) else jnp.zeros_like(x), state.actor.net)
    behaviour = state.actor.__class__(tilted, *(getattr(state.actor, f) for f in ("log_std", "moments", "space", "action", "squash")))
    action = np.ones((8, 8), np.int32)  # ratio (1/3) / 0.063 = 5.3, far above 1.2
    quiet = agent(normalise_advantage=False, value_coef=0.0, entropy_coef=0.0)
    good = values(state, make_batch(state)) + 1.0  # every step ends its episode, so the advantage is reward less value: 1
    after = update(quiet, state, make_batch(state, behaviour=behaviour, action=action, reward=good), KEY)
    assert_same_bits(after.state.actor, state.actor)
    assert float(after.metrics["clip_fraction"]) == 1.0
    bad = update(quiet, state, make_batch(state, behaviour=behaviour, action=action, reward=good - 2.0), KEY)
    assert moved(bad.state.actor, state.actor) > 1e-3  # the way back is open


def test_target_kl_stops_early(state):
    batch = make_batch(state)
    free = update(agent(learning_rate=0.3), state, batch, KEY)
    held = update(agent(learning_rate=0.3, target_kl=0.01), state, batch, KEY)
    assert float(free.metrics["gradient_steps"]) == 8
    assert 2 <= float(held.metrics["gradient_steps"]) < 8  # the first step starts where the data was made
    assert moved(held.state.actor, state.actor) < moved(free.state.actor, state.actor)
    (count,) = [x for x in jax.tree.leaves(held.state.optimiser) if x.dtype == jnp.int32]
    assert int(count) == float(held.metrics["gradient_steps"])  # what was not counted was not done
    assert_same_bits(update(agent(learning_rate=0.3, target_kl=1e9), state, batch, KEY).state, free.state)


def test_value_clip_holds_values_near_the_old_ones(state):
    batch = make_batch(state, reward=np.full((8, 8), 50.0, np.float32))
    old = values(state, batch)
    change = {clip: np.abs(values(update(agent(learning_rate=0.05, value_clip=clip), state, batch, KEY).state, batch) - old)
              for clip in (0.05, INF)}
    assert change[INF].mean() > 0.5 and change[0.05].mean() < 0.5 * change[INF].mean()


def test_schedules_reach_nothing_at_the_horizon(state):
    fading = agent(horizon=64.0 * 10)
    batch = make_batch(state)
    for done, factor in ((0, 1.0), (5, 0.5), (10, 0.0), (12, 0.0)):
        after = update(fading, state._replace(updates=jnp.int32(done)), batch, KEY)
        assert float(after.metrics["learning_rate"]) == pytest.approx(1e-2 * factor, abs=1e-9)
        assert int(after.state.updates) == done + 1
    assert_same_bits(after.state.actor, state.actor)
    constant = update(agent(), state._replace(updates=jnp.int32(1000)), batch, KEY)  # no horizon
    assert float(constant.metrics["learning_rate"]) == pytest.approx(1e-2)


def test_clip_and_entropy_schedules(state):
    """At the horizon no ratio may move, and exploration is worth nothing; half-way both still count."""
    batch = make_batch(state)

    def after(updates, **fields):
        return update(agent(horizon=64.0 * 2, value_coef=0.0, **fields), state._replace(updates=jnp.int32(updates)), batch, KEY)

    # the learning rate fades with the rest: at half-way it is worth twice as much to be comparable with the start
    start, half = after(0, learning_rate=1e-2), after(1, learning_rate=2e-2)
    assert float(start.metrics["learning_rate"]) == float(half.metrics["learning_rate"])
    assert float(start.metrics["clip_fraction"]) <= float(half.metrics["clip_fraction"])
    narrow = after(0, learning_rate=1e-2, clip=0.1, entropy_coef=0.005)  # what half-way amounts to
    assert moved(half.state.actor, narrow.state.actor) < 1e-6 < moved(half.state.actor, start.state.actor)


def test_normalisation_statistics_equal_numpys(state):
    both = agent(normalise_obs=True, normalise_reward=True)
    weight = (np.random.default_rng(9).random((8, 8)) < 0.7).astype(np.float32)
    batches = [make_batch(state, seed=s, valid=weight if s else np.ones((8, 8), np.float32)) for s in (0, 1)]
    after = state
    for batch in batches:
        after = update(both, after, batch, KEY).state
    rows = np.concatenate([b.data.obs[b.data.valid > 0] for b in batches]).astype(np.float64)
    seen = after.actor.moments
    assert float(seen.count) == len(rows)
    np.testing.assert_allclose(seen.mean, rows.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(seen.variance, rows.var(0), rtol=1e-4)
    # every step ends its episode, so raw returns are raw rewards
    rewards = np.concatenate([b.data.reward[b.data.valid > 0] for b in batches]).astype(np.float64)
    np.testing.assert_allclose(after.returns.mean, rewards.mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after.returns.variance, rewards.var(), rtol=1e-4)
    # policies normalise with what was seen
    x = np.array([[0.5, -1.0, 30.0]], np.float32)
    wanted = np.clip((x - rows.mean(0)) / rows.std(0), -10, 10)
    np.testing.assert_allclose(both.policy(after).features(jnp.asarray(x)), wanted, rtol=1e-3)
    off = update(agent(), state, batches[0], KEY).state
    assert float(off.actor.moments.count) == 0 and float(off.returns.count) == 0


def test_reward_scale_does_not_matter_where_rewards_are_normalised(state):
    scaled = agent(normalise_obs=True, normalise_reward=True)
    batch = make_batch(state)
    hundred = batch._replace(data=batch.data._replace(reward=batch.data.reward * 128.0))
    one, other = (update(scaled, state, b, KEY).state for b in (batch, hundred))
    assert moved(one.critic, other.critic) < 1e-3 < moved(one.critic, state.critic)


MASKED = EnvSpec("masked", Group((("x", Box((2,))), (MASK, Box((4,), 0.0, 1.0)))), Discrete(4))


def test_masked_actions_are_never_chosen_and_never_reinforced():
    learner = jax.jit(lambda a: a.init(MASKED, KEY))(BASE)
    num = 4000
    draw = np.random.default_rng(0)
    mask = np.ones((num, 4), np.float32)
    mask[np.arange(num), draw.integers(0, 4, num)] = 0
    mask[0] = [0, 0, 1, 0]
    obs = {"x": draw.normal(size=(num, 2)).astype(np.float32), MASK: mask}
    params = BASE.policy(learner)
    act = jax.jit(lambda a, p, obs, greedy, noise: a.act(p, (), obs, lane.role(0.0, num)._replace(greedy=greedy), noise).action)
    noise = BASE.draw(MASKED, KEY, (num,))
    for greedy in (jnp.zeros(num), jnp.ones(num)):
        chosen = np.asarray(act(BASE, params, obs, greedy, noise))
        assert (mask[np.arange(num), chosen] == 1).all() and chosen[0] == 2
    sampled = np.asarray(act(BASE, params, obs, jnp.zeros(num), noise))
    assert len(np.unique(sampled)) == 4
    log_prob = params.dist(params.features(obs), jnp.asarray(mask)).log_prob(jnp.asarray(mask.argmin(1)))[1:]
    assert (np.exp(log_prob) == 0).all()
    probs = np.exp([params.dist(params.features(obs), jnp.asarray(mask)).log_prob(jnp.full(num, a)) for a in range(4)])
    np.testing.assert_allclose(probs.sum(0), 1, rtol=1e-5)
    small = {name: x[:64].reshape(8, 8, -1) for name, x in obs.items()}
    data = Transition(small, sampled[:64].reshape(8, 8), np.ones((8, 8), np.float32), np.zeros((8, 8), np.float32), small,
                      np.ones((8, 8), bool), np.ones((8, 8), np.float32), ())
    after, metrics, _ = learn(BASE, learner, Batch(data, (), params, 64), KEY)
    assert float(metrics["refused"]) == 0 and moved(after.actor, learner.actor) > 1e-4


def test_rows_that_are_not_valid_change_nothing(state):
    """Agents that left: whatever stands in their rows, the update has the same bits."""
    valid = np.ones((8, 8), np.float32)
    valid[5:, ::2] = 0
    last, alive = np.zeros((8, 8), bool), np.ones((8, 8), np.float32)
    last[4, ::2], last[7], alive[4, ::2] = True, True, 0
    learner = agent(normalise_obs=True, normalise_reward=True)
    one = make_batch(state, valid=valid, last=last, alive=alive)
    draw, gone = np.random.default_rng(77), valid == 0
    data = one.data
    other = one._replace(data=data._replace(
        obs=np.where(gone[..., None], draw.normal(5, 3, data.obs.shape), data.obs).astype(np.float32),
        next_obs=np.where(gone[..., None], draw.normal(5, 3, data.obs.shape), data.next_obs).astype(np.float32),
        action=np.where(gone, draw.integers(0, 3, gone.shape), data.action).astype(np.int32),
        reward=np.where(gone, 100 * draw.normal(size=gone.shape), data.reward).astype(np.float32),
        alive=np.where(gone, 1 - data.alive, data.alive)))
    first, second = update(learner, state, one, KEY), update(learner, state, other, KEY)
    assert_same_bits(first.state, second.state)
    assert_same_bits(first.metrics, second.metrics)
    counted = update(learner, state, one._replace(data=data._replace(valid=np.ones_like(valid))), KEY)
    assert moved(first.state.actor.net, counted.state.actor.net) > 1e-6


@pytest.mark.parametrize(("field", "value"), [("reward", np.nan), ("reward", np.inf), ("next_obs", np.nan), ("obs", np.nan)])
def test_an_update_that_would_spoil_the_state_is_refused(state, field, value):
    batch = make_batch(state, last=np.zeros((8, 8), bool), alive=np.ones((8, 8), np.float32))
    spoilt = getattr(batch.data, field).copy()
    spoilt[3, 5] = value
    kept, metrics, _ = learn(BASE, state, batch._replace(data=batch.data._replace(**{field: spoilt})), KEY)
    assert float(metrics["refused"]) == 1
    assert_same_bits(kept, state)
    after, metrics, _ = learn(BASE, state, batch, KEY)
    assert float(metrics["refused"]) == 0 and moved(after.actor, state.actor) > 1e-4 and int(after.updates) == 1


def test_hyper_parameters_are_data(state):
    batch = make_batch(state)
    before = update(BASE, state, batch, KEY).state
    changed = [agent(**{name: value}) for name, value in {
        "learning_rate": 3e-3, "discount": 0.5, "gae_lambda": 0.5, "clip": 0.01, "value_clip": 0.1, "value_coef": 0.1,
        "entropy_coef": 1.0, "max_grad_norm": 0.1, "target_kl": 1e-6, "l2": 0.1, "epsilon": 0.1}.items()]
    goes_on = make_batch(state, last=np.zeros((8, 8), bool), alive=np.ones((8, 8), np.float32))
    compilations = Compilations()
    for other in changed:
        assert moved(update(other, state, goes_on, KEY).state, update(BASE, state, goes_on, KEY).state) > 0
    assert moved(before, state) > 0
    update(agent(horizon=1e6, log_std=0.3), state, batch, KEY)
    assert compilations.count == 0


def test_a_population_is_a_vmap(state):
    rates = jnp.array([0.0, 1e-3, 1e-2])
    batch = make_batch(state)
    axes = jax.tree.map(lambda _: None, BASE)
    axes = dataclasses.replace(axes, learning_rate=0)
    many = jax.jit(jax.vmap(lambda a, s, b, k: a.update(s, b, k).state, in_axes=(axes, None, None, None)))
    after = many(dataclasses.replace(BASE, learning_rate=rates), state, batch, KEY)
    for i, rate in enumerate(rates):
        alone = update(agent(learning_rate=float(rate)), state, batch, KEY).state
        assert moved(jax.tree.map(lambda x, i=i: x[i], after).actor.net, alone.actor.net) < 1e-5
    assert moved(jax.tree.map(lambda x: x[0], after).actor, state.actor) == 0
    assert moved(jax.tree.map(lambda x: x[2], after).actor, state.actor) > 1e-3
