"""One thing after the other, on the CPU.

There XLA hands part of a program to another thread as soon as more than nine things in it could be done at once, and two changes of
thread take longer than a small network learns. What is here makes things wait for each other, so that there are never as many.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.types import Array, Tree


def done(x: Array) -> Array:
    """[] bool: true, once ``x``, of floats, is there. No compiler sees that it is always so, since it does not look for it."""
    first = x.reshape(-1)[0]
    return (first == first) | (first != first)


def held(x: Array, first: Array) -> Array:
    """``x``, once ``first``, of floats, is there: on the CPU, where what could be done at once is counted."""
    if not first.size:
        return x
    return jax.lax.platform_dependent(x, first, cpu=lambda x, first: jnp.where(done(first), x, jnp.zeros_like(x)),
                                      default=lambda x, first: x)


def chosen(flag: Array, yes: Tree, no: Tree) -> Tree:
    """``yes`` or ``no`` by ``flag``, leaf by leaf."""
    def in_turn(flag: Array, yes: Tree, no: Tree) -> Tree:
        def one(yes: Array, no: Array) -> Array:
            nonlocal flag
            kept = jax.lax.optimization_barrier(jnp.where(flag, yes, no))  # else the compiler asks ``yes``
            if kept.size and jnp.issubdtype(kept.dtype, jnp.floating):
                flag = flag & done(kept)
            return kept

        return jax.tree.map(one, yes, no)

    def at_once(flag: Array, yes: Tree, no: Tree) -> Tree:
        return jax.tree.map(lambda yes, no: jnp.where(flag, yes, no), yes, no)

    return jax.lax.platform_dependent(flag, yes, no, cpu=in_turn, default=at_once)


def copied(tree: Tree, after: Array) -> Tree:
    """``tree``, leaf by leaf, once ``after`` is there."""
    return chosen(done(after), tree, jax.tree.map(jnp.zeros_like, tree))


def settled(tree: Tree) -> Tree:
    """``tree``, put down in memory first: what reads it is compiled as if it came from elsewhere, and rounds in the same way."""
    first = next(x for x in jax.tree.leaves(tree) if x.size and jnp.issubdtype(x.dtype, jnp.floating))
    return jax.lax.cond(done(first), lambda tree: tree, lambda tree: jax.tree.map(jnp.zeros_like, tree), tree)
