"""Fixed features of bounded observations for linear functions: a Fourier basis and tile coding.

Both see observations scaled to the unit cube by ``unit``, with bounds from ``limits``. What they are made of follows from a few
whole numbers and is worked out once, in NumPy; applying it is JAX.
"""

from __future__ import annotations

import itertools
import math

import jax.numpy as jnp
import numpy as np

from shoal.errors import ConfigError
from shoal.specs import Box, EnvSpec
from shoal.types import Array

MOST = 1_000_000  # features


def limits(spec: EnvSpec, low: tuple[float, ...] = (), high: tuple[float, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Least and most of every number of an observation, [D] each: as given by the user, else as its box says."""
    if not isinstance(spec.obs, Box):
        raise ConfigError(f"observation of {spec.name!r} is a {type(spec.obs).__name__}: these features expect a Box")
    found = []
    for name, given, own in zip(("feature_low", "feature_high"), (low, high), spec.obs.bounds(), strict=True):
        if given and len(given) != spec.obs.size:
            raise ConfigError(f"{name} = {given}: expected {spec.obs.size} numbers, one for each of the observation of {spec.name!r}")
        bound = np.asarray(given, np.float32) if given else own.reshape(-1)
        # a bound such as 3.4e38 is as good as none: in so wide a box all that happens is at one point
        free = np.flatnonzero(~(np.abs(bound) < 1e30))
        if free.size:
            raise ConfigError(f"observation of {spec.name!r} has no bounds on {', '.join(map(str, free))}: these features need "
                              f"{name}, one number for each of its {spec.obs.size} numbers")
        found.append(bound)
    if (wrong := np.flatnonzero(found[0] >= found[1])).size:
        raise ConfigError(f"feature_low = {found[0][wrong[0]]:g} at {wrong[0]}: expected less than feature_high, {found[1][wrong[0]]:g}")
    return found[0], found[1]


def unit(x: Array, low: Array, high: Array) -> Array:
    """``x`` [..., D] scaled to [0, 1], and cut there."""
    return ((x - low) / (high - low)).clip(0.0, 1.0)


# Fourier basis: Konidaris, Osentoski & Thomas (2011), "Value function approximation in reinforcement learning ..." ------


def fourier_coefficients(num_inputs: int, order: int, coupled: int = 0) -> np.ndarray:
    """Frequencies [K, D] from 0 to ``order`` in all combinations that join at most ``coupled`` inputs; 0 for any number.

    (order + 1)^D where all are joined, 1 + order · D where none is.
    """
    coupled = min(coupled or num_inputs, num_inputs)
    num = sum(math.comb(num_inputs, joined) * order**joined for joined in range(coupled + 1))
    if num > MOST:
        raise ConfigError(f"order = {order}: makes {num:,} features of {num_inputs} numbers, expected at most {MOST:,}; lower it, or "
                          "couple fewer")
    rows = []
    for joined in range(coupled + 1):
        for places in itertools.combinations(range(num_inputs), joined):
            for frequencies in itertools.product(range(1, order + 1), repeat=joined):
                row = np.zeros(num_inputs, np.float32)
                row[list(places)] = frequencies
                rows.append(row)
    return np.stack(rows)


def fourier(x: Array, coefficients: Array) -> Array:
    """cos(π c · x) for every row c of ``coefficients`` [K, D]: ``x`` [..., D] in the unit cube → [..., K]. Their section 3."""
    return jnp.cos(jnp.pi * (x @ coefficients.T))


def fourier_rates(coefficients: np.ndarray) -> np.ndarray:
    """What each feature's step size is to be multiplied by, 1 / ‖c‖, [K]; 1 for the constant. Their section 4, on step sizes."""
    norms = np.linalg.norm(coefficients, axis=1)
    return (1.0 / np.where(norms > 0, norms, 1.0)).astype(np.float32)


# tile coding: Albus (1975); Sutton & Barto (2018), section 9.5.4 ------------------------------------------------------


def tile_size(num_inputs: int, num_tilings: int, num_tiles: int) -> int:
    """Tiles of all tilings together; displaced tilings need one more tile along every input to cover the cube."""
    size = num_tilings * (num_tiles + 1) ** num_inputs
    if size > 2**31 - 1:
        raise ConfigError(f"num_tiles = {num_tiles}: makes {size:,} tiles of {num_inputs} numbers, more than can be counted; give "
                          "tile_memory, the number that they are to share")
    return size


def tiles(x: Array, num_tilings: int, num_tiles: int, memory: int = 0) -> Array:
    """The tile that ``x`` [..., D], in the unit cube, lies on in each tiling, int32 [..., num_tilings].

    Tiling k is displaced by k / num_tilings · (1, 3, 5, ...) of a tile, which spreads better than the diagonal (Miller & Glanz 1996).
    Every tile has its own number below ``tile_size``, or shares one below ``memory`` with others, if that is given.
    """
    num_inputs = x.shape[-1]
    displaced = np.arange(num_tilings)[:, None] * (2 * np.arange(num_inputs) + 1) / num_tilings % 1.0
    place = jnp.floor(x[..., None, :] * num_tiles + displaced.astype(np.float32)).astype(jnp.int32)
    place = jnp.minimum(place, num_tiles)  # a displacement just below 1 may round up at the far edge
    tiling = jnp.arange(num_tilings, dtype=jnp.int32)
    if memory:
        return _hashed(place, tiling, memory)
    tile_size(num_inputs, num_tilings, num_tiles)
    index = tiling
    for i in range(num_inputs):
        index = index * (num_tiles + 1) + place[..., i]
    return index


def _hashed(place: Array, tiling: Array, memory: int) -> Array:
    """Numbers below ``memory`` for coordinates [..., K, D]: as good as random, and always the same."""
    mixed = _mix(tiling.astype(jnp.uint32))
    for i in range(place.shape[-1]):
        mixed = _mix(mixed ^ (place[..., i].astype(jnp.uint32) + np.uint32(0x9E3779B9 * (i + 1) % 2**32)))
    return (mixed % np.uint32(memory)).astype(jnp.int32)


def _mix(x: Array) -> Array:
    """32 bits to 32 bits, one to one, every bit depending on all. Wellons (2018), "lowbias32"."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def active(indices: Array, size: int) -> Array:
    """Features [..., size] that are 1 at ``indices`` [..., K], more where several fall on one; for products instead of scatters."""
    return (indices[..., None] == jnp.arange(size)).sum(axis=-2, dtype=jnp.float32)
