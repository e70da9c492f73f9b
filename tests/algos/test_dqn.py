"""DQN and QR-DQN against arithmetic done by hand, and how they explore."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.dqn import DQN
from shoal.algos.qr_dqn import QRDQN
from shoal.errors import ConfigError
from shoal.fields import describe
from shoal.runtime.cut import on_device
from shoal.specs import MASK, Box, Discrete, EnvSpec, Group, MultiBinary
from shoal.testing.check_algorithm import check_algorithm
from shoal.types import Batch, Role, Transition

SPEC = EnvSpec("toy", Group((("x", Box((3,))), (MASK, MultiBinary(3)))), Discrete(3))
COMMON = {"hidden": (8,), "discount": 0.9, "optimiser": "sgd", "max_grad_norm": float("inf"), "learning_rate": 0.1, "huber": 0.5}
KEY = jax.random.key(0)
ROWS = 6
act, update = (jax.jit(lambda agent, *given, name=name: getattr(agent, name)(*given)) for name in ("act", "update"))


def prepared(agent, rows=ROWS):
    """The agent, a state whose target differs, and a batch with an end, a masked action, weights, and a row that is none."""
    agent, draw = on_device(agent), np.random.default_rng(0)
    state = agent.init(SPEC, KEY)
    state = state._replace(target=jax.tree.map(lambda x: -0.5 * x + 0.1, state.judge.head))
    obs, following = ({"x": draw.normal(size=(rows, 3)).astype(np.float32), MASK: np.ones((rows, 3), np.int32)} for _ in range(2))
    following[MASK][:, 1] = 0
    valid, alive = np.ones(rows, np.float32), np.full(rows, 0.9, np.float32)  # 0.9: as of two steps
    valid[5], alive[2] = 0.0, 0.0
    data = Transition(obs, draw.integers(0, 3, rows).astype(np.int32), 3 * draw.normal(size=rows).astype(np.float32), alive, following,
                      alive == 0, valid, ())
    weight = draw.uniform(0.5, 1.0, rows).astype(np.float32)
    return agent, state, Batch(jax.tree.map(jnp.asarray, data), (), (), 4.0, jnp.asarray(weight))


def best_allowed(values, mask):
    return np.where(np.asarray(mask) > 0, values, -np.inf).argmax(1)


def means(head, obs):
    out = np.asarray(head(jnp.asarray(obs["x"])))
    return out.mean(-1) if out.ndim == 3 else out


@pytest.mark.parametrize("double", [False, True])
def test_an_update_is_one_step_on_the_huber_loss(double):
    bend = 3.0
    agent, state, batch = prepared(DQN(**(COMMON | {"huber": bend}), double=double, duelling=double, prioritised=True))
    data, head, rows = batch.data, state.judge.head, np.arange(ROWS)
    ahead = means(state.target, data.next_obs)
    action = best_allowed(means(head, data.next_obs) if double else ahead, data.next_obs[MASK])
    target = data.reward + 0.9 * data.alive * ahead[rows, action]
    errors = target - means(head, data.obs)[rows, data.action]
    assert (np.abs(errors) > bend).any() and (np.abs(errors) < bend).any()

    def loss(head):
        error = jnp.abs(target - head(data.obs["x"])[rows, data.action])
        bent = jnp.where(error <= bend, 0.5 * error**2, bend * (error - bend / 2))
        return (bent * batch.weight)[:5].sum() / 5

    stepped = jax.tree.map(lambda x, slope: x - 0.1 * slope, head, jax.grad(loss)(head))
    after = update(agent, state, batch, KEY)
    for got, wanted, old in zip(*map(jax.tree.leaves, (after.state.judge.head, stepped, head)), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)
        assert (np.asarray(got) != np.asarray(old)).any()
    np.testing.assert_allclose(after.priorities, np.abs(errors), rtol=1e-5)
    np.testing.assert_allclose(after.metrics["value_loss"], loss(head), rtol=1e-5)
    np.testing.assert_allclose(after.metrics["td_error"], (np.abs(errors) * batch.weight)[:5].sum() / 5, rtol=1e-5)


def test_quantiles_are_learned_by_quantile_regression():
    agent, state, batch = prepared(QRDQN(**COMMON, num_quantiles=4, prioritised=True))
    data, head, rows = batch.data, state.judge.head, np.arange(ROWS)
    action = best_allowed(means(head, data.next_obs), data.next_obs[MASK])
    ahead = np.asarray(state.target(data.next_obs["x"]))[rows, action]  # [B, 4]
    target = np.asarray(data.reward)[:, None] + 0.9 * np.asarray(data.alive)[:, None] * ahead

    def loss(head):
        quantiles = head(data.obs["x"])[rows, data.action]
        total = 0.0
        for row in range(5):
            for i, fraction in enumerate((0.125, 0.375, 0.625, 0.875)):
                for j in range(4):
                    error = target[row, j] - quantiles[row, i]
                    bent = jnp.where(jnp.abs(error) <= 0.5, 0.5 * error**2, 0.5 * (jnp.abs(error) - 0.25))
                    total += batch.weight[row] * jnp.where(error < 0, 1 - fraction, fraction) * bent / 4
        return total / 5

    stepped = jax.tree.map(lambda x, slope: x - 0.1 * slope, head, jax.jit(jax.grad(loss))(head))
    after = update(agent, state, batch, KEY)
    for got, wanted in zip(*map(jax.tree.leaves, (after.state.judge.head, stepped)), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)
    errors = target.mean(1) - means(head, data.obs)[rows, data.action]
    np.testing.assert_allclose(after.priorities, np.abs(errors), rtol=1e-4)


def test_rows_in_blocks_give_the_same_step():
    """Three blocks of 200 rows: three times the same rows teach what they teach once."""
    agent, state, batch = prepared(DQN(**COMMON, prioritised=True), 200)
    three = batch._replace(data=jax.tree.map(lambda x: jnp.concatenate([x] * 3), batch.data), weight=jnp.concatenate([batch.weight] * 3))
    one, many = update(agent, state, batch, KEY), update(agent, state, three, KEY)
    for a, b in zip(*map(jax.tree.leaves, (one.state.judge, many.state.judge)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_allclose(many.priorities, np.tile(one.priorities, 3), rtol=1e-5)


def test_the_target_network_follows_at_its_pace():
    agent, state, batch = prepared(DQN(**COMMON, target_every=3))
    old = jax.tree.leaves(state.target)
    for count in range(1, 4):
        state = update(agent, state, batch, KEY).state
        same = [bool((a == b).all()) for a, b in zip(jax.tree.leaves(state.target), old, strict=True)]
        assert all(same) == (count < 3)
    for a, b in zip(*map(jax.tree.leaves, (state.target, state.judge.head)), strict=True):
        np.testing.assert_array_equal(a, b)
    soft, state, batch = prepared(DQN(**COMMON, target_every=1, tau=0.25))
    after = update(soft, state, batch, KEY).state
    for new, old, learned in zip(*map(jax.tree.leaves, (after.target, state.target, after.judge.head)), strict=True):
        np.testing.assert_allclose(new, 0.75 * old + 0.25 * learned, atol=1e-6)


# exploration -----------------------------------------------------------------------------------------------------------


def crowd(agent, greedy, num=4000, state=None, rank=0.0):
    """Actions of ``num`` environments that all see the same, and the values of the three actions."""
    agent = on_device(agent)
    state = agent.init(SPEC, KEY) if state is None else state
    obs = {"x": np.ones((num, 3), np.float32), MASK: np.tile(np.int32([1, 1, 0]), (num, 1))}
    params, noise = agent.policy(state), agent.draw(SPEC, jax.random.key(1), (num,))
    who = Role(jnp.full(num, rank, jnp.float32), jnp.full(num, float(greedy)))
    return np.asarray(act(agent, params, (), obs, who, noise).action), np.asarray(agent.expected(state.judge.head(obs["x"][0])))


WAYS = {"epsilon": {"epsilon_schedule": "constant", "epsilon_start": 0.4}, "boltzmann": {"exploration": "boltzmann"},
        "parameter_noise": {"exploration": "parameter_noise", "noise_scale": 1.0}, "noisy": {"noisy": True, "hidden": (8, 8)}}


@pytest.mark.parametrize("way", WAYS)
def test_the_greedy_role_is_greedy_and_masks_hold(way):
    agent = DQN(**COMMON | WAYS[way])
    greedy, values = crowd(agent, True)
    assert (greedy == values[:2].argmax()).all()
    explored, _ = crowd(agent, False)
    assert {0, 1} == set(explored.tolist())  # never the action that is not allowed


def test_shares_of_random_actions():
    agent = DQN(**COMMON | WAYS["epsilon"])
    explored, values = crowd(agent, False)
    assert abs((explored != values[:2].argmax()).mean() - 0.2) < 0.03  # half of ε = 0.4 falls on the best
    lanes = dataclasses.replace(agent, lane_epsilon=True, lane_alpha=2.0)
    explored, _ = crowd(lanes, False, rank=0.5)
    assert abs((explored != values[:2].argmax()).mean() - 0.4**2 / 2) < 0.02
    soft = DQN(**COMMON, exploration="boltzmann", epsilon_schedule="constant", temperature_start=0.7)
    explored, values = crowd(soft, False)
    odds = np.exp(values[:2] / 0.7)
    assert abs((explored == 1).mean() - odds[1] / odds.sum()) < 0.03


def test_exploration_falls_over_its_share_of_the_horizon():
    agent = DQN(horizon=10_000.0, start_size=1_000, update_every=4, updates=2, epsilon_start=0.9, epsilon_end=0.1, epsilon_fraction=0.5)
    counts = np.array([0, 1_000, 2_000, 4_000])
    steps = 1_000 + 2 * counts  # two environment steps to an update
    np.testing.assert_allclose([agent.level(jnp.int32(n)) for n in counts], np.maximum(0.9 - 0.8 * steps / 5_000, 0.1), rtol=1e-5)


def test_noise_on_weights_is_kept_then_renewed_and_adapts():
    agent, state, batch = prepared(DQN(**COMMON | {"noise_updates": 2, "exploration": "parameter_noise"}, epsilon_schedule="constant",
                                       epsilon_start=0.3, noise_scale=1e-3))
    assert float(agent.policy(state).level) == 1.0  # nothing learned yet: any action
    first = update(agent, state, batch, KEY).state
    assert float(agent.policy(first).level) == 0.0
    assert all((a == b).all() for a, b in zip(*map(jax.tree.leaves, (first.wobble, state.wobble)), strict=True))
    second = update(agent, first, batch, KEY).state
    assert all((a != b).any() for a, b in zip(*map(jax.tree.leaves, (second.wobble, first.wobble)), strict=True))
    np.testing.assert_allclose(second.wobble.scale, 1e-3 * 1.01)  # hardly differs from greedy: more
    loud = first._replace(wobble=first.wobble._replace(scale=jnp.float32(50.0)))
    np.testing.assert_allclose(update(agent, loud, batch, KEY).state.wobble.scale, 50.0 / 1.01)
    moved = agent.policy(loud).moved
    for got, weights, noise in zip(*map(jax.tree.leaves, (moved, loud.judge.head, loud.wobble.noise)), strict=True):
        np.testing.assert_allclose(got, weights + 50.0 * noise, rtol=1e-6)


def test_noisy_layers_learn_their_noise():
    agent, state, batch = prepared(DQN(**COMMON | WAYS["noisy"]))
    one, other = (update(agent, state, batch, jax.random.key(i)).state.judge.head for i in (1, 2))
    stream, start = one.streams[0].layers[0], state.judge.head.streams[0].layers[0]
    assert (stream.scale.weight != start.scale.weight).any()
    assert (stream.mean.weight != other.streams[0].layers[0].mean.weight).any()  # another draw, another gradient


# settings --------------------------------------------------------------------------------------------------------------


def test_continuous_actions_are_refused():
    with pytest.raises(ConfigError, match="'pendulum' is a Box: values of actions expect Discrete"):
        DQN().init(EnvSpec("pendulum", Box((3,)), Box((1,), -1.0, 1.0)), KEY)


def test_settings_are_those_that_count():
    fields = {name: {item.name for item in describe("algo", name).fields} for name in ("dqn", "qr_dqn", "linear_q")}
    assert {"hidden", "capacity", "noisy", "tau"} <= fields["dqn"] and fields["qr_dqn"] - fields["dqn"] == {"num_quantiles"}
    assert {"capacity", "order", "l2"} <= fields["linear_q"] and not {"hidden", "net", "channels", "noisy"} & fields["linear_q"]
    assert describe("algo", "dqn").ranges["hidden"] == (1, 100_000) and describe("algo", "dqn").ranges["batch_size"] == (1, 2**20)


def test_it_keeps_its_side():
    agent = DQN(hidden=(8, 8), num_steps=4, batch_size=8, start_size=8, capacity=64, noisy=True, prioritised=True)
    findings = check_algorithm(agent, kinds=())
    assert findings and all(finding.ok for finding in findings), findings
