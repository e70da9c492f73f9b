"""The parts that learn from memory: what is compared is the same work, and the targets are those they stand for."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks import contest, off_policy
from benchmarks.workers import replay_protocol, shoal_worker


def _given(work, num_steps):
    return argparse.Namespace(work=work, num_steps=num_steps, num_epochs=4, num_minibatches=4)


def test_shoals_dqn_and_sac_are_set_as_the_page_says():
    dqn, sac = shoal_worker._agent(_given("dqn", 10)), shoal_worker._agent(_given("sac", 1))
    assert (dqn.updates, dqn.update_every, dqn.target_every * dqn.update_every, dqn.batch_size, dqn.capacity) == (1, 10, 500, 128, 10_000)
    assert (dqn.hidden, dqn.activation, dqn.double, dqn.epsilon_start, dqn.epsilon_schedule) == ((120, 84), "relu", False, 0.05, "constant")
    assert (sac.updates, sac.update_every, sac.batch_size, sac.hidden, sac.num_steps) == (1, 1, 256, (256, 256), 1)
    assert float(dqn.level(10**6)) == pytest.approx(0.05)


def test_the_target_that_stands_for_cleanrl_is_higher_by_as_much_as_it_was_faster():
    work = off_policy._for_cleanrl(contest.Work("w", 1, 10, 3.0))
    assert (work.target, work.num_envs, work.num_steps) == (3.57, 1, 10)


def test_every_buffer_gets_the_same_rows():
    first, again = replay_protocol.rows(2), replay_protocol.rows(2)
    assert {name: x.shape for name, x in first.items()} == {"obs": (2, 8), "act": (2, 1), "rew": (2, 1), "next_obs": (2, 8), "done": (2, 1)}
    assert all(x.dtype == np.float32 and np.array_equal(x, again[name]) for name, x in first.items())
    assert not np.array_equal(first["obs"], first["next_obs"])
