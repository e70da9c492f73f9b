"""Shuffling by arithmetic: ``i → (a·i + b) mod n`` with a coprime to n is a permutation and needs no sorting."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.types import Array, Key

_CHOICES = 256


class Affine(NamedTuple):
    multiplier: Array  # [] uint32
    offset: Array  # [] uint32


def multipliers(num: int) -> np.ndarray:
    """Up to 256 numbers coprime to ``num``, spread over its whole range, small enough not to overflow 32 bits."""
    top = max(1, min(num - 1, (2**32 - 1) // max(num, 1)))
    grid = np.unique(np.linspace(1, top, min(4 * _CHOICES, top)).astype(np.int64))
    # strides far from 0 and from num mix best: 1 keeps the order and num - 1 reverses it
    coprime = [int(a) for a in grid if math.gcd(int(a), num) == 1 and (top // 16 < a < num - num // 16 or num < 32)]
    chosen = coprime[:: max(1, len(coprime) // _CHOICES)][:_CHOICES] or [1]
    return np.asarray(chosen, np.uint32)


def affine(key: Key, num: int) -> Affine:
    """A random affine permutation of ``num`` items; consumes ``key``."""
    table = jnp.asarray(multipliers(num))
    pick, offset = jax.random.split(key)
    return Affine(table[jax.random.randint(pick, (), 0, table.shape[0])],
                  jax.random.randint(offset, (), 0, num).astype(jnp.uint32))


def take(order: Affine, start: Array, count: int, num: int) -> Array:
    """Items ``start .. start + count`` of the permutation of ``num``, [count] int32."""
    i = start.astype(jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)
    size = jnp.uint32(num)
    return (((order.multiplier * i) % size + order.offset) % size).astype(jnp.int32)
