"""Where rows stand: integer arithmetic on rings of slots, one ring per lane, and nothing else.

A lane adds chunks of a constant number of steps, and its ring is a whole number of chunks, so that a chunk never wraps. A row is one
step of one environment; its number is its place in ``[lanes, slots, envs]``, flattened. Rows of an environment stand in time order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal import rng
from shoal.types import Array, Key


class Shape(NamedTuple):
    """The sizes of a ring, all fixed."""

    lanes: int
    slots: int  # per lane, a multiple of ``steps``
    envs: int  # per lane
    steps: int  # of a chunk
    back: int = 0  # of the slots, those that stay readable behind the ones held: a whole number of chunks

    @property
    def rows(self) -> int:
        return self.lanes * self.slots * self.envs

    @property
    def capacity(self) -> int:
        """Rows that are held at most."""
        return self.lanes * (self.slots - self.back) * self.envs


class Index(NamedTuple):
    """What is held, and since when."""

    cursor: Array  # [L] int32: the slot that the lane's next chunk begins at
    filled: Array  # [L] int32: slots held, those just before the cursor
    count: Array  # [L] int32: chunks ever added; past 2**31 it goes on from below, and only differences are looked at
    blocks: Any = ()  # pool.Blocks where large observations are kept once


class Ticket(NamedTuple):
    """A row as it was when it was drawn."""

    row: Array  # [B] int32
    stamp: Array  # [B] int32: its chunk's number among all of its lane


def behind(shape: Shape, steps: int) -> Shape:
    """``shape`` with room for at least so many steps behind those held."""
    back = -(-steps // shape.steps) * shape.steps
    return shape._replace(slots=shape.slots + back, back=back)


def init(shape: Shape) -> Index:
    """An empty ring. No array is used twice: a buffer is donated to the calls that change it."""
    return Index(*(jnp.zeros(shape.lanes, jnp.int32) for _ in range(3)))


def advance(shape: Shape, index: Index, lane: Array | None) -> Index:
    """The index once ``lane`` (None: every lane) has put its chunk at its cursor."""
    which = lanes(shape, lane)
    return index._replace(cursor=index.cursor.at[which].set((index.cursor[which] + shape.steps) % shape.slots),
                          filled=index.filled.at[which].set(jnp.minimum(index.filled[which] + shape.steps, shape.slots - shape.back)),
                          count=index.count.at[which].add(1))


def lanes(shape: Shape, lane: Array | None) -> Array:
    """[K] int32: the lane, or every lane where that is None."""
    return jnp.arange(shape.lanes, dtype=jnp.int32) if lane is None else jnp.asarray(lane, jnp.int32)[None]


def starts(index: Index, span: int) -> Array:
    """[L] int32: how many slots of each lane can begin a window of ``span`` steps; they are its oldest."""
    return jnp.maximum(index.filled - (span - 1), 0)


def place(shape: Shape, row: Array) -> tuple[Array, Array, Array]:
    """Lane, slot and environment of a row."""
    return row // (shape.slots * shape.envs), row // shape.envs % shape.slots, row % shape.envs


def row_at(shape: Shape, lane: Array, slot: Array, env: Array) -> Array:
    return (lane * shape.slots + slot % shape.slots) * shape.envs + env


def draw(shape: Shape, index: Index, key: Key, num: int, span: int) -> Array:
    """``num`` rows [num], each equally likely among all that can begin a window of ``span`` steps; consumes the key.

    Lanes may hold different numbers of rows. Where there is nothing to draw the rows are in range and mean nothing.
    """
    counts = starts(index, span) * shape.envs
    ends = jnp.cumsum(counts)
    pick = below(key, jnp.maximum(ends[-1], 1), num)
    if shape.lanes == 1:
        lane, within = jnp.zeros_like(pick), pick
    else:
        lane = jnp.minimum(jnp.searchsorted(ends, pick, side="right"), shape.lanes - 1).astype(jnp.int32)
        within = pick - (ends - counts)[lane]
    oldest = (index.cursor - index.filled)[lane]
    return row_at(shape, lane, oldest + within // shape.envs, within % shape.envs)


def below(key: Key, bound: Array, num: int) -> Array:
    """``num`` integers in [0, bound), int32; consumes the key. Probabilities are equal to within 2**-64.

    ⌊x · bound / 2⁶⁴⌋ for 64 random bits x, without a division: Lemire (2019), "Fast random integer generation in an interval".
    """
    place = jnp.arange(num, dtype=jnp.uint32)
    high, low = (rng.bits_at(key, place + np.uint32(half * num)) for half in (0, 1))  # not cut out of one draw: slow
    bound = bound.astype(jnp.uint32)
    part = high * bound
    carry = part + _high_product(low, bound) < part  # the sum went past 2**32
    return (_high_product(high, bound) + carry).astype(jnp.int32)


def _high_product(a: Array, b: Array) -> Array:
    """The upper half of the 64 bits of a · b, for uint32."""
    a0, a1, b0, b1 = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    middle = a1 * b0 + (a0 * b0 >> 16)
    other = a0 * b1 + (middle & 0xFFFF)
    return a1 * b1 + (middle >> 16) + (other >> 16)


def age(shape: Shape, index: Index, row: Array) -> Array:
    """How many later steps of the row's environment are held: 0 for the newest."""
    lane, slot, _ = place(shape, row)
    return (index.cursor[lane] - 1 - slot) % shape.slots


def newest(shape: Shape, index: Index, lane: Array) -> Array:
    """[b] int32: the rows of a lane's newest step."""
    return row_at(shape, jnp.asarray(lane, jnp.int32), index.cursor[lane] - 1, jnp.arange(shape.envs, dtype=jnp.int32))


def window(shape: Shape, index: Index, row: Array, span: int) -> tuple[Array, Array]:
    """The rows of ``span`` steps from ``row`` [B] on, and which of them exist, both [span, B].

    Steps that are not there yet are answered by the newest row, so that all are in range.
    """
    if span == 1:
        return row[None], jnp.ones((1, *row.shape), bool)
    lane, slot, env = place(shape, row)
    ahead, left = jnp.arange(span, dtype=jnp.int32)[:, None], age(shape, index, row)
    return row_at(shape, lane, slot + jnp.minimum(ahead, left), env), ahead <= left


def ticket(shape: Shape, index: Index, row: Array) -> Ticket:
    lane, slot, _ = place(shape, row)
    newer = (index.cursor[lane] - 1 - slot) % shape.slots // shape.steps  # chunks
    return Ticket(row, index.count[lane] - 1 - newer)


def current(shape: Shape, index: Index, ticket: Ticket) -> Array:
    """[B] bool: whether a ticket's row is still the one it was made out for."""
    lane, _, _ = place(shape, ticket.row)
    newer = index.count[lane] - 1 - ticket.stamp
    return (newer >= 0) & (newer * shape.steps < index.filled[lane])
