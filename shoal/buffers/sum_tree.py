"""A sum-tree: draws rows in proportion to their priorities, and changes them, in O(log n).

One flat array per level, each eight of it the children of one node above; a node is always the float sum of its children, recomputed from
them whenever one changes and never adjusted, so that errors do not build up over any number of writes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal import rng
from shoal.types import Array, Key

_BITS = 3
ARITY = 2**_BITS
_TOGETHER = 4  # levels that one float may decide: 12 of its 24 bits
Levels = tuple[Array, ...]  # [nodes · ARITY] each; the rows' own values first, the root's children last


def init(rows: int) -> Levels:
    """A tree of ``rows`` zeros."""
    levels: list[Array] = []
    nodes = rows
    while not levels or nodes > 1:
        nodes = -(-nodes // ARITY)
        levels.append(jnp.zeros(nodes * ARITY, jnp.float32))
    return tuple(levels)


def add_up(children: Array) -> Array:
    """[..., ARITY] → [...]: in halves, an order that no compiler changes."""
    while children.shape[-1] > 1:
        half = children.shape[-1] // 2
        children = children[..., :half] + children[..., half:]
    return children[..., 0]


def total(levels: Levels) -> Array:
    return add_up(levels[-1])


def _children(level: Array, node: Array) -> Array:
    """[B, ARITY] of the nodes [B] above a level."""
    return level.reshape(-1, ARITY).at[_place(node)].get(mode="promise_in_bounds")


def _place(x: Array) -> Array:
    """A number that is not negative, as an index: of others JAX would look whether they are."""
    return x.astype(jnp.uint32)


def write(levels: Levels, row: Array, value: Array, keep: Array | bool = True) -> Levels:
    """Set the values of ``row`` [K] where ``keep``. Of several values for one row the largest stays, on every device."""
    size = levels[0].shape[0]
    where = _place(jnp.where(keep, row, size))
    leaves = levels[0].at[where].set(-jnp.inf, mode="drop").at[where].max(value, mode="drop")
    return _settle((leaves, *levels[1:]), jnp.minimum(row, size - 1) >> _BITS)


def fill(levels: Levels, first: Array, num: int, value: Array) -> Levels:
    """Set the ``num`` rows from each of ``first`` [K] on to ``value`` []."""
    if first.shape[0] == 1:
        return _fill_one(levels, first[0], num, value)
    rows = (first[:, None] + jnp.arange(num, dtype=jnp.int32)).reshape(-1)
    leaves = levels[0].at[rows].set(value, mode="promise_in_bounds")
    node = first[:, None] // ARITY + jnp.arange(_touched(num), dtype=jnp.int32)
    return _settle((leaves, *levels[1:]), jnp.minimum(node, leaves.shape[0] // ARITY - 1).reshape(-1))


def _touched(num: int) -> int:
    """How many nodes ``num`` rows side by side can have for parents."""
    return (num - 2) // ARITY + 2


def _fill_one(levels: Levels, first: Array, num: int, value: Array) -> Levels:
    """One range, by slices: XLA turns a scatter of a single row into a copy of the array."""
    settled = [jax.lax.dynamic_update_slice(levels[0], jnp.broadcast_to(value, (num,)), (first,))]
    for above in levels[1:]:
        below = settled[-1]
        nodes = below.shape[0] // ARITY
        num = min(_touched(num), nodes)
        first = jnp.minimum(first // ARITY, nodes - num)
        sums = add_up(jax.lax.dynamic_slice(below, (first * ARITY,), (num * ARITY,)).reshape(num, ARITY))
        settled.append(jax.lax.dynamic_update_slice(above, sums, (first,)))
    return tuple(settled)


def _settle(levels: Levels, node: Array) -> Levels:
    """Recompute every node above those whose children changed. Where one is named twice the same sum is written twice."""
    settled = [levels[0]]
    for above in levels[1:]:
        settled.append(above.at[_place(node)].set(add_up(_children(settled[-1], node)), mode="promise_in_bounds"))
        node = node >> _BITS
    return tuple(settled)


def sample(levels: Levels, key: Key, num: int) -> tuple[Array, Array]:
    """``num`` rows and their values, [num] each, in proportion to the values; consumes the key.

    Stratified: the i-th is drawn from the i-th of ``num`` equal parts of the total (Schaul et al. 2016, appendix B.2.1).
    A float has 24 bits and a row among a million takes 20 of them, so after a few levels the rest of the way down is drawn afresh.
    """
    stages = -(-len(levels) // _TOGETHER)
    bounds = [len(levels) * stage // stages for stage in range(stages)]  # a stage ends where the next level down is one of these
    uniform = rng.uniform(key, (stages, num))
    aim = (jnp.arange(num) + uniform[0]) / num * total(levels)
    node, value = jnp.zeros(num, jnp.int32), jnp.zeros(num)
    for depth in reversed(range(len(levels))):
        node, value, aim = _choose(_children(levels[depth], node), node, aim)
        if depth in bounds and depth:
            aim = uniform[bounds.index(depth)] * value
    return node, value


def _choose(children: Array, node: Array, aim: Array) -> tuple[Array, Array, Array]:
    """Of [B, ARITY] children of ``node`` [B] the number of the one that ``aim`` [B] falls in, its value, and what is left of the aim.

    It is the last positive one that begins at or before the aim: whatever rounding did, never one with value 0.
    Chosen by one reduction with three results, which XLA keeps apart: it would work out a chain of selections anew for each user of it.
    """
    begin = _before(children)
    place = (node[:, None] << _BITS) + jax.lax.broadcasted_iota(jnp.int32, children.shape, 1)
    place = jnp.where((children > 0) & (begin <= aim[:, None]), place, -1)

    def later(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(jnp.where(a[0] >= b[0], x, y) for x, y in zip(a, b, strict=True))

    none = jnp.int32(-1), jnp.float32(0), jnp.float32(0)
    chosen, value, base = jax.lax.reduce((place, children, begin), none, later, (1,))
    return jnp.maximum(chosen, 0), value, jnp.maximum(aim - base, 0.0)


def _before(children: Array) -> Array:
    """[B, ARITY]: the sum of all children before each."""
    sums, step = jnp.pad(children, ((0, 0), (1, 0)))[:, :ARITY], 1
    while step < ARITY:
        sums = sums + jnp.pad(sums, ((0, 0), (step, 0)))[:, :ARITY]
        step *= 2
    return sums
