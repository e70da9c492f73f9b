"""Whether numbers are numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.ops import serial
from shoal.types import Array, Tree

_WIDTH = 256


def all_finite(tree: Tree) -> Array:
    """[] bool: no leaf of ``tree`` holds an infinity or what is not a number.

    On the CPU: a row times zeros is zero only if all of it is finite, and no other sum over long arrays is as fast as a product there.
    """
    leaves = [x.reshape(-1) for x in jax.tree.leaves(tree) if x.size and jnp.issubdtype(x.dtype, jnp.inexact)]

    def plain(leaves: list[Array]) -> Array:
        return jnp.isfinite(jnp.concatenate(leaves)).all()

    def by_products(leaves: list[Array]) -> Array:
        seen = []
        for x in leaves:
            whole = x.size // _WIDTH * _WIDTH if x.size >= 16 * _WIDTH else 0
            seen += [x[:whole].reshape(-1, _WIDTH) @ jnp.where(serial.done(x), jnp.zeros(_WIDTH, x.dtype), 1)] if whole else []
            seen += [x[whole:]] if whole < x.size else []
        return plain(seen)

    return jax.lax.platform_dependent(leaves, cpu=by_products, default=plain) if leaves else jnp.asarray(True)
