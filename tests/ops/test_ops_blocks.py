"""Rows in blocks give what the rows give all at once, for every remainder."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import blocks

SIZES = (1, 255, 256, 257, 1000)
WEIGHT = jax.random.normal(jax.random.key(0), (5, 3))


def rows(num):
    draw = np.random.default_rng(num)
    return {"x": jnp.asarray(draw.normal(size=(num, 5)), jnp.float32), "w": jnp.asarray(draw.random(num), jnp.float32)}


@pytest.mark.parametrize("num", SIZES)
def test_map_rows(num):
    def fn(r):
        return {"y": jnp.tanh(r["x"] @ WEIGHT), "z": r["w"] * 2}

    out = jax.jit(lambda r: blocks.map_rows(fn, r))(rows(num))
    assert out["y"].shape == (num, 3) and out["z"].shape == (num,)
    x = np.asarray(rows(num)["x"], np.float64)
    np.testing.assert_allclose(out["y"], np.tanh(x @ np.asarray(WEIGHT, np.float64)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out["z"], rows(num)["w"] * 2)


@pytest.mark.parametrize("num", SIZES)
def test_sum_rows_of_a_gradient(num):
    def loss(weight, r):
        return (r["w"] * ((r["x"] @ weight) ** 2).sum(1)).sum()

    total, count = jax.jit(lambda r: blocks.sum_rows(lambda r: (jax.grad(loss)(WEIGHT, r), r["w"].sum()), r))(rows(num))
    x, w = (np.asarray(rows(num)[name], np.float64) for name in "xw")
    by_hand = 2 * (x * w[:, None]).T @ (x @ np.asarray(WEIGHT, np.float64))
    np.testing.assert_allclose(total, by_hand, rtol=1e-4, atol=1e-3)
    assert float(count) == pytest.approx(w.sum(), rel=1e-5)


@pytest.mark.parametrize("num", [257, 1000])
def test_no_product_is_wider_than_a_block(num):
    """What the promise of equal bits for any number of threads rests on."""
    seen = []

    def fn(r):
        seen.append(r["x"].shape[0])
        return r["x"] @ WEIGHT

    compiled = jax.jit(lambda r: blocks.map_rows(fn, r)).lower(rows(num)).as_text()
    if jax.default_backend() == "cpu":
        assert f"tensor<{num}x5xf32>, tensor<5x3xf32>" not in compiled
        assert min(seen) <= blocks.BLOCK_ROWS


@pytest.mark.parametrize("breaks", [0.0, 0.02, 0.9], ids=["none", "few", "more than fit"])
def test_successors_equal_evaluating_every_row(breaks):
    steps, size = 64, 40
    key = jax.random.key(3)
    rows = jax.random.normal(key, (steps + 1, size, 3))
    broken = jax.random.uniform(jax.random.fold_in(key, 1), (steps, size)) < breaks
    # where a trace breaks, the successor is not the next row
    following = jnp.where(broken[..., None], rows[1:] + 5.0, rows[1:]).reshape(-1, 3)
    now = blocks.map_rows(lambda x: jnp.sin(x).sum(-1), rows[:-1].reshape(-1, 3))
    found = jax.jit(lambda *args: blocks.map_successors(lambda x: jnp.sin(x).sum(-1), *args))(following, now, broken)
    np.testing.assert_allclose(found, jnp.sin(following).sum(-1), rtol=1e-5, atol=1e-6)
