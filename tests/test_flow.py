"""The tally of recent episodes equals a plain deque, and versions follow the lag."""

from __future__ import annotations

from collections import deque

import jax
import numpy as np
import pytest

from shoal import flow
from shoal.types import Episodes

COUNT = jax.jit(flow.count)


def assert_equal_to_a_deque(batches, reduce_fn=lambda r: r):
    """Run ``batches`` of Episodes through the tally and through a deque, side by side."""
    tally, recent = flow.init_tally(), deque(maxlen=flow.RECENT)
    for episodes in batches:
        tally, count = COUNT(tally, episodes)
        ends = [(reduce_fn(episodes.returns[t, b]), episodes.lengths[t, b]) for t, b in np.argwhere(episodes.ended)]
        recent.extend(r for r, _ in ends)
        assert int(count.episodes) == len(ends)
        assert int(count.length_sum) == sum(n for _, n in ends)
        assert float(count.return_sum) == pytest.approx(sum(r for r, _ in ends), rel=1e-4, abs=1e-3)
        assert int(tally.filled) == len(recent)
        if recent:
            assert float(count.mean_return) == pytest.approx(np.mean(recent), rel=1e-4, abs=1e-4)
        else:
            assert np.isnan(count.mean_return)
        # oldest first, from where the next one goes
        held = np.roll(np.asarray(tally.recent), -int(tally.place)) if len(recent) == flow.RECENT else np.asarray(tally.recent)
        np.testing.assert_allclose(held[: len(recent)], np.asarray(recent, np.float32), rtol=1e-5)


def random_batch(draw, share, agents=()):
    ended = draw.random((8, 40)) < share
    returns = draw.normal(10, 5, (8, 40, *agents)).astype(np.float32)
    return Episodes(ended, returns, draw.integers(1, 50, (8, 40)).astype(np.int32))


def test_equal_to_a_deque_on_random_data():
    draw = np.random.default_rng(0)
    # nothing, a few, wrapping around, and more than 100 in one iteration (320 slots)
    shares = [0.0, 0.01, 0.05, 0.1, 0.2, 0.0, 0.9, 0.03, 1.0, 0.5, 0.002]
    assert_equal_to_a_deque([random_batch(draw, share) for share in shares])


def test_order_is_time_then_environment():
    returns = np.arange(320, dtype=np.float32).reshape(8, 40)
    lengths = np.ones((8, 40), np.int32)
    tally, count = COUNT(flow.init_tally(), Episodes(np.ones((8, 40), bool), returns, lengths))
    assert float(count.mean_return) == np.arange(220, 320).mean()  # the last hundred, not any hundred
    late = np.zeros((8, 40), bool)
    late[5, 39] = late[6, 0] = True
    tally, count = COUNT(tally, Episodes(late, returns * 0 - 1, lengths))
    assert float(count.mean_return) == pytest.approx((np.arange(222, 320).sum() - 2) / 100)


def test_teams_count_the_mean_of_their_agents():
    draw = np.random.default_rng(1)
    assert_equal_to_a_deque([random_batch(draw, share, agents=(3,)) for share in (0.1, 0.6, 0.05)], reduce_fn=np.mean)
    assert flow.team_return(np.array([[1.0, 3.0], [2.0, 6.0]]), 1).tolist() == [2.0, 4.0]
    assert flow.team_return(np.array([1.0, 3.0]), 1).tolist() == [1.0, 3.0]


def test_versions():
    assert [flow.version_for(i, 0) for i in range(4)] == [0, 1, 2, 3]
    assert [flow.version_for(i, 1) for i in range(4)] == [0, 0, 1, 2]
