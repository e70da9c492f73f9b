"""Data of another policy: IMPALA and PPO with V-trace, for every kind of action, with memory, and in teams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos import team
from shoal.algos.a2c import A2C
from shoal.algos.actor_critic import flat, log_prob, weights, with_weights
from shoal.algos.impala import IMPALA
from shoal.algos.ppo import PPO
from shoal.algos.recurrent_ppo import RecurrentPPO
from shoal.runtime.cut import on_device
from shoal.specs import MASK, Box, Discrete, EnvSpec, Group, MultiBinary, MultiDiscrete
from shoal.types import Batch, Transition

KEY = jax.random.key(0)
INF = float("inf")
COMMON = {"num_steps": 6, "hidden": (8,), "init_scheme": "xavier", "discount": 0.9, "optimiser": "sgd", "max_grad_norm": INF,
          "learning_rate": 0.1, "entropy_coef": 0.05}
ONE_STEP = {"num_epochs": 1, "num_minibatches": 1, "normalise_advantage": False, "clip": INF}
PLAIN = Box((3,))
MASKED = Group((("x", PLAIN), (MASK, Box((3,), 0.0, 1.0))))
# observations, actions, settings
WORLDS = {
    "choice": (PLAIN, Discrete(3), {}),
    "mask": (MASKED, Discrete(3), {}),
    "choices": (PLAIN, MultiDiscrete((2, 3)), {}),
    "switches": (PLAIN, MultiBinary(2), {}),
    "continuous": (PLAIN, Box((2,), -1.0, 1.0), {}),
    "squashed": (PLAIN, Box((2,), -1.0, 1.0), {"squash": True}),
    "state_noise": (PLAIN, Box((2,), -1.0, 1.0), {"state_noise": True}),
}


def collected(agent, spec, size=0.0, seed=0):
    """A fresh state and a batch [6, 4] of random steps, acted by its policy, or by one that lies ``size`` apart."""
    agent, draw = on_device(agent), np.random.default_rng(seed)
    state = agent.init(spec, KEY)
    behaviour = apart(agent.policy(state), size)
    normal = lambda *shape: draw.normal(size=shape).astype(np.float32)
    x, beyond, last = normal(6, 4, 3), normal(6, 4, 3), draw.random((6, 4)) < 0.2
    obs, following = x, np.where(last[..., None], beyond, np.concatenate([x[1:], beyond[-1:]]))
    if spec.obs == MASKED:
        mask = np.ones((6, 4, 3), np.float32)
        mask[::2, :, 0] = 0.0
        obs, following = {"x": obs, MASK: mask}, {"x": following, MASK: mask}
    flat_obs = jax.tree.map(lambda x: jnp.asarray(x).reshape((24,) + x.shape[2:]), obs)
    dist = behaviour.dist(behaviour.features(flat_obs), flat_obs[MASK] if spec.obs == MASKED else None)
    action = dist.sample(agent.draw(spec, KEY, (24,)), jnp.ones(24))
    alive = np.where(last, draw.integers(0, 2, (6, 4)), 1).astype(np.float32)
    data = Transition(obs, action.reshape((6, 4) + action.shape[1:]), normal(6, 4), alive, following, last, np.ones((6, 4), np.float32), ())
    return agent, state, Batch(jax.tree.map(jnp.asarray, data), (), behaviour, 24)


def apart(actor, size):
    """The actor with other weights, and another spread."""
    draw = np.random.default_rng(1)
    moved = lambda x: x + size * draw.normal(size=x.shape).astype(np.float32)
    return with_weights(actor, jax.tree.map(moved, actor.net), moved(actor.log_std))


def assert_close(a, b, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=atol), a, b)


def moved(state):
    return weights(state.actor, state.critic)


def distance(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.abs(x - y).max()) for x, y in pairs if x.size)


@pytest.mark.parametrize("world", WORLDS)
def test_impala_is_a2c_where_the_data_is_its_own(world):
    obs, action, settings = WORLDS[world]
    spec = EnvSpec("toy", obs, action)
    agent, state, batch = collected(IMPALA(**COMMON, **settings), spec)
    after, plain = (which.update(state, batch, KEY) for which in (agent, on_device(A2C(**COMMON, **settings))))
    assert_close(moved(after.state), moved(plain.state))
    assert float(after.metrics["approximate_kl"]) == 0.0 == float(after.metrics["clip_fraction"])

    _, _, old = collected(agent, spec, size=0.4)
    after, plain = (which.update(state, old, KEY) for which in (agent, on_device(A2C(**COMMON, **settings))))
    assert float(after.metrics["approximate_kl"]) > 1e-3 and distance(moved(after.state), moved(plain.state)) > 1e-4
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(moved(after.state)))


SPEC = EnvSpec("toy", PLAIN, Discrete(3))


@pytest.mark.parametrize("normalise", [False, True])
def test_ppo_corrected_is_ppo_where_the_data_is_its_own(normalise):
    settings = COMMON | {"num_minibatches": 2, "normalise_advantage": normalise}
    corrected, state, batch = collected(PPO(**settings, correction="vtrace"), SPEC)
    plain = on_device(PPO(**settings))
    ours, theirs = corrected._rows(state, batch)[0], plain._rows(state, batch)[0]
    assert theirs.ratio is None and ours.ratio.shape == (24,)
    np.testing.assert_allclose(ours.ratio, 1.0)
    assert_close(ours._replace(ratio=None), theirs, atol=1e-5)
    one, two = corrected.update(state, batch, KEY), plain.update(state, batch, KEY)
    assert_close((moved(one.state), one.metrics), (moved(two.state), two.metrics), atol=1e-5)


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (INF, 1.5)])
def test_the_first_step_of_ppo_corrected_is_that_of_impala(rho_bar, c_bar):
    bars = {"rho_bar": rho_bar, "c_bar": c_bar}
    impala, state, batch = collected(IMPALA(**COMMON, **bars, trace_lambda=0.9), SPEC, size=0.4)
    ppo = on_device(PPO(**COMMON, **ONE_STEP, **bars, gae_lambda=0.9, correction="vtrace"))
    after = ppo.update(state, batch, KEY)
    assert_close(moved(after.state), moved(impala.update(state, batch, KEY).state))
    assert float(after.metrics["approximate_kl"]) == pytest.approx(0.0, abs=1e-6)  # it is held near where it starts from
    uncorrected = on_device(PPO(**COMMON, **ONE_STEP, gae_lambda=0.9)).update(state, batch, KEY)
    assert distance(moved(uncorrected.state), moved(after.state)) > 1e-3


def test_advantages_are_normalised_before_they_are_corrected():
    """So that what is subtracted from all of them is a baseline of the policy that learns."""
    settings = COMMON | ONE_STEP | {"normalise_advantage": True}
    agent, state, batch = collected(PPO(**settings, correction="vtrace"), SPEC, size=0.4)
    bare = on_device(PPO(**settings | {"normalise_advantage": False}, correction="vtrace"))._rows(state, batch)[0]
    standard = (bare.advantage - bare.advantage.mean()) / bare.advantage.std()
    after = agent.update(state, batch, KEY)
    assert float(after.metrics["policy_loss"]) == pytest.approx(-float((bare.ratio * standard).mean()), rel=1e-4)


def test_ratios_are_of_the_learner_to_the_behaviour_each_with_its_own_normaliser():
    agent, state, batch = collected(PPO(**COMMON, correction="vtrace", rho_bar=INF, normalise_obs=True), SPEC, size=0.4)
    older = state
    for seed in (1, 2):
        state = agent.update(state, collected(agent, SPEC, seed=seed)[2], KEY).state
    assert distance(state.actor.moments.mean, older.actor.moments.mean) > 1e-3
    rows = agent._rows(state, batch)[0]
    obs, action = flat(batch.data, batch.data.obs), flat(batch.data, batch.data.action)
    now, then = (jnp.exp(actor.dist(actor.features(obs), None).log_prob(action)) for actor in (state.actor, batch.behaviour))
    np.testing.assert_allclose(rows.ratio, now / then, rtol=1e-4)
    np.testing.assert_allclose(rows.log_prob, jnp.log(now), rtol=1e-4, atol=1e-5)
    seen = agent.judge(state, batch)
    np.testing.assert_allclose(log_prob(batch.behaviour, batch.data, seen), jnp.log(then), rtol=1e-4, atol=1e-5)


def chances(actor, memory, data):
    """How likely a policy with memory finds the actions [6, 4], step by step from the memory given."""
    out = []
    for t in range(6):
        memory = actor.net.recall(memory, actor.features(data.obs[t]))
        out.append(jnp.exp(actor.dist(actor.net, memory, None).log_prob(data.action[t])))
        memory = jnp.where(data.last[t][:, None, None], 0.0, memory)
    return jnp.stack(out)


def test_memory_is_corrected_with_what_each_policy_remembers():
    settings = {"num_steps": 6, "num_minibatches": 2, "num_epochs": 1, "hidden": (8,), "memory_size": 4, "init_scheme": "xavier",
                "entropy_coef": 0.0}
    agent, still = (on_device(RecurrentPPO(**settings, correction="vtrace", rho_bar=bar)) for bar in (INF, 0.0))
    state, (_, _, batch) = agent.init(SPEC, KEY), collected(IMPALA(**COMMON), SPEC)
    own = batch._replace(memory=jax.random.normal(KEY, (4, 2, 4)), behaviour=state.actor)
    ours, theirs = (which._columns(state, own)[0] for which in (agent, on_device(RecurrentPPO(**settings))))
    np.testing.assert_allclose(ours.ratio, 1.0)
    assert_close(ours._replace(ratio=None), theirs, atol=1e-5)

    draw = np.random.default_rng(1)
    net = jax.tree.map(lambda x: x + 0.4 * draw.normal(size=x.shape).astype(np.float32), state.actor.net)
    old = own._replace(behaviour=type(state.actor)(net, state.actor.moments, PLAIN, SPEC.action, squash=False))
    columns = agent._columns(state, old)[0]
    now, then = (chances(actor, old.memory, old.data) for actor in (state.actor, old.behaviour))
    np.testing.assert_allclose(columns.ratio.T, now / then, rtol=1e-4)
    np.testing.assert_allclose(columns.log_prob.T, jnp.log(now), rtol=1e-4, atol=1e-5)
    assert float(jnp.abs(columns.ratio - 1).max()) > 0.1

    update = jax.jit(lambda agent: agent.update(state, old, KEY).state.actor.net.policy)
    assert distance(update(agent), state.actor.net.policy) > 1e-5
    assert distance(update(still), state.actor.net.policy) == 0.0  # where no step counts, no policy moves


@pytest.mark.parametrize("kind", ["independent", "shared"])
@pytest.mark.parametrize("agent", [IMPALA(**COMMON), PPO(**COMMON, **ONE_STEP, correction="vtrace")], ids=["impala", "ppo"])
def test_a_team_learns_from_data_of_an_older_team(agent, kind):
    agent, state, batch = collected(agent, SPEC, size=0.4)
    pair = on_device(getattr(team, kind)(agent))
    twice = lambda tree: jax.tree.map(lambda x: jnp.stack([x, x]), tree)
    data = jax.tree.map(lambda x: jnp.stack([x, x], axis=2), batch.data)  # both agents live through the same
    apiece = kind == "independent"
    after = pair.update(twice(state) if apiece else state, Batch(data, (), twice(batch.behaviour) if apiece else batch.behaviour, 24), KEY)
    alone = agent.update(state, batch, KEY).state
    wanted = twice(moved(alone)) if apiece else moved(alone)
    assert_close(moved(after.state), wanted, atol=1e-5)
    assert distance(moved(alone), moved(state)) > 1e-3
