"""What a worker that learns pushes, and what the one who applies it makes of it. Pure.

An algorithm that has its update in two halves pushes gradients. Of any other, a worker makes one update of its own and pushes how far its
weights moved; the state of its optimiser stays with it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shoal.ops import serial
from shoal.ops.finite import all_finite
from shoal.types import Algorithm, Batch, Key, Metrics, Tree


def by_gradients(algorithm: Algorithm) -> bool:
    """Whether an algorithm's update comes in two halves."""
    return hasattr(algorithm, "gradient") and hasattr(algorithm, "apply")


def propose(algorithm: Any, state: Tree, own: Tree, batch: Batch, key: Key) -> tuple[Tree, Tree]:
    """What to push for a batch, and what the worker keeps to itself (``own``: the same from before)."""
    if by_gradients(algorithm):
        return algorithm.gradient(state, batch, key), own
    before = _with(state, own)
    updated = algorithm.update(before, batch, key)
    moved = jax.tree.map(lambda new, old: new - old, _with(updated.state, ()), _with(before, ()))
    return (moved, updated.metrics), own_part(updated.state)


def apply(algorithm: Any, state: Tree, pushed: Tree) -> tuple[Tree, Metrics]:
    """The state after a push, or as it was where that would leave anything that is not a finite number."""
    if by_gradients(algorithm):
        after = algorithm.apply(state, *pushed)
        new, metrics = after.state, after.metrics
    else:
        moved, metrics = pushed
        new = _with(jax.tree.map(lambda old, far: old + far, _with(state, ()), moved), own_part(state))
    finite = all_finite((new, pushed))
    return serial.chosen(finite, new, state), metrics | {"refused": 1.0 - finite.astype(jnp.float32)}


def own_part(state: Tree) -> Tree:
    """What a worker keeps to itself between two pushes: its optimiser's state."""
    return getattr(state, "optimiser", ())


def _with(state: Tree, optimiser: Tree) -> Tree:
    return state._replace(optimiser=optimiser) if hasattr(state, "optimiser") else state
