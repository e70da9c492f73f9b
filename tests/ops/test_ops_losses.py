"""Losses and their slopes against numbers worked out by hand."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import losses

CASES = [  # ratio, advantage, loss, slope of the loss in the log-ratio; clip 0.2
    (1.0, 2.0, -2.0, -2.0),
    (1.1, 2.0, -2.2, -2.2),
    (1.5, 2.0, -2.4, 0.0),  # gain beyond the clip is cut, and so is the gradient
    (0.5, 2.0, -1.0, -1.0),  # a good action made rarer: the way back is open
    (1.5, -2.0, 3.0, 3.0),  # a bad action made likelier: the way back is open
    (0.5, -2.0, 1.6, 0.0),
    (0.9, -2.0, 1.8, 1.8),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), CASES)
def test_clipped_surrogate(ratio, advantage, loss, slope):
    value, gradient = jax.value_and_grad(losses.clipped_surrogate)(jnp.float32(math.log(ratio)), advantage, 0.2)
    assert float(value) == pytest.approx(loss, rel=1e-5)
    assert float(gradient) == pytest.approx(slope, rel=1e-5)


def test_clipped_value():
    cases = [  # value, old, target, clip → loss, slope
        (2.0, 1.0, 4.0, math.inf, 2.0, -2.0),  # plain: (2-4)²/2
        (2.0, 1.0, 4.0, 0.5, 3.125, 0.0),  # moved too far towards the target: (1.5-4)²/2, no gradient
        (1.2, 1.0, 4.0, 0.5, 3.92, -2.8),  # inside the clip: plain
        (0.0, 1.0, 4.0, 0.5, 8.0, -4.0),  # moved away: the worse of the two counts, which is the plain one
    ]
    for value, old, target, clip, loss, slope in cases:
        got, gradient = jax.value_and_grad(losses.clipped_value)(value, old, target, clip)
        assert float(got) == pytest.approx(loss, rel=1e-5)
        assert float(gradient) == pytest.approx(slope, rel=1e-5)


def test_approximate_kl():
    assert float(losses.approximate_kl(jnp.zeros(()))) == 0.0
    assert float(losses.approximate_kl(jnp.float32(math.log(2.0)))) == pytest.approx(1 - math.log(2.0), rel=1e-5)
    ratios = jnp.linspace(-3, 3, 101)
    assert (losses.approximate_kl(ratios) >= 0).all()
    # its mean under the old policy is the true divergence
    old, new = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    estimate = (old * np.asarray(losses.approximate_kl(jnp.log(new / old)))).sum()
    assert estimate == pytest.approx((old * np.log(old / new)).sum(), rel=1e-4)
