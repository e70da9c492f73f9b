"""Lanes that explore each by an epsilon of its own, counted in what they did: compiled in, through ports, and on the host."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from shoal.algos.dqn import DQN
from shoal.buffers import layout

LANES, LANE_ENVS, STEPS = 4, 2, 8192


@pytest.mark.parametrize(("env", "path"), [
    ("cartpole", "fused"), pytest.param("cartpole", "ported", marks=pytest.mark.slow), ("CartPole-v1", "ported")])
def test_every_lane_takes_its_own_share_of_actions_at_random(run, env, path):
    # it never learns, so what is greedy can be told afterwards
    who = DQN(num_steps=64, capacity=2 * STEPS, start_size=2 * STEPS, batch_size=8, hidden=(8,), lane_epsilon=True, epsilon_start=0.4,
              epsilon_schedule="constant")
    done = run(env, who, path=path, steps=STEPS, num_envs=LANES * LANE_ENVS, lane_envs=LANE_ENVS, log_every=STEPS, eval_episodes=1)
    engine = done.loop.engine
    desk = engine._carry.desk if path == "fused" else engine._state.desk
    held, (form,), num = desk.buffer, desk.buffer.form, STEPS // LANES // LANE_ENVS
    data = layout.unpack(form, held.store.words, ())
    obs, action = (x[:, :num].reshape((LANES, num * LANE_ENVS, -1)) for x in (data.obs, data.action))
    greedy = jax.jit(lambda judge, x: judge.head(x).argmax(-1))(desk.learner.judge, obs)
    others = np.asarray(action[..., 0] != greedy).sum(axis=1)
    # Horgan et al. (2018), with i / N; half of the random actions of two are the greedy one
    share = np.array([0.4, 0.4**2.75, 0.4**4.5, 0.4**6.25]) / 2
    expected, deviation = share * num * LANE_ENVS, np.sqrt(share * (1 - share) * num * LANE_ENVS)
    np.testing.assert_array_less(np.abs(others - expected), 4 * deviation + 1)
