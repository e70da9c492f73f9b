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
