"""After a hundred million priority writes every parent in the tree is still the float sum of its children, and draws are still exact.

``make chaos ARGS="-k many_priorities"``.
"""

from __future__ import annotations

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import oracle, proofs
from shoal.buffers import ring, sum_tree
from shoal.buffers.prioritised import Prioritised
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Transition

BATCH, WRITES, ROUND, ENVS, STEPS = 256, 10**8, 2_000, 4, 16
DRAWS = 2_000_000


def buffer_of(capacity: int):
    """A buffer, and compiled: a round of updates with a chunk after every hundredth; and draws, each by itself."""
    buffer = Prioritised(capacity=capacity, batch_size=BATCH, start=1, alpha=0.6, epsilon=1e-6)
    one = jnp.ones((STEPS, ENVS))
    data = Transition(one, jnp.zeros((STEPS, ENVS), jnp.int32), one, one, one, one < 0, one, ())

    def update(state, drawn):
        row, delta = drawn
        return buffer.update(state, ring.ticket(state.form[0].ring, state.index, row), delta), None

    def hundred(state, drawn):
        return buffer.add(jax.lax.scan(update, state, drawn)[0], 0, data), None

    def round_of(state, rows, deltas):
        shape = ROUND // 100, 100, BATCH
        return jax.lax.scan(hundred, state, (rows.reshape(shape), deltas.reshape(shape)))[0]

    def draw(levels, root):
        keys = jax.random.split(root, DRAWS // 20_000)
        return jax.lax.map(lambda key: jax.vmap(lambda one: sum_tree.sample(levels, one, 1)[0][0])(jax.random.split(key, 20_000)), keys)

    fill = jax.jit(lambda state, num: jax.lax.fori_loop(0, num, lambda i, state: buffer.add(state, 0, data), state))
    state = fill(buffer.init(EnvSpec("row", Box(()), Discrete(2)), ENVS, 1, STEPS), -(-capacity // (STEPS * ENVS)))
    return state, jax.jit(round_of, donate_argnums=0), jax.jit(draw)


class Model:
    """What the priorities must be, by hand in float64."""

    def __init__(self, rows: int) -> None:
        self.value, self.largest, self.cursor = np.ones(rows), 1.0, 0

    def round_of(self, rows: np.ndarray, deltas: np.ndarray) -> None:
        value = (deltas.astype(np.float64) + 1e-6) ** 0.6
        for number in range(ROUND):
            row = rows[number]
            self.value[row] = -np.inf
            np.maximum.at(self.value, row, value[number])  # of several for one row the largest
            self.largest = max(self.largest, value[number].max())
            if number % 100 == 99:
                self.value[self.cursor:self.cursor + STEPS * ENVS] = self.largest
                self.cursor = (self.cursor + STEPS * ENVS) % len(self.value)


def assert_sums(levels) -> int:
    """Every parent is the float32 sum of its children, to the bit; answers how many there are."""
    parents = 0
    for below, above in zip(levels, levels[1:], strict=False):
        children = np.asarray(below).reshape(-1, sum_tree.ARITY)
        halves = children[:, :4] + children[:, 4:]
        pairs = halves[:, :2] + halves[:, 2:]
        np.testing.assert_array_equal(np.asarray(above)[:len(children)], pairs[:, 0] + pairs[:, 1])
        np.testing.assert_array_equal(np.asarray(above)[len(children):], 0.0)
        parents += len(children)
    return parents


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1_024, 1_000_000])
def test_many_priorities(capacity: int):
    begun = time.perf_counter()
    state, round_of, draw = buffer_of(capacity)
    rows, random, written = state.form[0].ring.rows, np.random.default_rng(capacity), 0
    model = Model(rows)
    while written < WRITES:
        row = random.integers(0, rows, (ROUND, BATCH), dtype=np.int32)
        # over ten orders of magnitude, and the largest of them rare: where sums that are adjusted would go astray
        delta = (10.0 ** random.uniform(-6, 4, (ROUND, BATCH)) * (random.random((ROUND, BATCH)) < 0.9)).astype(np.float32)
        state = round_of(state, row, delta)
        model.round_of(row, delta)
        written += ROUND * BATCH
    spent = time.perf_counter() - begun
    assert int(state.priority.ignored) == int(state.priority.bad) == 0 and float(state.priority.largest) == pytest.approx(model.largest)
    leaves = np.asarray(state.priority.levels[0], np.float64)[:rows]
    np.testing.assert_allclose(leaves, model.value, rtol=2e-6)
    parents = assert_sums(state.priority.levels)
    share = model.value / model.value.sum()
    counts = np.bincount(np.asarray(draw(state.priority.levels, jax.random.key(1))).reshape(-1), minlength=rows)
    # chi-square asks for at least five expected in a group: rows that have fewer go together, and of a million rows all, by their order
    rare = share * DRAWS < 5
    group = np.where(rare, rows, np.arange(rows)) if rows < 2_000 else np.minimum((np.cumsum(share) * 2_000).astype(int), 1_999)
    z = oracle.z_of(np.bincount(group, counts), np.bincount(group, share))
    text = f"{parents:,} parents are the sums of their children, to the bit; z {z:.1f} of {DRAWS:,} draws; {spent:.0f} s".replace("-", "−")
    if os.environ.get("SHOAL_DOCS"):
        proofs.write(f"10⁸ priority writes, capacity {capacity:,}", f"{written:,} writes in updates of {BATCH}, a chunk of {STEPS * ENVS} "
                     "rows after every hundredth", text, "all sums exact; z within ±4", abs(z) < 4)
    assert abs(z) < 4, text
