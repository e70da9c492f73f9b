"""Running mean and variance that merge associatively: parts may be joined in any grouping."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from shoal.ops import blocks
from shoal.types import Array


class Moments(NamedTuple):
    """Of ``count`` rows: mean and (population) variance, each of the row's shape."""

    count: Array  # [] float32
    mean: Array
    variance: Array


def init(shape: tuple[int, ...] = ()) -> Moments:
    """Of nothing yet."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def of(rows: Array, weight: Array) -> Moments:
    """Of ``rows`` [R, ...], each counted ``weight`` [R] times."""
    count = blocks.total(weight)
    share = (weight / jnp.maximum(count, 1.0)).reshape((-1,) + (1,) * (rows.ndim - 1))
    mean = blocks.total(share * rows)
    return Moments(count, mean, blocks.total(share * (rows - mean) ** 2))


def merge(a: Moments, b: Moments) -> Moments:
    """Of both together. Chan, Golub & LeVeque (1979), eq. 2.1, in terms of variances.

    Every sum has one product at most. Of two, a compiler may round either, and for one agent alone it chose otherwise than for several.
    """
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1.0)
    delta = b.mean - a.mean
    change = (b.variance - a.variance) + (1.0 - share) * delta**2
    return Moments(count, a.mean + share * delta, jnp.maximum(a.variance + share * change, 0.0))


def normalise(moments: Moments, x: Array, limit: float = 10.0) -> Array:
    """``x`` with zero mean and unit variance, clipped to ``limit``; the identity before the first merge."""
    seen = moments.count > 0
    scale = jnp.where(seen, jnp.sqrt(moments.variance + 1e-8), 1.0)
    return jnp.where(seen, ((x - moments.mean) / scale).clip(-limit, limit), x)


def root_mean_square(moments: Moments) -> Array:
    """The scale of the rows about zero, 1 before the first merge; never so small that dividing by it explodes."""
    scale = jnp.sqrt(moments.variance + moments.mean**2)
    return jnp.where(moments.count > 0, jnp.maximum(scale, 1e-3), 1.0)
