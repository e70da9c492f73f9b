"""How a value changes as training goes on: a factor of its start value, from the fraction done."""

from __future__ import annotations

import jax.numpy as jnp

from shoal.types import Array

NAMES = ("constant", "linear", "cosine", "exponential")


def factor(name: str, done: Array) -> Array:
    """1 at the start; at the horizon 0 (linear, cosine) or 1/100 (exponential), and the same from then on."""
    done = jnp.clip(done, 0.0, 1.0)
    if name == "constant":
        return jnp.ones_like(done)
    if name == "linear":
        return 1.0 - done
    if name == "cosine":
        return 0.5 * (1.0 + jnp.cos(jnp.pi * done))
    if name == "exponential":
        return 0.01**done
    raise ValueError(f"schedule {name!r}: expected one of {', '.join(NAMES)}")


def between(name: str, start: Array, end: Array, done: Array) -> Array:
    """From ``start`` to ``end``, exactly that from ``done`` = 1 on; constant stays at ``start``.

    To arrive after a share of the horizon, divide ``done`` by it.
    """
    if name == "constant":
        return start + jnp.zeros_like(done)
    final = factor(name, jnp.ones(()))
    left = (factor(name, done) - final) / (1.0 - final)
    return end + (start - end) * left
