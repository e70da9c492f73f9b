"""A long product in a branch of its own: the same numbers, one branch under any number of maps, and elsewhere nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import serial

DRAW = np.random.default_rng(0)
ROWS, WEIGHTS = (jnp.asarray(DRAW.normal(size=shape), jnp.float32) for shape in ((6, 4, 5), (6, 5, 3)))


def product():
    return lambda x, y: serial.alone(jnp.matmul, x, y)  # a new function, which is compiled anew


@pytest.fixture(params=[True, False], ids=["elsewhere", "here"])
def branches(request, monkeypatch):
    """How many branches a product is to have."""
    monkeypatch.setattr(serial, "ELSEWHERE", request.param)
    return int(request.param)


@pytest.mark.parametrize("axes", [None, (0, 0), (0, None), (None, 0)])
def test_a_product_alone_is_the_product(axes, branches):
    x = ROWS if axes and axes[0] == 0 else ROWS[0]
    y = WEIGHTS if axes and axes[1] == 0 else WEIGHTS[0]
    run, plain = (fn if axes is None else jax.vmap(fn, in_axes=axes) for fn in (product(), jnp.matmul))
    compiled = jax.jit(run).lower(x, y).compile()
    np.testing.assert_allclose(compiled(x, y), plain(x, y), rtol=1e-6)
    assert compiled.as_text().count(" conditional(") == branches


def test_maps_of_maps_have_one_branch(branches):
    x, y = ROWS.reshape(2, 3, 4, 5), WEIGHTS.reshape(2, 3, 5, 3)
    compiled = jax.jit(jax.vmap(jax.vmap(product()))).lower(x, y).compile()
    np.testing.assert_allclose(compiled(x, y), x @ y, rtol=1e-6)
    assert compiled.as_text().count(" conditional(") == branches


def test_what_is_not_a_number_comes_through(branches):
    x = ROWS[0].at[0].set(jnp.nan)
    np.testing.assert_array_equal(np.isnan(jax.jit(product())(x, WEIGHTS[0])), np.isnan(x @ WEIGHTS[0]))
