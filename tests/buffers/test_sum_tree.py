"""The sum-tree: a node is the float sum of its children, exactly and always; draws follow the values and nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import chi_square

from shoal.buffers import sum_tree

write, sample = jax.jit(sum_tree.write), jax.jit(sum_tree.sample, static_argnums=2)


def check(levels):
    levels = [np.asarray(level).reshape(-1, sum_tree.ARITY) for level in levels]
    """Every node against the sum of its children, in float32 and in the same halves."""
    for below, above in zip(levels, levels[1:], strict=False):
        children = np.asarray(below)
        halves = children[:, :4] + children[:, 4:]
        pairs = halves[:, :2] + halves[:, 2:]
        np.testing.assert_array_equal(np.asarray(above).reshape(-1)[:len(children)], pairs[:, 0] + pairs[:, 1])
        np.testing.assert_array_equal(np.asarray(above).reshape(-1)[len(children):], 0.0)


@pytest.mark.parametrize("rows", [5, 700])
def test_writes_with_duplicates_against_a_plain_array(rows):
    """A hundred thousand writes over many magnitudes, ranges and single rows, some of them refused."""
    levels, plain = sum_tree.init(rows), np.zeros(rows, np.float32)
    num, width = 250, min(rows, 12)

    def step(levels, drawn):
        row, value, keep, first = drawn
        levels = sum_tree.write(levels, row, value, keep)
        return sum_tree.fill(levels, first[None], width, value[0]), None

    draw = np.random.default_rng(rows)
    rounds = 400
    row = draw.integers(0, rows, (rounds, num)).astype(np.int32)
    value = np.exp(draw.normal(size=(rounds, num)) * 6).astype(np.float32)
    keep, first = draw.random((rounds, num)) < 0.9, draw.integers(0, rows - width + 1, rounds).astype(np.int32)
    levels, _ = jax.jit(lambda levels, drawn: jax.lax.scan(step, levels, drawn))(levels, (row, value, keep, first))
    for i in range(rounds):
        changed = row[i][keep[i]]
        plain[changed] = -np.inf
        np.maximum.at(plain, changed, value[i][keep[i]])
        plain[first[i]:first[i] + width] = value[i, 0]
    np.testing.assert_array_equal(np.asarray(levels[0]).reshape(-1)[:rows], plain)
    check(levels)
    assert rounds * num == 100_000


def test_ranges_of_several_lanes_at_once():
    levels = jax.jit(lambda levels: sum_tree.fill(levels, jnp.asarray([3, 40, 190], jnp.int32), 10, jnp.float32(2)))(sum_tree.init(200))
    plain = np.zeros(200)
    for first in (3, 40, 190):
        plain[first:first + 10] = 2
    np.testing.assert_array_equal(np.asarray(levels[0]).reshape(-1), plain)
    check(levels)
    assert float(sum_tree.total(levels)) == 60.0


@pytest.mark.parametrize("rows", [6, 5_000])
def test_draws_are_in_proportion(rows):
    draw = np.random.default_rng(rows)
    plain = np.exp(draw.normal(size=rows)).astype(np.float32) * (draw.random(rows) < 0.8)
    plain[-1] = 0
    levels = write(sum_tree.init(rows), jnp.arange(rows), jnp.asarray(plain))
    drawn = [sample(levels, jax.random.key(seed), 500) for seed in range(400)]
    row, value = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    np.testing.assert_array_equal(value, plain[row])
    counts = np.bincount(row, minlength=rows)
    assert (counts[plain == 0] == 0).all()
    expected = plain.astype(np.float64) / plain.sum(dtype=np.float64) * len(row)
    often = expected > 5
    assert chi_square(counts[often], expected[often]) < 4


def test_stratified_draws_take_one_from_each_part():
    levels = write(sum_tree.init(64), jnp.arange(64), jnp.ones(64))
    row, _ = sample(levels, jax.random.key(0), 64)
    np.testing.assert_array_equal(np.sort(row), np.arange(64))


def test_small_values_are_drawn_beside_a_large_one():
    """Beside 2**24 a float has no room for odd numbers, so one float alone could not choose between rows of value 1."""
    rows = 8**6
    levels = write(sum_tree.init(rows), jnp.arange(rows), jnp.ones(rows).at[0].set(2.0**24))
    row = np.asarray(sample(levels, jax.random.key(0), 400_000)[0])
    rest = row[row > 0]
    assert len(rest) == pytest.approx(400_000 * (rows - 1) / (2**24 + rows - 1), rel=0.05)
    assert (rest % 2).mean() == pytest.approx(0.5, abs=0.03)
    assert (rest < rows // 2).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("value", [1e-30, 1.0, 3e27])
def test_the_right_edge_is_never_passed(value):
    """Aims at or beyond the total, as rounding makes them, fall on the last row with a value."""
    children = jnp.asarray([[0, value, value, 0, value, 0, 0, 0]] * 4)
    total = sum_tree.add_up(children)
    child, got, rest = jax.jit(sum_tree._choose)(children, jnp.zeros(4, jnp.int32), total * jnp.asarray([0.0, 0.5, 1.0, 2.0]))
    np.testing.assert_array_equal(child, [1, 2, 4, 4])
    np.testing.assert_array_equal(got, np.float32(value))
    np.testing.assert_allclose(rest / value, [0.0, 0.5, 1.0, 4.0], rtol=1e-6)


def test_an_empty_tree_answers_a_row_without_value():
    row, value = sample(sum_tree.init(64), jax.random.key(0), 64)
    np.testing.assert_array_equal(row, 0)
    np.testing.assert_array_equal(value, 0)
