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
    SAMPLE = 7


def root(seed: int) -> jax.Array:
    """The key of a run; ``seed`` may be any integer in [0, 2**64)."""
    words = np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def key(root_key: jax.Array, stream: Stream, *address: int | jax.Array) -> jax.Array:
    """The key at an address below a run's root. Pure; address parts may be traced."""
    folded = jax.random.fold_in(root_key, int(stream))
    for part in address:
        folded = jax.random.fold_in(folded, part)
    return folded


def grid(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One key for each place of ``shape``, by counting up from ``key``: threefry needs keys that differ, not that are random."""
    words = jax.random.key_data(key)
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return jax.random.wrap_key_data(jnp.stack([words[0] + count, jnp.broadcast_to(words[1], shape)], axis=-1), impl="threefry2x32")


def host_seed(seed: int, stream: Stream, *address: int) -> int:
    """A seed in [0, 2**31) for environments that live in Python; no JAX, a microsecond or two."""
    text = ",".join(map(str, (seed, int(stream), *address))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") >> 1
