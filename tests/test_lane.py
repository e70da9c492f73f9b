"""Lanes of compiled environments: what a chunk records around ends, time limits and agents that leave early."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import lane, rng
from shoal.algos.ppo import PPO
from shoal.envs import make
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import LaneState, Step, pytree


@pytree
class Leaving:
    """Agents that leave one after the other: agent i at step 2 + 2i, the even ones for good, the odd ones by a time limit.

    Deterministic. State: steps taken. Observation: agent and step. Reward 10 · agent + step, also for those who have left.
    """

    num_agents: int = 2

    @property
    def spec(self):
        return EnvSpec("leaving", Box((2,)), Discrete(3), num_agents=self.num_agents)

    def _observe(self, count):
        agent = jnp.arange(self.num_agents, dtype=jnp.float32)
        return jnp.stack([agent, jnp.broadcast_to(count.astype(jnp.float32), agent.shape)], axis=-1)

    def reset(self, key):
        count = jnp.zeros((), jnp.int32)
        return count, self._observe(count)

    def step(self, state, action, key):
        count, agent = state + 1, jnp.arange(self.num_agents)
        leaves, even = count == 2 + 2 * agent, agent % 2 == 0
        return count, Step(self._observe(count), (10 * agent + count).astype(jnp.float32), leaves & even, leaves & ~even, {})


AGENT = PPO(num_steps=40, hidden=(8,), init_scheme="xavier")


def steps_of(env, state, fresh, count, size):
    """``count`` calls of ``advance`` with action 0, stacked."""
    agents = env.spec.agent_shape
    rows = []
    advance, keys = jax.jit(lane.advance), jax.random.split(jax.random.key(0), size)
    action = jnp.zeros((size, *agents), jnp.int32)
    for _ in range(count):
        state, record, episodes = advance(env, state, action, (), (), keys, fresh)
        rows.append((record, episodes))
    return state, *(jax.tree.map(lambda *x: np.stack(x), *part) for part in zip(*rows, strict=True))


@pytest.fixture(scope="module")
def left():
    env = Leaving()
    state, obs = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 1))
    start = LaneState(state, obs, (), jnp.ones((1, 2), bool), jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32))
    return steps_of(env, start, (state, obs, ()), 6, 1)


def test_agents_that_leave_early(left):
    _, data, _ = left
    assert data.valid[:, 0].tolist() == [[1, 1], [1, 1], [0, 1], [0, 1], [1, 1], [1, 1]]
    # agent 0 terminates at step 2; agent 1 is truncated at step 4, which ends the episode and every trace with it
    assert data.last[:, 0].astype(int).tolist() == [[0, 0], [1, 0], [0, 0], [1, 1], [0, 0], [1, 0]]
    assert data.alive[:, 0].tolist() == [[1, 1], [0, 1], [1, 1], [1, 1], [1, 1], [0, 1]]
    assert data.reward[:, 0].tolist() == [[1, 11], [2, 12], [3, 13], [4, 14], [1, 11], [2, 12]]


def test_episode_returns_count_only_who_is_present(left):
    state, _, episodes = left
    assert episodes.ended[:, 0].tolist() == [False, False, False, True, False, False]
    assert episodes.returns[3, 0].tolist() == [1 + 2, 11 + 12 + 13 + 14] and int(episodes.lengths[3, 0]) == 4
    assert state.returns[0].tolist() == [3, 23] and state.lengths.tolist() == [2] and state.present[0].tolist() == [False, True]


def test_true_final_observation_and_fresh_start(left):
    _, data, _ = left
    assert data.obs[:, 0, 1, 1].tolist() == [0, 1, 2, 3, 0, 1]  # a new episode begins after step 4
    assert data.next_obs[:, 0, 1, 1].tolist() == [1, 2, 3, 4, 1, 2]  # but its successor is the true one


def test_single_agent_ends_and_limits():
    env = make("cartpole", 7)
    keys = jax.random.split(jax.random.key(1), 3)
    state, obs = jax.vmap(env.reset)(keys)
    fresh_state, fresh_obs = jax.vmap(env.reset)(jax.random.split(jax.random.key(2), 3))
    start = LaneState(state, obs, (), jnp.ones(3, bool), jnp.zeros(3), jnp.zeros(3, jnp.int32))
    after, data, episodes = steps_of(env, start, (fresh_state, fresh_obs, ()), 9, 3)
    assert episodes.ended.tolist() == [[t == 6] * 3 for t in range(9)]
    assert (data.alive == 1).all() and (data.last == episodes.ended).all() and (data.valid == 1).all()  # a limit is no end
    assert (episodes.lengths[6] == 7).all() and (episodes.returns[6] == 7).all() and after.lengths.tolist() == [2, 2, 2]
    np.testing.assert_array_equal(data.obs[7], fresh_obs)
    assert (np.abs(data.next_obs[6] - data.obs[7]).max(axis=1) > 0.1).all()
    np.testing.assert_array_equal(data.next_obs[:6], data.obs[1:7])


def test_rollout_equals_stepping_by_hand():
    env, size, root = make("cartpole", 30), 3, rng.root(5)
    params = AGENT.policy(AGENT.init(env.spec, rng.key(root, rng.Stream.INIT)))
    state = jax.jit(lane.start, static_argnums=4)(AGENT, env, root, 2, size)
    draws = jax.jit(lane.draw, static_argnums=5)(AGENT, env, root, 2, 9, size)
    role = lane.role(0.0, size)
    after, data, episodes = jax.jit(lane.rollout)(AGENT, env, params, state, draws, role)
    assert data.reward.shape == (40, 3) and int(np.asarray(episodes.ended).sum()) >= 3
    act, step, reset = jax.jit(lambda p, o, n: AGENT.act(p, (), o, role, n).action), jax.jit(env.step), jax.jit(env.reset)
    worlds = [jax.tree.map(lambda x, i=i: x[i], (state.env, state.obs)) for i in range(size)]
    length, total = [0] * size, [0.0] * size
    for t in range(40):
        np.testing.assert_array_equal(data.obs[t], np.stack([obs for _, obs in worlds]))
        action = act(params, data.obs[t], draws.noise[t])
        np.testing.assert_array_equal(data.action[t], action)
        for i in range(size):
            world, answer = step(worlds[i][0], action[i], draws.step_keys[t, i])
            over = bool(answer.terminated | answer.truncated)
            np.testing.assert_allclose(data.next_obs[t, i], answer.obs, rtol=1e-5, atol=1e-6)
            assert bool(data.last[t, i]) == over and float(data.alive[t, i]) == 1 - bool(answer.terminated)
            length[i], total[i] = length[i] + 1, total[i] + float(answer.reward)
            assert bool(episodes.ended[t, i]) == over
            if over:
                assert int(episodes.lengths[t, i]) == length[i] and float(episodes.returns[t, i]) == total[i]
                length[i], total[i] = 0, 0.0
            # continue from the record, so that a rounding in one step cannot grow over forty
            shown = data.obs[t + 1, i] if t < 39 else after.obs[i]
            follow, wanted = reset(draws.reset_keys[t, i]) if over else (world, answer.obs)
            np.testing.assert_allclose(shown, wanted, rtol=1e-5, atol=1e-6)
            worlds[i] = (follow, shown)
    assert after.lengths.tolist() == length


def test_side_by_side_keeps_lane_order():
    x = jnp.arange(2 * 3 * 4).reshape(2, 3, 4)  # lanes, time, environments
    out = lane.side_by_side(x)
    assert out.shape == (3, 8) and out[1].tolist() == [4, 5, 6, 7, 16, 17, 18, 19]


def test_draws_depend_on_lane_and_chunk_only():
    env, draw = make("cartpole"), jax.jit(lane.draw, static_argnums=5)
    noise = [np.asarray(draw(AGENT, env, rng.root(3), index, seq, 2).noise) for index, seq in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert (noise[0] == noise[3]).all() and (noise[0] != noise[1]).all() and (noise[0] != noise[2]).all()
    separate = lane.draw_noise(AGENT, env.spec, rng.root(3), 1, 0, 2)  # what host lanes use
    np.testing.assert_array_equal(separate, noise[2])
