"""Large observations kept once: a row's successor is the next row's observation, so only the others need a place of their own.

Each lane has a pool of observations beside its ring. A chunk takes a block of it: its observations in order, then the true final
observations of the episodes that ended in it. The newest successors wait behind the pool until the next chunk brings them again.
Blocks differ in size, so many short episodes leave fewer rows: whole chunks are given up, the oldest first, and no row is ever inexact.
Of a stack of frames only the newest is kept; the others are those of the rows before, some of which stay behind the oldest row held.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.buffers import ring
from shoal.types import Array

_EVICTIONS = 4  # chunks that one new chunk can push out: it asks for the room of two and wastes less than that of two more


class Blocks(NamedTuple):
    """Where chunks' observations lie in their lane's pool. All int32."""

    start: Array  # [L, chunks]
    size: Array  # [L, chunks]: up to where the next one starts
    head: Array  # [L]: where the newest block ends
    used: Array  # [L]: the sizes of all chunks kept, added up
    kept: Array  # [L]: slots whose observations are there: those held, and some behind them for the frames of stacks


class Places(NamedTuple):
    """Where to read the observations of rows, [span, B] int32 each; places count through all lanes' pools."""

    at: Array  # the row's own
    follow: Array  # its successor, where the episode goes on
    ends: Array  # final observations of its chunk begin here


def entries(shape: ring.Shape) -> int:
    """Places of a lane's pool: one per row, a sixteenth more for ends, and room to write the next chunk.

    What stays behind the rows held has room for all its ends besides, so that it never leaves fewer of them.
    """
    rows = shape.slots * shape.envs
    return rows + rows // 16 + (5 * shape.steps + 2 * shape.back) * shape.envs


def stride(shape: ring.Shape) -> int:
    """Places from one lane's pool to the next: behind each wait the newest successors."""
    return entries(shape) + shape.envs


def init(shape: ring.Shape) -> Blocks:
    chunks = shape.lanes, shape.slots // shape.steps
    return Blocks(*(jnp.zeros(chunks, jnp.int32) for _ in range(2)), *(jnp.zeros(shape.lanes, jnp.int32) for _ in range(3)))


def allocate(shape: ring.Shape, index: ring.Index, which: Array, ends: Array) -> tuple[ring.Index, Array]:
    """Make room for a chunk with ``ends`` [K] episode ends in each of the lanes ``which`` [K], at their cursors.

    Answers the index without the chunks that are held no more, and their first slots [·, K]; -1 where there are none.
    """
    blocks: Blocks = index.blocks
    size, chunks, room = shape.steps * shape.envs, shape.slots // shape.steps, entries(shape)
    head, used, kept = blocks.head[which], blocks.used[which], blocks.kept[which]
    wraps = head + 2 * size > room  # a block does not lie on both sides
    skip = jnp.where(wraps, room - head, 0)
    for _ in range(_EVICTIONS):
        chunk = (index.cursor[which] - kept) // shape.steps % chunks
        full = (kept > 0) & ((kept == shape.slots) | (used + skip + 2 * size > room))
        used = used - jnp.where(full, blocks.size[which, chunk], 0)
        kept = kept - jnp.where(full, shape.steps, 0)
    filled, gone = _held(shape, index, which, kept)
    here = index.cursor[which] // shape.steps
    before = (here - 1) % chunks
    start, wasted = jnp.where(wraps, 0, head), jnp.where(kept > 0, skip, 0)
    sizes = _replace(blocks.size, which, before, blocks.size[which, before] + wasted)
    after = Blocks(_replace(blocks.start, which, here, start), _replace(sizes, which, here, size + ends),
                   blocks.head.at[which].set(start + size + ends), blocks.used.at[which].set(used + wasted + size + ends),
                   blocks.kept.at[which].set(kept + shape.steps))
    return index._replace(filled=index.filled.at[which].set(filled), blocks=after), gone


def _held(shape: ring.Shape, index: ring.Index, which: Array, kept: Array) -> tuple[Array, Array]:
    """Of the slots ``kept`` [K] those still held before the next chunk, [K]; and the first slots of chunks that are not, [·, K], or -1.

    What lies behind the rows held is given up first; once anything has been, all of it must be there, for a lane's beginning is not.
    """
    filled, most = index.filled[which], shape.slots - shape.back - shape.steps
    left = jnp.minimum(filled, jnp.where(kept < index.blocks.kept[which], jnp.minimum(kept - shape.back, most), most))
    number = jnp.arange(_EVICTIONS + shape.back // shape.steps, dtype=jnp.int32)[:, None]
    slots = (index.cursor[which] - filled + number * shape.steps) % shape.slots
    return left, jnp.where(number * shape.steps < filled - left, slots, -1)


def append(shape: ring.Shape, blocks: Blocks, lane: Array, chunk: Array, more: Array) -> tuple[Blocks, Array, Array]:
    """Give the newest chunk of a lane an end for each of its environments in ``more`` [b]; there is always room.

    Answers their places in the lane's pool, out of range for the others, and their numbers among the chunk's ends, [b] each.
    """
    number = blocks.size[lane, chunk] - shape.steps * shape.envs + jnp.cumsum(more) - 1
    place = jnp.where(more, blocks.start[lane, chunk] + shape.steps * shape.envs + number, stride(shape))
    count = more.sum()
    after = Blocks(blocks.start, blocks.size.at[lane, chunk].add(count), blocks.head.at[lane].add(count), blocks.used.at[lane].add(count),
                   blocks.kept)
    return after, place, number


def _replace(table: Array, which: Array, chunk: Array, value: Array) -> Array:
    """``table`` [L, chunks] with ``value`` [K] at one chunk of each of the lanes ``which`` [K]."""
    if which.shape[0] == 1:  # XLA turns a scatter of a single number into a copy of the table
        return jax.lax.dynamic_update_slice(table, value[None], (which[0], chunk[0]))
    return table.at[which, chunk].set(value, unique_indices=True)


def places(shape: ring.Shape, index: ring.Index, rows: Array) -> Places:
    """Where the observations of ``rows`` lie."""
    blocks: Blocks = index.blocks
    lane, slot, env = ring.place(shape, rows)
    chunk, step = slot // shape.steps, slot % shape.steps
    base, start = lane * stride(shape), blocks.start[lane, chunk]
    at = base + start + step * shape.envs + env
    next_start = blocks.start[lane, (chunk + 1) % blocks.start.shape[1]]
    follow = jnp.where(step + 1 < shape.steps, at + shape.envs, base + next_start + env)
    waiting = base + entries(shape) + env
    return Places(at, jnp.where(ring.age(shape, index, rows) == 0, waiting, follow), base + start + shape.steps * shape.envs)


def before(shape: ring.Shape, index: ring.Index, row: Array, num: int) -> tuple[Array, Array]:
    """The rows of ``num`` steps before ``row`` [B], oldest first, and which of them are there, both [num, B].

    Of a row that is held they are, or the lane began with what is.
    """
    lane, slot, env = ring.place(shape, row)
    back = jnp.arange(num, 0, -1, dtype=jnp.int32)[:, None]
    return ring.row_at(shape, lane, slot - back, env), ring.age(shape, index, row) + back < index.blocks.kept[lane]


def order(last: Any, xp: Any) -> tuple[Array, Array]:
    """Of the steps of chunks ``last`` [K, T·b] the ends first, [K, T·b] int32; and for each end its number among them."""
    return xp.argsort(~last, axis=1, stable=True).astype(xp.int32), (xp.cumsum(last, axis=1) - 1).astype(xp.int32)
