"""Random numbers by address for tables: a counter under a key, mixed; no state. Written once for Python and once for NumPy; the compiled
form is in ``compiled``. All give the same numbers.

The mixing is that of SplitMix64: Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

import hashlib

import numpy as np

STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
STARTS = 0x5851F42D4C957F2D  # turns an environment's key into that of its episodes' starts
_WORD, _LOW = 2**64 - 1, 2**32 - 1


def key(seed: int, stream: int, env: int) -> int:
    """The key of one environment's draws, in [0, 2**64)."""
    text = f"table,{seed},{stream},{env}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


# plain Python --------------------------------------------------------------------------------------------------------


def draw(key: int, count: int) -> int:
    """64 random bits for a place in the row of draws under a key."""
    x = (int(key) + int(count) * STEP) & _WORD
    x = ((x ^ (x >> 30)) * FIRST) & _WORD
    x = ((x ^ (x >> 27)) * SECOND) & _WORD
    return x ^ (x >> 31)


def unit(bits: int) -> float:
    """A number in [0, 1) from the upper 53 bits."""
    return (bits >> 11) * 2.0**-53


def half(bits: int) -> float:
    """A number in [0, 1) from the upper 32 bits; the lower are left for ``pick``."""
    return (bits >> 32) * 2.0**-32


def pick(bits: int, num: int) -> int:
    """One of ``num`` choices from the lower 32 bits."""
    return ((bits & _LOW) * num) >> 32


def share(bits: int, num: int) -> int:
    """One of ``num`` choices from the upper 32 bits."""
    return ((bits >> 32) * num) >> 32


def coin(bits: int) -> int:
    """0 or 1 from the lowest bit, which ``unit`` does not look at."""
    return bits & 1


def other(key: int) -> int:
    """Another row of draws for the same environment: where its episodes start."""
    return int(key) ^ STARTS


# NumPy ---------------------------------------------------------------------------------------------------------------


def draw_batch(key: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``draw`` for uint64 keys [B] and int64 counts [B]."""
    x = key + count.astype(np.uint64) * np.uint64(STEP)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))


def unit_batch(bits: np.ndarray) -> np.ndarray:
    return (bits >> np.uint64(11)) * 2.0**-53


def half_batch(bits: np.ndarray) -> np.ndarray:
    return (bits >> np.uint64(32)) * 2.0**-32


def pick_batch(bits: np.ndarray, num: np.ndarray) -> np.ndarray:
    return ((bits & np.uint64(_LOW)) * num.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def share_batch(bits: np.ndarray, num: int) -> np.ndarray:
    return ((bits >> np.uint64(32)) * np.uint64(num) >> np.uint64(32)).astype(np.int64)


def coin_batch(bits: np.ndarray) -> np.ndarray:
    return (bits & np.uint64(1)).astype(np.int64)
