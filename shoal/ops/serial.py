"""One thing after the other, on the CPU.

There XLA hands part of a program to another thread as soon as more than nine things in it could be done at once, and two changes of
thread take longer than a small network learns. What is here makes things wait for each other, so that there are never as many, and from
JAX 0.11 on keeps long products apart from all that could be done meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.types import Array, Tree

ELSEWHERE = jax.__version_info__ >= (0, 11)  # whether products go to XLA's own threads wherever something else could be done meanwhile


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


def alone(fn: Callable[..., Array], *args: Array) -> Array:
    """``fn`` of arrays of floats, on the CPU by the thread that asks for it: in a branch of its own, where nothing else could be done."""
    if not ELSEWHERE:
        return fn(*args)

    def branch(*args: Array) -> Array:
        like = jax.eval_shape(fn, *args)
        args = jax.lax.optimization_barrier(args)  # else the compiler makes the first again to ask it
        return jax.lax.cond(done(args[0]), fn, lambda *_: jnp.zeros(like.shape, like.dtype), *args)

    @jax.custom_batching.custom_vmap
    def asked(*args: Array) -> Array:
        return jax.lax.platform_dependent(*args, cpu=branch, default=fn)

    @asked.def_vmap
    def several(size: int, batched: Any, *args: Array) -> tuple[Array, bool]:  # one branch, and not one for each
        return alone(jax.vmap(fn, in_axes=tuple(0 if x else None for x in batched)), *args), True

    return asked(*args)
