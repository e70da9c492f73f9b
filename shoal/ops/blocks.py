"""Whole batches in fixed blocks of rows, in order.

On the CPU, XLA splits a large matrix product over its threads and the sum then depends on how many there are. Blocks of
at most 256 rows are never split, so a gradient summed over them has the same bits for any number of threads, and is faster
besides, since its activations stay in cache. Other devices take the batch whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.ops import serial
from shoal.types import Array, Tree

BLOCK_ROWS = 256
WHOLE = 32_768  # numbers that XLA's CPU sums in the same way with one thread and with more, as seen with jax 0.10


def _split(rows: Tree) -> tuple[Tree, int]:
    """[R, ...] → [blocks, rows per block, ...], padded with zeros at the end; and R."""
    count = jax.tree.leaves(rows)[0].shape[0]
    blocks = -(-count // BLOCK_ROWS)
    size = -(-count // blocks)
    pad = blocks * size - count

    def shape(x: Array) -> Array:
        x = jnp.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1)) if pad else x
        return x.reshape((blocks, size) + x.shape[1:])

    return jax.tree.map(shape, rows), count


def map_rows(fn: Callable[[Tree], Tree], rows: Tree) -> Tree:
    """``fn`` over all rows [R, ...] at once, where ``fn`` treats each row alike."""
    if jax.tree.leaves(rows)[0].shape[0] <= BLOCK_ROWS:
        return fn(rows)

    def blocked(rows: Tree) -> Tree:
        blocks, count = _split(rows)
        out = jax.lax.map(fn, blocks)
        return jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:])[:count], out)

    return jax.lax.platform_dependent(rows, cpu=blocked, default=fn)


def sum_rows(fn: Callable[[Tree], Tree], rows: Tree) -> Any:
    """The sum of ``fn`` over all rows, where ``fn`` sums what it is given and rows of zeros add nothing."""
    return sum_and_map(lambda rows: (fn(rows), ()), rows)[0]


def sum_and_map(fn: Callable[[Tree], tuple[Tree, Tree]], rows: Tree) -> tuple[Any, Any]:
    """``sum_rows`` and ``map_rows`` in one pass: ``fn`` answers what is summed, and what belongs to each row, [R, ...]."""
    if jax.tree.leaves(rows)[0].shape[0] <= BLOCK_ROWS:
        return fn(rows)

    def blocked(rows: Tree) -> Any:
        blocks, count = _split(rows)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(fn, jax.tree.map(lambda x: x[0], blocks))[0])

        def step(sums: Tree, block: Tree) -> tuple[Tree, Tree]:
            part, own = fn(block)
            return jax.tree.map(jnp.add, sums, part), own

        sums, own = jax.lax.scan(step, zero, blocks)
        return sums, jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:])[:count], own)

    return jax.lax.platform_dependent(rows, cpu=blocked, default=fn)


def total(x: Array) -> Array:
    """The sum of rows [R, ...], never of more numbers at once than are summed alike by any number of threads."""
    part = max(WHOLE // max(x[0].size, 1), 1)
    if x.shape[0] <= part:
        return x.sum(0)

    def parted(x: Array) -> Array:
        if x.ndim == 2:  # XLA's CPU takes one thread for a product with a vector
            return jnp.where(serial.done(x), jnp.ones(x.shape[0], x.dtype), 0) @ x
        whole = x.shape[0] // part * part
        first = x[:whole].reshape((-1, part) + x.shape[1:])
        return jax.lax.scan(lambda sums, rows: (sums + rows.sum(0), None), x[whole:].sum(0), first)[0]

    return jax.lax.platform_dependent(x, cpu=parted, default=lambda x: x.sum(0))


def map_successors(fn: Callable[[Array], Array], following: Array, now: Array, broken: Array) -> Array:
    """``fn`` over the rows ``following`` [T·B, F] that come after those it was mapped over already, with values ``now`` [T·B].

    Most successors are themselves rows, B further on, and their values known; ``fn`` is only needed at the last step and where
    ``broken`` [T, B] says that the next row is another episode's. Other devices than the CPU do not mind doing all.
    """
    total, step = now.shape[0], now.shape[0] // broken.shape[0]
    room = -(-(step + total // 16) // BLOCK_ROWS) * BLOCK_ROWS
    if room > total // 2:
        return map_rows(fn, following)

    def sparse(following: Array, now: Array, broken: Array) -> Array:
        needed = broken.at[-1].set(True).reshape(-1)
        index = jnp.nonzero(needed, size=room, fill_value=total)[0]
        shifted = jnp.concatenate([now[step:], now[:step]])

        def few(_: None) -> Array:
            values = map_rows(fn, following.at[index].get(mode="fill", fill_value=0.0))
            return shifted.at[index].set(values, mode="drop")

        return jax.lax.cond(needed.sum() <= room, few, lambda _: map_rows(fn, following), None)

    return jax.lax.platform_dependent(following, now, broken, cpu=sparse, default=lambda following, *_: map_rows(fn, following))
