"""Where V-trace leads: on the chain, data that is eight versions old teaches the value of the policy as it is now.

Espeholt et al. (2018), section 4.1: the fixed point is the value of π_ρ ∝ min(rho_bar · μ, π), which is π itself where the bar is high
enough. Once with the expectation over all chunks worked out, and once learned from chunks that the environment made.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import lane, rng
from shoal.algos.actor_critic import with_weights
from shoal.algos.impala import IMPALA
from shoal.envs import make
from shoal.envs.chain import Chain
from shoal.ops import returns
from shoal.runtime.cut import on_device
from shoal.types import Batch

CHAIN, DISCOUNT, INF = Chain(slip=0.1), 0.8, float("inf")
# log-odds of going right at every place, version by version
FIRST, STEP = np.array([0.0, -0.4, 0.4, -0.8, 0.0]), np.array([0.2, 0.25, -0.1, 0.3, 0.15])


def right_of(version):
    return 1.0 / (1.0 + np.exp(-(FIRST + version * STEP)))


OLD, NOW = right_of(0), right_of(8)


def clipped(rho_bar):
    """The policy that V-trace evaluates: its probability of right, at every place."""
    left, right = np.minimum(rho_bar * (1 - OLD), 1 - NOW), np.minimum(rho_bar * OLD, NOW)
    return right / (left + right)


def error(value, right):
    """How far values are from those of a policy, at most and in proportion."""
    return float(np.abs(value / CHAIN.values(right, DISCOUNT) - 1).max())


def test_the_policies_are_clearly_apart():
    assert np.abs(NOW - OLD).min() > 0.1
    assert error(CHAIN.values(OLD, DISCOUNT), NOW) > 0.2
    assert error(CHAIN.values(clipped(1.0), DISCOUNT), NOW) > 0.05 < error(CHAIN.values(clipped(1.0), DISCOUNT), OLD)
    np.testing.assert_allclose(clipped(INF), NOW)
    assert (NOW / OLD).max() < 5 and ((1 - NOW) / (1 - OLD)).max() < 5
    np.testing.assert_allclose(clipped(5.0), NOW)


# the expectation ----------------------------------------------------------------------------------------------------


def all_chunks(num_steps):
    """Every chunk of the old policy from every place: what V-trace is given, [T, B]; the place before and after; how likely it is."""
    ways = np.array(list(itertools.product(range(2), repeat=2 * num_steps)))  # chosen, and slipped, at every step
    ways = np.tile(ways, (CHAIN.length, 1)).reshape(-1, num_steps, 2)
    place = np.repeat(np.arange(CHAIN.length), len(ways) // CHAIN.length)
    weight, rows = np.ones(len(ways)), []
    for chosen, slipped in zip(ways[..., 0].T, ways[..., 1].T, strict=True):
        weight *= np.where(chosen, OLD[place], 1 - OLD[place]) * np.where(slipped, CHAIN.slip, 1 - CHAIN.slip)
        happens = chosen ^ slipped
        after = np.where(happens, np.minimum(place + 1, CHAIN.length - 1), 0)
        reward = np.where(happens, np.where(place == CHAIN.length - 1, CHAIN.end_reward, 0.0), CHAIN.back_reward)
        ratio = np.where(chosen, NOW[place] / OLD[place], (1 - NOW[place]) / (1 - OLD[place]))
        rows.append((place, after, reward, np.log(ratio)))
        place = after
    place, after, reward, log_ratio = (np.stack(column) for column in zip(*rows, strict=True))
    return place, after, reward.astype(np.float32), log_ratio.astype(np.float32), weight.astype(np.float32)


PLACE, AFTER, REWARD, LOG_RATIO, WEIGHT = all_chunks(4)


@jax.jit
def fixed_point(log_ratio, trace, rho_bar, c_bar):
    """A table of values, each put to the mean of its targets, again and again."""

    def backup(_, value):
        made = returns.vtrace(REWARD, jnp.ones(REWARD.shape), jnp.zeros(REWARD.shape, bool), value[PLACE], value[AFTER], log_ratio,
                              DISCOUNT, trace, rho_bar=rho_bar, c_bar=c_bar)
        return jnp.zeros(CHAIN.length).at[PLACE[0]].add(WEIGHT * made.target[0])

    return jax.lax.fori_loop(0, 400, backup, jnp.zeros(CHAIN.length))


@pytest.mark.parametrize(("trace", "c_bar"), [(1.0, 1.0), (1.0, 0.5), (0.7, 1.0)])
def test_the_fixed_point_is_the_value_of_the_clipped_policy(trace, c_bar):
    high, low = (fixed_point(LOG_RATIO, trace, bar, c_bar) for bar in (5.0, 1.0))
    uncorrected = fixed_point(0 * LOG_RATIO, trace, 1.0, c_bar)
    assert error(high, NOW) < 1e-3
    assert error(low, clipped(1.0)) < 1e-3 and error(low, NOW) > 0.05
    assert error(uncorrected, OLD) < 1e-3 and error(uncorrected, NOW) > 0.2


# learned ------------------------------------------------------------------------------------------------------------

NUM_STEPS, NUM_ENVS, ITERATIONS, SETTLED = 8, 1024, 1000, 200
TABLE = {"num_steps": NUM_STEPS, "hidden": (), "optimiser": "sgd", "learning_rate": 1.2, "discount": DISCOUNT, "value_coef": 1.0,
         "entropy_coef": 0.0, "max_grad_norm": INF}


def acting(actor, right):
    """The actor with the log-odds of ``right`` in its table, [place, action]."""
    odds = jnp.log(right / (1 - right))
    table = jax.tree.map(lambda x: jnp.stack([0 * odds, odds], axis=1) if x.ndim == 2 else 0 * x, actor.net)
    return with_weights(actor, table, actor.log_std)


@jax.jit
def learned(agent, told):
    """The table of values that many updates of ``agent`` come to, each on a chunk of the old policy and with the policy of now put back:
    its mean from when it has settled. ``told``: what the learner thinks of how likely the old policy went right."""
    env, root = make("chain", slip=CHAIN.slip, limit=30), rng.root(1)
    state = agent.init(env.spec, root)
    old, now, behaviour = (acting(state.actor, right) for right in (OLD, NOW, told))

    def iterate(i, carry):
        state, lanes, total = carry
        lanes, data, _ = lane.rollout(agent, env, old, lanes, lane.draw(agent, env, root, 0, i, NUM_ENVS), lane.role(0.0, NUM_ENVS))
        state = agent.update(state, Batch(data, (), behaviour, NUM_STEPS * NUM_ENVS), rng.fold_in(root, i)).state._replace(actor=now)
        value = state.critic(now.features(jnp.arange(CHAIN.length)))[:, 0]
        return state, lanes, total + jnp.where(i >= SETTLED, value, 0.0)

    start = state._replace(actor=now), lane.start(agent, env, root, 0, NUM_ENVS), jnp.zeros(CHAIN.length)
    return jax.lax.fori_loop(0, ITERATIONS, iterate, start)[2] / (ITERATIONS - SETTLED)


def test_impala_learns_the_value_of_its_policy_from_old_data():
    high, low = (on_device(IMPALA(**TABLE, rho_bar=bar)) for bar in (5.0, 1.0))
    assert error(learned(high, OLD), NOW) < 0.01
    held = learned(low, OLD)
    assert error(held, clipped(1.0)) < 0.01 and error(held, NOW) > 0.05
    uncorrected = learned(high, NOW)  # as if the data were its own: every ratio is 1
    assert error(uncorrected, OLD) < 0.01 and error(uncorrected, NOW) > 0.2
