"""Finding what is not a number, and keeping things in turn, change no number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import serial
from shoal.ops.finite import all_finite

SIZES = (0, 1, 255, 256, 4095, 4096, 4097, 70_001)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", SIZES)
def test_every_place_is_looked_at(size, bad):
    check = jax.jit(all_finite)
    whole = np.full(size, 3e38, np.float32)  # sums of it would not be finite
    others = {"small": jnp.ones(3), "count": jnp.int32(2**31 - 1), "half": jnp.ones(5000, jnp.bfloat16)}
    assert check({"x": whole, **others})
    for place in {0, size // 2, size - 1} if size else ():
        broken = whole.copy()
        broken[place] = bad
        assert not check({"x": broken, **others})
    assert not check({"x": whole, **others, "half": others["half"].at[4999].set(bad)})


def test_nothing_is_finite():
    assert all_finite(()) and all_finite({"count": jnp.int32(3)})


@pytest.mark.parametrize("flag", [True, False])
def test_a_choice_in_turn_is_a_choice(flag):
    """Whatever stands in the leaves before, not a number and infinities among them."""
    odd = jnp.asarray([np.nan, np.inf, -np.inf, 1.0])
    yes = {"a": odd, "b": jnp.arange(3), "c": jnp.zeros((0, 2)), "d": jnp.full((2, 2), jnp.inf), "e": jnp.float32(5)}
    no = jax.tree.map(jnp.zeros_like, yes)
    for leaf, wanted in zip(jax.tree.leaves(jax.jit(serial.chosen)(flag, yes, no)), jax.tree.leaves(yes if flag else no), strict=True):
        np.testing.assert_array_equal(leaf, wanted)
    for leaf, wanted in zip(jax.tree.leaves(jax.jit(serial.copied)(yes, odd)), jax.tree.leaves(yes), strict=True):
        np.testing.assert_array_equal(leaf, wanted)
    for leaf in jax.tree.leaves(yes):
        for first in (odd, jnp.zeros((0, 3))):
            np.testing.assert_array_equal(jax.jit(serial.held)(leaf, first), leaf)
