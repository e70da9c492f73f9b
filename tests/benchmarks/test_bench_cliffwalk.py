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
    largest, size = cliffwalk.SIZES[-1], 2**17 - 2
    met = [cliffwalk.row(largest, True, [least * size, 20 * size, 22 * size], [2 * size] * 3)["met"] for least in (20, 19)]
    never = cliffwalk.row(largest, False, [20 * size, 20 * size, cliffwalk.LIMIT], [2 * size] * 3)  # one of them never learned
    assert (met, never["met"]) == (["yes", "yes"], "no")  # the median counts
    assert tuple(small) == cliffwalk.COLUMNS


def test_the_target_is_ten_or_nearly_all_that_can_be_gained():
    size = 2**17 - 2
    far = cliffwalk.row(16, False, [20 * size], [2 * size + 1])  # twenty could be gained
    near = [cliffwalk.row(16, True, [9 * size], [prioritised]) for prioritised in (size, int(1.12 * size))]  # nine could
    assert (far["target"], far["met"]) == ("≥ 10", "no")
    assert [(row["target"], row["met"]) for row in near] == [("≥ 8.1", "yes"), ("≥ 8.1", "no")]
