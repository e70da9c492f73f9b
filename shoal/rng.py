"""Randomness by address: every draw is named by (seed, stream, lane, seq); no generator state lives anywhere.

A chunk can therefore be made again to the same bits by anyone who knows its address.
"""

from __future__ import annotations

import hashlib
import math
from enum import IntEnum

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


def root(seed: int) -> jax.Array:
    """The key of a run; ``seed`` may be any integer in [0, 2**64)."""
    words = np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def key(root_key: jax.Array, stream: Stream, *address: int | jax.Array) -> jax.Array:
    """The key at an address below a run's root. Pure; address parts may be traced."""
    folded = fold(root_key, int(stream))
    for part in address:
        folded = fold(folded, part)
    return folded


# What jax.random makes of a key, bit for bit, for the few keys of an iteration: written out, threefry is a part of one small kernel,
# where jax's loop is a dozen kernels and copies that take longer to compile than all else about it.

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def _mix(key: jax.Array, low: jax.Array) -> jax.Array:
    """The two words [..., 2] that threefry makes of the block (0, ``low``) with ``key``. Salmon et al. (2011), 20 rounds."""
    words = jax.random.key_data(key)
    keys = words[..., 0], words[..., 1], words[..., 0] ^ words[..., 1] ^ np.uint32(0x1BD11BDA)
    one, two = jnp.broadcast_to(keys[0], jnp.broadcast_shapes(keys[0].shape, low.shape)), keys[1] + low
    for i in range(5):
        for turn in _ROTATIONS[i % 2]:
            one = one + two
            two = one ^ (two << turn | two >> (32 - turn))
        one, two = one + keys[(i + 1) % 3], two + keys[(i + 2) % 3] + np.uint32(i + 1)
    return jnp.stack([one, two], axis=-1)


def fold(key: jax.Array, data: int | jax.Array) -> jax.Array:
    """``jax.random.fold_in``."""
    return jax.random.wrap_key_data(_mix(key, jnp.asarray(data).astype(jnp.uint32)), impl="threefry2x32")


def split(key: jax.Array, num: int = 2) -> jax.Array:
    """``jax.random.split``, [num]."""
    return fold(key, jnp.arange(num))


def integer(key: jax.Array, num: int) -> jax.Array:
    """``jax.random.randint`` from 0 below ``num``, one of them."""
    high, low = (_mix(part, jnp.zeros((), jnp.uint32)) for part in split(key))
    span = np.uint32(num)
    factor = np.uint32((2**16 % num) ** 2 % 2**32 % num)
    high, low = ((x[0] ^ x[1]) % span for x in (high, low))
    return ((high * factor + low) % span).astype(jnp.int32)


def grid(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One key for each place of ``shape``, by counting up from ``key``: threefry needs keys that differ, not that are random."""
    words = jax.random.key_data(key)
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return jax.random.wrap_key_data(jnp.stack([words[0] + count, jnp.broadcast_to(words[1], shape)], axis=-1), impl="threefry2x32")


def host_seed(seed: int, stream: Stream, *address: int) -> int:
    """A seed in [0, 2**31) for environments that live in Python; no JAX, a microsecond or two."""
    text = ",".join(map(str, (seed, int(stream), *address))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") >> 1
