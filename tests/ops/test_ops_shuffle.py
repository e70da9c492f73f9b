"""Shuffling by arithmetic: every order is a permutation, minibatches share nothing, neighbours are torn apart."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import shuffle


def test_every_order_of_up_to_300_items_is_a_permutation():
    # the number of items can be data, so one program tries them all
    first_300 = jax.jit(jax.vmap(lambda a, b, num: shuffle.take(shuffle.Affine(a, b), jnp.uint32(0), 300, num), (0, 0, None)))
    for num in range(1, 301):
        table = shuffle.multipliers(num)
        assert 1 <= len(table) <= 256 and len(np.unique(table)) == len(table)
        padded = np.resize(table, 256)
        offset = np.random.default_rng(num).integers(0, num, 256).astype(np.uint32)
        orders = np.asarray(first_300(padded, offset, np.uint32(num)))[:, :num]
        np.testing.assert_array_equal(np.sort(orders, axis=1), np.broadcast_to(np.arange(num), (256, num)))


@pytest.mark.parametrize("num", [65_536, 65_537, 1_000_003, 2**21, 6 * 7 * 8 * 9 * 10 * 11])
def test_large_orders_are_permutations(num):
    draw = jax.jit(lambda key: shuffle.take(shuffle.affine(key, num), jnp.zeros((), jnp.int32), num, num))
    table = shuffle.multipliers(num)
    assert len(table) > 60 and all(math.gcd(int(a), num) == 1 and int(a) * (num - 1) < 2**32 for a in table)
    for seed in range(3):
        order = np.asarray(draw(jax.random.key(seed)))
        assert order.dtype == np.int32 and order.min() == 0
        assert (np.bincount(order, minlength=num) == 1).all()


def test_minibatches_are_disjoint_and_cover_all():
    order = shuffle.affine(jax.random.key(5), 1000)
    parts = [np.asarray(shuffle.take(order, jnp.int32(125 * i), 125, 1000)) for i in range(8)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


def test_orders_differ_between_keys_and_repeat_for_one():
    orders = [np.asarray(shuffle.take(shuffle.affine(jax.random.key(k), 512), jnp.int32(0), 512, 512)) for k in (0, 1, 2, 0)]
    assert (orders[0] == orders[3]).all()
    assert all((orders[a] != orders[b]).mean() > 0.9 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_first_item_is_uniform():
    first = jax.jit(jax.vmap(lambda key: shuffle.take(shuffle.affine(key, 16), jnp.int32(0), 1, 16)[0]))
    counts = np.bincount(first(jax.random.split(jax.random.key(0), 16_000)), minlength=16)
    assert ((counts - 1000) ** 2 / 1000).sum() < 44.3  # chi-square, 15 degrees of freedom, once in 10,000


@pytest.mark.parametrize("num", [64, 100, 128, 256, 257,
                                 1000, 1024, 4096, 65_536, 2**21])
def test_neighbours_land_apart(num):
    """Rows that follow each other in a minibatch are far apart in the batch, going round."""
    table = shuffle.multipliers(num).astype(np.int64)
    apart = np.minimum(table, num - table)
    assert apart.min() >= min(num, 2**32 // num) // 64 and apart.min() > 1
    assert np.median(apart) >= min(num, 2**32 // num) // 6
