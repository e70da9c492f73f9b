"""Randomness by address: every draw is named by (seed, stream, lane, seq); no generator state lives anywhere.

A chunk can therefore be made again to the same bits by anyone who knows its address.
"""

from __future__ import annotations

import hashlib
import math
from enum import IntEnum
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


class Stream(IntEnum):
    """What a draw is for. Part of the address: renumbering changes every run."""

    INIT = 0
    ACT = 1
    ENV = 2
    LEARN = 3
    EVAL_ACT = 4
    EVAL_ENV = 5
    RESET = 6
    SAMPLE = 7


def root(seed: int) -> jax.Array:
    """The key of a run; ``seed`` may be any integer in [0, 2**64)."""
    words = np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def key(root_key: jax.Array, stream: Stream, *address: int | jax.Array) -> jax.Array:
    """The key at an address below a run's root. Pure; address parts may be traced."""
    folded = fold_in(root_key, int(stream))
    for part in address:
        folded = fold_in(folded, part)
    return folded


def grid(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One key for each place of ``shape``, by counting up from ``key``: threefry needs keys that differ, not that are random."""
    words = jax.random.key_data(key)
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return jax.random.wrap_key_data(jnp.stack([words[0] + count, jnp.broadcast_to(words[1], shape)], axis=-1), impl="threefry2x32")


# JAX's own draws, to the bit, for a few numbers at a time: the rounds written out. On the CPU, JAX goes around a loop for them, and a small
# draw then takes less time than the loop.


def fold_in(key: jax.Array, number: int | jax.Array) -> jax.Array:
    """``jax.random.fold_in`` for one key."""
    words = _threefry(jax.random.key_data(key), jnp.zeros((), jnp.uint32), jnp.asarray(number, jnp.uint32))
    return jax.random.wrap_key_data(jnp.stack(words), impl="threefry2x32")


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``jax.random.bits``, 32 each."""
    return bits_at(key, jnp.arange(math.prod(shape), dtype=jnp.uint32)).reshape(shape)


def bits_at(key: jax.Array, place: jax.Array) -> jax.Array:
    """Those among ``bits`` that stand at ``place``, uint32, of any shape."""
    first, second = _threefry(jax.random.key_data(key), jnp.zeros_like(place), place)
    return first ^ second


def uniform(key: jax.Array, shape: tuple[int, ...], low: float = 0.0) -> jax.Array:
    """``jax.random.uniform`` in [low, 1)."""
    unit = jax.lax.bitcast_convert_type(bits(key, shape) >> 9 | np.uint32(0x3F800000), jnp.float32) - 1.0
    return jnp.maximum(np.float32(low), unit * (np.float32(1.0) - np.float32(low)) + np.float32(low))


def normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``jax.random.normal``."""
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform(key, shape, float(np.nextafter(np.float32(-1), np.float32(0)))))


@partial(jax.jit, inline=True)
def _threefry(words: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """20 rounds of threefry-2x32. Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3"."""
    keys = words[0], words[1], words[0] ^ words[1] ^ np.uint32(0x1BD11BDA)
    first, second = first + keys[0], second + keys[1]
    for block in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            first = first + second
            second = (second << turn | second >> (32 - turn)) ^ first
        first, second = first + keys[(block + 1) % 3], second + keys[(block + 2) % 3] + np.uint32(block + 1)
    return first, second


def host_seed(seed: int, stream: Stream, *address: int) -> int:
    """A seed in [0, 2**31) for environments that live in Python; no JAX, a microsecond or two."""
    text = ",".join(map(str, (seed, int(stream), *address))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") >> 1
