"""The comparison with cpprb: its arithmetic, shoal's side of it at a small size, and that it finds what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import oracle

TOLD = {"size": 12, "alpha": 0.5, "epsilon": 0.0, "beta": 0.4, "batch": 4, "draws": 40_000,
        "stages": [[["add", 6], ["update", [0, 1, 2, 3, 4, 5], [4.0, 1.0, 1.0, 1.0, 9.0, 1.0]], ["add", 2]],
                   [["add", 8], ["update", [11], [0.25]]]]}


def test_the_exact_distribution_by_hand():
    first, second = oracle.analytic(TOLD)
    np.testing.assert_allclose(first, np.array([2, 1, 1, 1, 3, 1, 3, 3, 0, 0, 0, 0]) / 15)
    np.testing.assert_allclose(second, np.array([3, 3, 3, 3, 3, 1, 3, 3, 3, 3, 3, 0.5]) / 31.5)  # what came round has the largest


def test_chi_square_by_hand():
    half = np.array([0.5, 0.5, 0.0])
    assert oracle.z_of(np.array([60, 40, 0]), half) == pytest.approx(3 / np.sqrt(2))  # statistic 4, one degree
    assert oracle.z_of(np.array([60, 40, 1]), half) == float("inf")
    assert oracle.z_between(np.array([60, 40]), np.array([40, 60])) == pytest.approx(7 / np.sqrt(2))  # statistic 8


def test_our_side_is_exact_and_another_exponent_is_found_out():
    us = oracle.ours(TOLD | {"epsilon": 1e-12})
    for seen in oracle.compare(TOLD, us, us):
        assert abs(seen["ours"]) < 4 and seen["between"] < 0 and seen["weights"] == 0.0 and seen["formula"] < 1e-6
    for seen in oracle.compare(TOLD | {"alpha": 0.6}, us, us):
        assert seen["ours"] > 4 and seen["formula"] > 1e-3
