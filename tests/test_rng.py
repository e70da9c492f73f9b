"""Randomness by address: distinct addresses, distinct draws; and the numbering of streams is part of every run's identity."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import rng
from shoal.rng import Stream


def words(key):
    return np.asarray(jax.random.key_data(key)).tolist()


def test_keys_are_pinned():
    """Another number here means that every published run and checkpoint changes."""
    assert [(s.name, int(s)) for s in Stream] == [("INIT", 0), ("ACT", 1), ("ENV", 2), ("LEARN", 3), ("EVAL_ACT", 4),
                                                  ("EVAL_ENV", 5), ("RESET", 6), ("SAMPLE", 7)]
    assert words(rng.root(2**33 + 5)) == [2, 5]
    assert words(rng.key(rng.root(0), Stream.INIT, 3, 7)) == [3432578555, 1652103747]
    assert words(rng.key(rng.root(1), Stream.ACT, 3, 7)) == [2102073981, 2455457480]
    assert words(rng.key(rng.root(2**64 - 1), Stream.RESET, 3, 7)) == [3381796346, 2155016202]
    assert rng.host_seed(0, Stream.ENV, 1, 2, 3) == 1454733575
    assert rng.host_seed(2**40, Stream.EVAL_ENV, 1, 2, 3) == 986766619


def test_keys_of_different_addresses_differ():
    def at(seed_word, stream, lane, seq):
        root = jax.random.wrap_key_data(jnp.stack([seed_word >> 1, seed_word & 1]), impl="threefry2x32")
        folded = jax.random.fold_in(root, stream)
        return jax.random.key_data(jax.random.fold_in(jax.random.fold_in(folded, lane), seq))

    grid = jnp.meshgrid(jnp.arange(4, dtype=jnp.uint32), jnp.arange(7), jnp.arange(20), jnp.arange(50), indexing="ij")
    drawn = np.asarray(jax.jit(jax.vmap(at))(*(axis.reshape(-1) for axis in grid)))
    assert len(np.unique(drawn, axis=0)) == 4 * 7 * 20 * 50
    # the same arithmetic as the library's own
    assert words(rng.key(rng.root(1), Stream.LEARN, 19, 49)) == drawn.reshape(4, 7, 20, 50, 2)[1, 3, 19, 49].tolist()


def test_a_grid_holds_distinct_keys_that_draw_independently():
    keys = rng.grid(rng.key(rng.root(3), Stream.ENV, 0, 0), (50, 40))
    assert keys.shape == (50, 40) and len(np.unique(jax.random.key_data(keys).reshape(-1, 2), axis=0)) == 2000
    drawn = np.asarray(jax.jit(jax.vmap(lambda k: jax.random.uniform(k, (4,))))(keys.reshape(-1)))
    counts = np.bincount((drawn.reshape(-1) * 16).astype(int), minlength=16)
    assert ((counts - 500) ** 2 / 500).sum() < 44.3  # chi-square, 15 degrees of freedom, once in 10,000
    # neighbours in the grid have nothing to do with each other: 4.5 standard errors
    assert abs(np.corrcoef(drawn[:-1].reshape(-1), drawn[1:].reshape(-1))[0, 1]) < 4.5 / np.sqrt(drawn.size)


def test_address_parts_may_be_traced_and_mean_the_same():
    root = rng.root(9)
    traced = jax.jit(lambda lane, seq: jax.random.key_data(rng.key(root, Stream.ENV, lane, seq)))(4, 11)
    assert np.asarray(traced).tolist() == words(rng.key(root, Stream.ENV, 4, 11))
    assert words(rng.key(root, Stream.ENV, 4, 11)) != words(rng.key(root, Stream.ENV, 11, 4))
    assert words(rng.key(root, Stream.ENV, 4)) != words(rng.key(root, Stream.ENV, 4, 0))


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_seeds_beyond_32_bits_are_seeds_of_their_own(seed):
    low, high = rng.root(seed), rng.root(seed + 2**32)
    assert words(low) != words(high)
    draws = [float(jax.random.normal(rng.key(root, Stream.INIT))) for root in (low, high, rng.root(seed + 2**63))]
    assert len(set(draws)) == 3


def test_host_seeds_are_in_range_and_spread():
    seeds = [rng.host_seed(seed, stream, lane, env, episode) for seed in (0, 1, 2**32, 2**63, 2**64 - 1)
             for stream in (Stream.ENV, Stream.EVAL_ENV) for lane in range(10) for env in range(10) for episode in range(100)]
    assert len(seeds) == 100_000 and min(seeds) >= 0 and max(seeds) < 2**31 and all(type(s) is int for s in seeds)
    # 31 bits cannot keep 100,000 addresses apart for certain: 2.3 coincidences are to be expected, more than 12 are not
    assert len(set(seeds)) >= 100_000 - 12
    counts = np.bincount(np.asarray(seeds) >> 27, minlength=16)
    assert ((counts - 6250) ** 2 / 6250).sum() < 44.3  # chi-square, 15 degrees of freedom, once in 10,000
    assert rng.host_seed(1, Stream.ENV, 1, 11) != rng.host_seed(1, Stream.ENV, 11, 1)
    assert rng.host_seed(1, Stream.ENV, 11) != rng.host_seed(11, Stream.ENV, 1)


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3, 2**64 - 1])
@pytest.mark.parametrize("shape", [(), (3,), (2, 128), (7, 5, 3)])
def test_draws_written_out_are_those_of_jax_to_the_bit(seed, shape):
    key = rng.root(seed)
    assert words(rng.fold_in(key, 2**32 - 1)) == words(jax.random.fold_in(key, 2**32 - 1))
    assert words(jax.jit(rng.fold_in)(key, jnp.int32(7))) == words(jax.random.fold_in(key, 7))
    np.testing.assert_array_equal(rng.bits(key, shape), jax.random.bits(key, shape, jnp.uint32))
    some = jnp.arange(1, math.prod(shape), 3, dtype=jnp.uint32)
    np.testing.assert_array_equal(rng.bits_at(key, some), jax.random.bits(key, shape, jnp.uint32).reshape(-1)[some])
    np.testing.assert_array_equal(rng.uniform(key, shape), jax.random.uniform(key, shape))
    np.testing.assert_array_equal(rng.uniform(key, shape, -1.0), jax.random.uniform(key, shape, minval=-1.0))
    np.testing.assert_array_equal(jax.jit(rng.normal, static_argnums=1)(key, shape), jax.random.normal(key, shape))
