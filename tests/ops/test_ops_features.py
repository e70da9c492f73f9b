"""Features for linear functions: the basis by hand, what it can represent, and which tiles lie where."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.ops import features
from shoal.specs import Box, Discrete, EnvSpec

KEY = jax.random.key(0)


def spec(obs):
    return EnvSpec("world", obs, Discrete(2))


def test_limits_are_the_boxs_or_the_users():
    low, high = features.limits(spec(Box((2,), (-1.0, 0.0), 3.0)))
    assert low.tolist() == [-1, 0] and high.tolist() == [3, 3]
    low, high = features.limits(spec(Box((2,))), (-1.0, -2.0), (1.0, 2.0))
    assert low.tolist() == [-1, -2] and high.tolist() == [1, 2]
    np.testing.assert_allclose(features.unit(jnp.array([[0.0, 1.0], [-5.0, 9.0]]), low, high), [[0.5, 0.75], [0, 1]])


@pytest.mark.parametrize(("obs", "low", "high", "message"), [
    (Box((3,), (-1.0, -math.inf, -math.inf), 1.0), (), (), "'world' has no bounds on 1, 2: these features need feature_low, one number"),
    (Box((2,), -1.0, (1.0, 3.4e38)), (), (), "no bounds on 1: these features need feature_high"),
    (Box((2,)), (0.0,), (1.0,), r"feature_low = \(0.0,\): expected 2 numbers"),
    (Box((2,)), (0.0, 0.0), (1.0, math.nan), "no bounds on 1"),
    (Box((2,)), (0.0, 2.0), (1.0, 2.0), "feature_low = 2 at 1: expected less than feature_high, 2"),
    (Discrete(4), (), (), "observation of 'world' is a Discrete: these features expect a Box"),
])
def test_what_has_no_bounds_is_refused(obs, low, high, message):
    with pytest.raises(ConfigError, match=message):
        features.limits(spec(obs), low, high)


def test_fourier_by_hand():
    rows = features.fourier_coefficients(2, 2)
    assert sorted(map(tuple, rows.tolist())) == [(a, b) for a in range(3) for b in range(3)] and rows[0].tolist() == [0, 0]
    x = np.array([[0.0, 0.0], [0.25, 0.5], [1.0, 1.0]])
    by_hand = np.cos(np.pi * (x[:, :1] * rows[:, 0] + x[:, 1:] * rows[:, 1]))
    np.testing.assert_allclose(features.fourier(jnp.asarray(x), jnp.asarray(rows)), by_hand, atol=1e-5)
    rates = dict(zip(map(tuple, rows.tolist()), features.fourier_rates(rows).tolist(), strict=True))
    assert rates[0, 0] == 1 and rates[2, 0] == 0.5 and rates[2, 1] == pytest.approx(1 / math.sqrt(5))


@pytest.mark.parametrize(("inputs", "order", "coupled", "num"), [(4, 3, 0, 4**4), (4, 3, 1, 13), (4, 3, 2, 13 + 6 * 9), (3, 2, 9, 27)])
def test_coupling(inputs, order, coupled, num):
    rows = features.fourier_coefficients(inputs, order, coupled)
    assert rows.shape == (num, inputs) and len({tuple(row) for row in rows}) == num
    assert ((rows > 0).sum(1) <= (coupled or inputs)).all() and rows.max() == order and rows.min() == 0


def test_too_many_features_are_refused():
    with pytest.raises(ConfigError, match=r"order = 5: makes 60,466,176 features of 10 numbers, expected at most 1,000,000"):
        features.fourier_coefficients(10, 5)
    with pytest.raises(ConfigError, match="num_tiles = 9.*give tile_memory"):
        features.tile_size(10, 8, 9)


def test_fourier_represents_a_smooth_function():
    x = np.random.default_rng(0).random((500, 2))
    target = np.sin(2 * x[:, 0]) * x[:, 1] ** 2
    phi = np.asarray(features.fourier(jnp.asarray(x), jnp.asarray(features.fourier_coefficients(2, 5))))
    weights = np.linalg.lstsq(phi[:400], target[:400], rcond=None)[0]
    assert np.abs(phi[400:] @ weights - target[400:]).max() < 0.06
    alone = np.asarray(features.fourier(jnp.asarray(x), jnp.asarray(features.fourier_coefficients(2, 5, 1))))
    rest = np.linalg.lstsq(alone[:400], target[:400], rcond=None)[0]
    assert np.abs(alone[400:] @ rest - target[400:]).max() > 0.12  # a product needs coupling


def test_tiles_by_hand():
    """Two tilings of 2 × 2 tiles: the second displaced by (1/2, 3/2 mod 1 = 1/2) of a tile."""
    tiles = lambda x: features.tiles(jnp.asarray(x, jnp.float32), 2, 2).tolist()
    assert features.tile_size(2, 2, 2) == 18
    points = [[0.0, 0.0], [1.0, 1.0], [0.6, 0.2], [0.8, 0.2], [0.2, 0.3], [0.2, 0.2]]
    assert tiles(points) == [[0, 9], [8, 17], [3, 9 + 3], [3, 9 + 6], [0, 9 + 1], [0, 9]]


def test_displacements_are_asymmetrical():
    """Where along each input the tilings have their edges: 1/4, 2/4, 3/4 of a tile on the first, 3/4, 2/4, 1/4 on the second."""
    x = jnp.linspace(0, 0.999, 4001)
    for i, wanted in ((0, [1.0, 0.75, 0.5, 0.25]), (1, [1.0, 0.25, 0.5, 0.75])):
        points = jnp.zeros((4001, 2)).at[:, i].set(x)
        place = np.asarray(features.tiles(points, 4, 1)) // (2 if i == 0 else 1) % 2  # one tile, and the one beyond it
        first = [float(x[place[:, k].argmax()]) if place[:, k].any() else 1.0 for k in range(4)]
        np.testing.assert_allclose(first, wanted, atol=1e-3)


def test_every_point_has_a_tile_in_every_tiling_and_neighbours_share_most():
    x = jax.random.uniform(KEY, (2000, 3))
    index = np.asarray(features.tiles(x, 8, 4))
    size = features.tile_size(3, 8, 4)
    assert index.min() >= 0 and index.max() < size and (index // 5**3 == np.arange(8)).all()
    near = np.asarray(features.tiles((x + 0.25 / 8).clip(0, 1), 8, 4))
    far = np.asarray(features.tiles((x + 0.5) % 1.0, 8, 4))
    assert 0.4 < (index == near).mean() < 0.95 and (index == far).mean() == 0  # half a cube away is two tiles away
    phi = np.asarray(features.active(jnp.asarray(index[:5]), size))
    assert phi.shape == (5, size) and (phi.sum(1) == 8).all() and set(np.flatnonzero(phi[0])) == set(index[0])


def test_hashed_tiles_are_spread_evenly_and_stay_the_same():
    x = jax.random.uniform(KEY, (4000, 3))
    exact, hashed = np.asarray(features.tiles(x, 4, 9)), np.asarray(features.tiles(x, 4, 9, 64))
    of_tile = {}
    for tile, number in zip(exact.reshape(-1).tolist(), hashed.reshape(-1).tolist(), strict=True):
        assert of_tile.setdefault(tile, number) == number
    counts = np.bincount(list(of_tile.values()), minlength=64)
    wanted = len(of_tile) / 64
    assert len(counts) == 64 and ((counts - wanted) ** 2 / wanted).sum() < 63 + 5 * math.sqrt(2 * 63)  # chi-square
    assert features.active(jnp.array([3, 3, 1]), 4).tolist() == [0, 1, 0, 2]
