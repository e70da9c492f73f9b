"""Moments that merge: against NumPy on the concatenation, in any grouping."""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import moments

DRAW = np.random.default_rng(0)
PARTS = [DRAW.normal(3.0 * i, 1.0 + i, (n, 4)).astype(np.float32) for i, n in enumerate((50, 1, 200, 7))]
ALL = np.concatenate(PARTS).astype(np.float64)


def of(rows):
    return moments.of(jnp.asarray(rows), jnp.ones(len(rows)))


def assert_close(got, count, mean, variance):
    assert float(got.count) == pytest.approx(count)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.variance, variance, rtol=1e-4, atol=1e-5)


def test_of_rows_equals_numpy():
    assert_close(of(PARTS[2]), 200, PARTS[2].mean(0), PARTS[2].var(0))
    scalars = moments.of(jnp.array([1.0, 2.0, 6.0]), jnp.ones(3))
    assert_close(scalars, 3, 3.0, 14 / 3)


@pytest.mark.parametrize("grouping", ["left", "right", "pairs"])
def test_merge_in_any_grouping_equals_numpy_on_all(grouping):
    a, b, c, d = map(of, PARTS)
    merged = {"left": lambda: reduce(moments.merge, [moments.init((4,)), a, b, c, d]),
              "right": lambda: moments.merge(a, moments.merge(b, moments.merge(c, moments.merge(d, moments.init((4,)))))),
              "pairs": lambda: moments.merge(moments.merge(a, b), moments.merge(c, d))}[grouping]()
    assert_close(merged, len(ALL), ALL.mean(0), ALL.var(0))


def test_weights_count_rows():
    rows, weight = np.array([[1.0], [2.0], [9.0]], np.float32), jnp.array([2.0, 3.0, 0.0])
    repeated = np.array([[1.0]] * 2 + [[2.0]] * 3)
    assert_close(moments.of(jnp.asarray(rows), weight), 5, repeated.mean(0), repeated.var(0))
    nothing = moments.of(jnp.asarray(rows), jnp.zeros(3))
    assert float(nothing.count) == 0
    assert_close(moments.merge(of(rows), nothing), 3, rows.mean(0), rows.var(0))  # merging nothing changes nothing
    assert_close(moments.merge(nothing, of(rows)), 3, rows.mean(0), rows.var(0))


@pytest.mark.parametrize("level", [1, 3])  # the least effort that keeps bits, and what users have
def test_one_agent_merges_to_the_same_bits_alone_as_beside_another(level):
    draw = np.random.default_rng(2)
    merged = jax.jit(jax.vmap(moments.merge), compiler_options={"xla_backend_optimization_level": level})
    for _ in range(200):
        two = [moments.Moments(*draw.uniform(1, 30, (3, 2)).astype(np.float32)) for _ in "ab"]
        alone = merged(*jax.tree.map(lambda x: x[:1], two))
        jax.tree.map(np.testing.assert_array_equal, alone, jax.tree.map(lambda x: x[:1], merged(*two)))


def test_variance_survives_a_large_mean():
    rows = np.random.default_rng(1).normal(1e4, 1.0, (4096, 1)).astype(np.float32)
    merged = reduce(moments.merge, [of(part) for part in np.split(rows, 64)])
    assert float(merged.variance[0]) == pytest.approx(rows.astype(np.float64).var(), rel=0.02)


def test_normalise():
    x = jnp.array([[5.0, -1e9], [0.0, 7.0]])
    np.testing.assert_array_equal(moments.normalise(moments.init((2,)), x), x)  # before the first merge: the identity
    seen = moments.Moments(jnp.float32(10), jnp.array([1.0, 2.0]), jnp.array([4.0, 0.25]))
    np.testing.assert_allclose(moments.normalise(seen, x), [[2.0, -10.0], [-0.5, 10.0]], rtol=1e-5)
    np.testing.assert_allclose(moments.normalise(seen, x, limit=1.0), [[1.0, -1.0], [-0.5, 1.0]], rtol=1e-5)
    rows = jnp.asarray(PARTS[2])
    out = np.asarray(moments.normalise(of(PARTS[2]), rows))
    np.testing.assert_allclose(out.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(out.std(0), 1, rtol=1e-4)
    constant = moments.normalise(of(np.ones((8, 1), np.float32)), jnp.ones((1, 1)))
    np.testing.assert_allclose(constant, 0, atol=1e-3)


def test_root_mean_square():
    assert float(moments.root_mean_square(moments.init())) == 1.0
    assert float(moments.root_mean_square(moments.of(jnp.array([3.0, -5.0, 1.0]), jnp.ones(3)))) == pytest.approx((35 / 3) ** 0.5)
    assert float(moments.root_mean_square(moments.of(jnp.zeros(5), jnp.ones(5)))) == pytest.approx(1e-3)
