"""The blind cliffwalk's study: its memory and values by hand, and that replay in proportion to errors needs fewer updates."""

from __future__ import annotations

import numpy as np

from benchmarks import cliffwalk


def test_memory_holds_every_sequence_once_and_a_single_payment():
    """Of 2^3 sequences 4 end at the first step, 2 at the second, and 2 at the third, one of them paid."""
    found = cliffwalk.memory(3, False, seed=1)
    data = found.data
    assert data.reward.shape == (2**4 - 2, 1) == (cliffwalk.learner(3, True).capacity, 1)
    assert np.bincount(data.obs[:, 0]).tolist() == [8, 4, 2]
    assert (data.reward.sum(), data.last.sum(), data.alive.sum()) == (1.0, 8, 6)
    (paid,) = np.flatnonzero(data.reward)
    assert data.obs[paid - 2:paid + 1, 0].tolist() == [0, 1, 2] and data.action[paid - 2:paid + 1, 0].tolist() == [0, 1, 0]
    np.testing.assert_allclose(found.truth, [[4 / 9, 0], [0, 2 / 3], [1, 0]], rtol=1e-6)
    other = cliffwalk.memory(3, False, seed=2).data
    assert (other.obs != data.obs).any() and sorted(other.obs.ravel()) == sorted(data.obs.ravel())
    linear = cliffwalk.memory(3, True, seed=1)
    np.testing.assert_array_equal(linear.data.obs, np.concatenate([np.eye(3)[data.obs], np.ones((14, 1, 1))], -1))
    np.testing.assert_array_equal(linear.states, [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]])


def test_prioritised_needs_at_most_half_of_the_updates():
    counts = {prioritised: [cliffwalk.updates(7, False, prioritised, seed) for seed in range(3)] for prioritised in (False, True)}
    assert 2 * np.median(counts[True]) <= np.median(counts[False])
    assert min(counts[True]) >= 200 and max(counts[False]) < 20_000  # neither is done before the memory was looked at, nor never


def test_row_is_held_to_the_target_where_the_memory_is_largest():
    small = cliffwalk.row(4, False, [300, 310, 290], [100, 120, 90])
    assert (small["memory"], small["uniform"], small["ratio"], small["met"]) == ("30", "300 (290 … 310)", "3.0", "–")
    largest = cliffwalk.SIZES[-1]
    assert [cliffwalk.row(largest, True, uniform, [10, 10, 10])["met"] for uniform in ([100, 99, 101], [99, 99, 101])] == ["yes", "no"]
    assert cliffwalk.row(largest, False, [100, 100, cliffwalk.LIMIT], [10, 10, 10])["met"] == "no"  # one of them never learned
    assert tuple(small) == cliffwalk.COLUMNS
