"""Index arithmetic: where rows stand, which are held, and what follows what."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import chi_square

from shoal.buffers import ring

SHAPE = ring.Shape(lanes=3, slots=12, envs=2, steps=4)


def after(adds, shape=SHAPE):
    index, advance = ring.init(shape), jax.jit(ring.advance, static_argnums=0)
    for lane in adds:
        index = advance(shape, index, lane)
    return index


def held(adds, shape=SHAPE):
    """By hand: {row: (lane, step, env)} of what the ring must hold."""
    rows, count = {}, [0] * shape.lanes
    for lane in adds:
        for step in range(count[lane], count[lane] + shape.steps):
            for env in range(shape.envs):
                rows[(lane * shape.slots + step % shape.slots) * shape.envs + env] = (lane, step, env)
        count[lane] += shape.steps
    return rows, count


def test_cursors_and_stamps_by_hand():
    index = after([0, 0, 0, 0, 1])
    np.testing.assert_array_equal(index.cursor, [4, 4, 0])
    np.testing.assert_array_equal(index.filled, [12, 4, 0])
    rows = jnp.asarray([0, 8, 16, 24, 32], jnp.int32)  # the first of each chunk of lane 0, then of lane 1
    np.testing.assert_array_equal(ring.ticket(SHAPE, index, rows).stamp, [3, 1, 2, 0, -2])
    assert ring.current(SHAPE, index, ring.ticket(SHAPE, index, rows)).tolist() == [True, True, True, True, False]


def test_all_lanes_at_once_is_lane_by_lane():
    together = ring.init(SHAPE)
    for _ in range(5):
        together = ring.advance(SHAPE, together, None)
    jax.tree.map(np.testing.assert_array_equal, together, after([0, 1, 2] * 5))


def test_a_ring_of_one_chunk_counts_on():
    shape = ring.Shape(1, 4, 2, 4)
    index, old = after([0, 0, 0], shape), ring.ticket(shape, after([0, 0], shape), jnp.arange(8))
    assert ring.ticket(shape, index, jnp.arange(8)).stamp.tolist() == [2] * 8
    assert not bool(ring.current(shape, index, old).any())
    assert int(index.cursor[0]) == 0 and int(index.filled[0]) == 4


@pytest.mark.parametrize("span", [1, 3])
def test_draws_are_uniform_over_unequal_lanes(span):
    adds = [0] * 4 + [1] + [2] * 2
    index, (rows, count) = after(adds), held(adds)
    drawn = np.asarray(jax.jit(ring.draw, static_argnums=(0, 3, 4))(SHAPE, index, jax.random.key(1), 60_000, span))
    possible = sorted(row for row, (lane, step, _) in rows.items() if step + span <= count[lane])
    assert set(drawn.tolist()) == set(possible)
    counts = np.array([(drawn == row).sum() for row in possible])
    assert abs(chi_square(counts, np.full(len(possible), len(drawn) / len(possible)))) < 4


def test_windows_stop_at_the_newest_step():
    adds = [0] * 5 + [1] + [2] * 3
    index, (rows, count) = after(adds), held(adds)
    start = jnp.asarray(sorted(rows), jnp.int32)
    window, exists = jax.jit(ring.window, static_argnums=(0, 3))(SHAPE, index, start, 5)
    left = jax.jit(ring.age, static_argnums=0)(SHAPE, index, start)
    window, exists, left = (np.asarray(x) for x in (window, exists, left))
    for place, row in enumerate(sorted(rows)):
        lane, step, env = rows[row]
        assert int(left[place]) == count[lane] - 1 - step
        for ahead in range(5):
            there = step + ahead < count[lane]
            assert bool(exists[ahead, place]) == there
            assert rows[int(window[ahead, place])] == (lane, min(step + ahead, count[lane] - 1), env)


def test_tickets_of_overwritten_rows_are_known():
    index = after([0, 0, 0])
    rows = jnp.arange(24, dtype=jnp.int32)
    ticket = ring.ticket(SHAPE, index, rows)
    assert bool(ring.current(SHAPE, index, ticket).all())
    later = ring.advance(SHAPE, index, 0)
    np.testing.assert_array_equal(ring.current(SHAPE, later, ticket), [False] * 8 + [True] * 16)
    empty = ring.ticket(SHAPE, index, rows + 24)
    assert not bool(ring.current(SHAPE, index, empty).any())


def test_tickets_outlive_the_counters_range():
    index = after([0, 0, 0])._replace(count=jnp.asarray([2**31 - 2, 0, 0], jnp.int32))
    ticket = ring.ticket(SHAPE, index, jnp.arange(24, dtype=jnp.int32))
    for gone in (0, 8, 16, 24):
        assert ring.current(SHAPE, index, ticket).tolist() == [False] * gone + [True] * (24 - gone)
        index = ring.advance(SHAPE, index, 0)


def test_integers_below_a_bound_are_the_upper_part_of_a_product():
    key, bound = jax.random.key(3), 1_000_003
    high, low = np.asarray(jax.random.bits(key, (2, 500), jnp.uint32)).astype(object)
    np.testing.assert_array_equal(ring.below(key, jnp.int32(bound), 500), ((high * 2**32 + low) * bound // 2**64).astype(int))
    assert int(ring.below(key, jnp.int32(2**31 - 1), 500).max()) < 2**31 - 1
