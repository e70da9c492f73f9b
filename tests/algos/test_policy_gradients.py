"""A2C, IMPALA and REINFORCE against arithmetic done by hand, step by step in plain NumPy."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.a2c import A2C
from shoal.algos.actor_critic import weights, with_weights
from shoal.algos.impala import IMPALA
from shoal.algos.ppo import PPO
from shoal.algos.recurrent_ppo import RecurrentPPO
from shoal.algos.reinforce import REINFORCE
from shoal.algos.sac import SAC
from shoal.errors import ConfigError
from shoal.runtime.cut import on_device
from shoal.specs import Box, Discrete, EnvSpec, MultiDiscrete
from shoal.types import Batch, Transition

SPEC = EnvSpec("toy", Box((3,)), Discrete(3))
COMMON = {"num_steps": 6, "hidden": (8,), "init_scheme": "xavier", "discount": 0.9, "optimiser": "sgd", "max_grad_norm": float("inf"),
          "learning_rate": 0.1, "entropy_coef": 0.05}
LAST = np.array([[0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]], bool).T  # [6, 2]
DEAD = np.array([[0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]], bool).T  # the end at (4, 0) is a time limit
KEY = jax.random.key(0)


def prepared(agent):
    """The agent, its fresh state, and a batch [6, 2] with ends of both kinds."""
    agent, draw = on_device(agent), np.random.default_rng(0)
    state = agent.init(SPEC, KEY)
    normal = lambda *shape: draw.normal(size=shape).astype(np.float32)
    obs, beyond = normal(6, 2, 3), normal(6, 2, 3)
    following = np.where(LAST[..., None], beyond, np.concatenate([obs[1:], beyond[-1:]]))  # the next row's, unless an episode ends
    data = Transition(obs, draw.integers(0, 3, (6, 2)).astype(np.int32), normal(6, 2), 1.0 - DEAD.astype(np.float32),
                      following, LAST, np.ones((6, 2), np.float32), ())
    return agent, state, Batch(jax.tree.map(jnp.asarray, data), (), state.actor, 12)


def values(state, obs):
    return np.asarray(state.critic(jnp.asarray(obs)))[..., 0]


def returns_by_hand(batch, next_value, discount=0.9):
    """Returns cut at ends, continued with ``next_value`` where the world goes on."""
    out = np.zeros((6, 2))
    for column in range(2):
        ahead = 0.0
        for t in reversed(range(6)):
            cut = LAST[t, column] or t == 5
            after = batch.data.alive[t, column] * next_value[t, column] if cut else ahead
            ahead = out[t, column] = batch.data.reward[t, column] + discount * after
    return out


def loss_by_hand(moving, state, batch, weight, target, agent, share):
    """Policy gradient, value and entropy for given weights of actions, written out."""
    net, _, critic = moving
    obs, action = jnp.asarray(batch.data.obs), batch.data.action
    log_probs = jax.nn.log_softmax(net(obs))
    chosen = jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
    error = 0.5 * (critic(obs)[..., 0] - target) ** 2
    return (share * (-chosen * weight + agent.value_coef * error - agent.entropy_coef * entropy)).sum()


def stepped(state, batch, weight, target, agent, share):
    """The weights after one plain gradient step of 0.1."""
    moving = weights(state.actor, state.critic)
    grads = jax.grad(loss_by_hand)(moving, state, batch, weight, target, agent, share)
    return jax.tree.map(lambda w, g: w - 0.1 * g, moving, grads)


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), a, b)


def test_a2c_takes_the_step_of_its_equations():
    agent, state, batch = prepared(A2C(**COMMON))
    value, next_value = values(state, batch.data.obs), values(state, batch.data.next_obs)
    target = returns_by_hand(batch, next_value)
    wanted = stepped(state, batch, target - value, target, agent, np.full((6, 2), 1 / 12))
    after = agent.update(state, batch, KEY)
    assert_close(weights(after.state.actor, after.state.critic), wanted)
    assert float(after.metrics["value_loss"]) == pytest.approx((0.5 * (value - target) ** 2).mean(), rel=1e-4)
    assert int(after.state.updates) == 1


def aged(batch, size=0.5):
    """The batch as if another policy had made it."""
    actor, draw = batch.behaviour, np.random.default_rng(1)
    net = jax.tree.map(lambda x: x + size * draw.normal(size=x.shape).astype(np.float32), actor.net)
    return batch._replace(behaviour=with_weights(actor, net, actor.log_std))


def chosen_log_prob(actor, batch):
    log_probs = np.asarray(jax.nn.log_softmax(actor.net(jnp.asarray(batch.data.obs))))
    return np.take_along_axis(log_probs, np.asarray(batch.data.action)[..., None], axis=-1)[..., 0]


def vtrace_by_hand(batch, value, next_value, ratio, rho_bar, c_bar, discount=0.9):
    """Targets, and what actions are weighed by, backwards from the end of the chunk."""
    target, weight = np.zeros((6, 2)), np.zeros((6, 2))
    rho, c = np.minimum(ratio, rho_bar), np.minimum(ratio, c_bar)
    reward, alive = np.asarray(batch.data.reward), np.asarray(batch.data.alive)
    for column in range(2):
        for t in reversed(range(6)):
            cut = LAST[t, column] or t == 5
            beyond = alive[t, column] * next_value[t, column]
            error = reward[t, column] + discount * beyond - value[t, column]
            ahead = 0.0 if cut else target[t + 1, column] - value[t + 1, column]
            target[t, column] = value[t, column] + rho[t, column] * error + discount * c[t, column] * ahead
            after = beyond if cut else target[t + 1, column]
            weight[t, column] = rho[t, column] * (reward[t, column] + discount * after - value[t, column])
    return target, weight


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 1.5)])
def test_impala_takes_the_step_of_its_equations(rho_bar, c_bar):
    agent, state, batch = prepared(IMPALA(**COMMON, rho_bar=rho_bar, c_bar=c_bar))
    batch = aged(batch)
    log_ratio = chosen_log_prob(state.actor, batch) - chosen_log_prob(batch.behaviour, batch)
    assert log_ratio.min() < -0.1 and log_ratio.max() > np.log(2.0)  # some steps below the bars and some above
    value, next_value = values(state, batch.data.obs), values(state, batch.data.next_obs)
    target, weight = vtrace_by_hand(batch, value, next_value, np.exp(log_ratio), rho_bar, c_bar)
    wanted = stepped(state, batch, weight, target, agent, np.full((6, 2), 1 / 12))
    after = agent.update(state, batch, KEY)
    assert_close(weights(after.state.actor, after.state.critic), wanted)
    assert float(after.metrics["clip_fraction"]) == pytest.approx((np.exp(log_ratio) > rho_bar).mean())
    assert float(after.metrics["approximate_kl"]) == pytest.approx((np.exp(log_ratio) - 1 - log_ratio).mean(), rel=1e-4)


@pytest.mark.parametrize("kind", [A2C, IMPALA])
def test_a_gradient_applied_elsewhere_is_the_same_update(kind):
    agent, state, batch = prepared(dataclasses.replace(kind(**COMMON), normalise_obs=True, normalise_reward=True))
    whole = agent.update(state, batch, KEY)
    grads, aux = agent.gradient(state, batch, KEY)
    halves = agent.apply(state, grads, aux)
    jax.tree.map(np.testing.assert_array_equal, halves.state, whole.state)
    twice = agent.apply(halves.state, grads, aux)  # a second worker's push
    assert int(twice.state.updates) == 2 and float(jnp.abs(twice.state.critic.arrays.layers[0].weight
                                                             - whole.state.critic.arrays.layers[0].weight).max()) > 0


@pytest.mark.parametrize("weighting", ["total", "reward_to_go", "baseline"])
def test_reinforce_weighs_actions_as_it_says(weighting):
    agent, state, batch = prepared(REINFORCE(**COMMON, weighting=weighting, normalise_weight=False))
    value, next_value = values(state, batch.data.obs), values(state, batch.data.next_obs)
    if weighting == "baseline":
        target = returns_by_hand(batch, next_value)
        weight, used = target - value, np.ones((6, 2))
    else:
        target = returns_by_hand(batch, 0 * next_value)
        used = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]).T  # the last rows' episodes do not end here
        weight = target.copy()
    if weighting == "total":
        used = np.array([[0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]).T  # only one episode is here whole
        weight[2:5, 0] = target[2, 0]
    wanted = stepped(state, batch, weight, target, agent, used / used.sum())
    after = agent.update(state, batch, KEY)
    assert_close(weights(after.state.actor, after.state.critic), wanted)
    assert float(after.metrics["used"]) == pytest.approx(used.mean())


def test_a_chunk_without_a_whole_episode_moves_nothing():
    agent, state, batch = prepared(REINFORCE(**{**COMMON, "entropy_coef": 0.0}, weighting="total"))
    batch = batch._replace(data=batch.data._replace(last=jnp.zeros((6, 2), bool)))
    after = agent.update(state, batch, KEY)
    jax.tree.map(np.testing.assert_array_equal, weights(after.state.actor, after.state.critic), weights(state.actor, state.critic))
    assert float(after.metrics["used"]) == 0.0


def test_normalised_weights_do_not_see_the_scale_of_rewards():
    agent, state, batch = prepared(REINFORCE(**COMMON, weighting="reward_to_go"))
    larger = batch._replace(data=batch.data._replace(reward=10 * batch.data.reward))
    one, ten = (agent.update(state, b, KEY).state.actor.net for b in (batch, larger))
    assert_close(one, ten)


@pytest.mark.parametrize("kind", [A2C, IMPALA, REINFORCE, PPO, RecurrentPPO, SAC])
@pytest.mark.parametrize("action", [Discrete(3), MultiDiscrete((2, 3))])
def test_noise_of_the_state_is_refused_where_actions_are_choices(kind, action):
    with pytest.raises(ConfigError, match=r"^state_noise: expects actions that are real numbers, got .* of env 'choices'; leave it out$"):
        kind(state_noise=True).init(EnvSpec("choices", Box((3,)), action), KEY)
