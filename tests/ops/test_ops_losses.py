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


@pytest.mark.parametrize(("x", "delta", "loss", "slope"), [
    (0.5, 1.0, 0.125, 0.5), (-3.0, 1.0, 2.5, -1.0), (3.0, 2.0, 4.0, 2.0), (1.0, 1.0, 0.5, 1.0), (0.0, 1.0, 0.0, 0.0),
    (-7.0, math.inf, 24.5, -7.0)])
def test_huber(x, delta, loss, slope):
    value, gradient = jax.value_and_grad(losses.huber)(x, delta)
    assert float(value) == pytest.approx(loss) and float(gradient) == pytest.approx(slope)


def test_quantile_huber_by_hand():
    """Errors u = target - quantile: of 1.0 they are -1 and 3, of 4.0 -4 and 0; weights τ above, 1 - τ below."""
    value = losses.quantile_huber(jnp.array([1.0, 4.0]), jnp.array([0.0, 4.0]), losses.quantile_fractions(2), 1.0)
    by_hand = (0.75 * 0.5 + 0.25 * 2.5) / 2 + (0.25 * 3.5 + 0.0) / 2
    assert float(value) == pytest.approx(by_hand)
    assert losses.quantile_fractions(4).tolist() == [0.125, 0.375, 0.625, 0.875]
    batched = losses.quantile_huber(jnp.array([[1.0, 4.0], [0.0, 0.0]]), jnp.array([[0.0, 4.0, 2.0], [1.0, 0.0, -1.0]]),
                                    losses.quantile_fractions(2), 1.0)
    assert batched.shape == (2,) and float(batched[1]) == pytest.approx(2 * (0.5 * (0.25 + 0.75)) / 3)


def test_quantile_huber_is_least_at_the_quantiles():
    """Of 1 to 1000 evenly, the quantiles at 0.1, 0.3, ... are 100, 300, ...; with a small δ the loss is the quantile loss."""
    target, fractions = jnp.arange(1.0, 1001.0), losses.quantile_fractions(5)
    loss = lambda q: losses.quantile_huber(q, target, fractions, 1e-3) / 1e-3
    quantiles = jnp.full(5, 500.0)
    slope = jax.jit(jax.grad(loss))
    for i in range(300):
        quantiles = quantiles - 400.0 * 0.98**i * slope(quantiles)
    np.testing.assert_allclose(quantiles, [100.5, 300.5, 500.5, 700.5, 900.5], atol=6)


def test_soft_policy_and_temperature():
    assert float(losses.soft_policy(-0.5, 2.0, 0.2)) == pytest.approx(-2.1)
    loss = lambda log_alpha, entropy: losses.temperature(log_alpha, entropy, 1.5)
    value, (by_alpha, by_entropy) = jax.value_and_grad(loss, (0, 1))(math.log(0.2), 0.5)
    assert float(value) == pytest.approx(-math.log(0.2)) and float(by_alpha) == -1.0  # too little entropy: down the slope is hotter
    assert float(by_entropy) == 0.0
    assert float(jax.grad(loss)(math.log(0.2), 2.0)) == 0.5
