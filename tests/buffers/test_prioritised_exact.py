"""The exact distribution p_i / Σ p, stage by stage in a buffer's life, and the weights that belong to it, in float64."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import SPEC, chi_square, chunk

from shoal.buffers import ring
from shoal.buffers.prioritised import Prioritised
from shoal.tensors import filled, named

LANES, ENVS, STEPS, ROWS = 2, 3, 4, 96
BUFFER = Prioritised(capacity=ROWS, batch_size=64, start=1, alpha=0.7, beta=0.5, beta_updates=float("inf"), epsilon=1e-3)
ALONE = dataclasses.replace(BUFFER, batch_size=1)
add, update = jax.jit(BUFFER.add), jax.jit(BUFFER.update)


@jax.jit
def draw(state, root):
    """40,000 rows, each drawn alone: a batch is stratified, and scatters less than chi-square. And rows and weights of 50 batches."""
    def batch(key):
        _, _, weight, ticket = BUFFER.draw(state.form[0], state.index, state.priority, key)
        return ticket.row, weight

    alone = jax.vmap(lambda key: ALONE.draw(state.form[0], state.index, state.priority, key)[3].row[0])(jax.random.split(root, 40_000))
    return alone, *jax.lax.map(batch, jax.random.split(root, 50))


def power(delta):
    return (np.asarray(delta, np.float64) + 1e-3) ** 0.7


class Model:
    """The buffer, and beside it what its priorities must be, by hand in float64."""

    def __init__(self):
        self.state, self.value, self.largest, self.count = BUFFER.init(SPEC, LANES * ENVS, LANES, STEPS), np.zeros(ROWS), 1.0, [0] * LANES

    def add(self, lane):
        self.state = add(self.state, lane, chunk(lane, self.count[lane], STEPS, ENVS))
        first = (lane * 16 + self.count[lane] * STEPS % 16) * ENVS
        self.value[first:first + STEPS * ENVS] = self.largest
        self.count[lane] += 1

    def update(self, rows, deltas):
        """Of several values for one row the largest stays."""
        rows, deltas = np.asarray(rows, np.int32), np.asarray(deltas, np.float32)
        self.state = update(self.state, ring.ticket(self.state.form[0].ring, self.state.index, rows), deltas)
        for row in set(rows.tolist()):
            self.value[row] = power(deltas[rows == row].max())
        self.largest = max(self.largest, power(deltas.max()))

    def held(self):
        return np.flatnonzero(self.value)

    def assert_exact(self):
        """Draws against the model: their numbers by chi-square, never a row that is not held; and every weight by the formula."""
        np.testing.assert_allclose(self.state.priority.levels[0][:ROWS], self.value, rtol=2e-6)
        alone, row, weight = (np.asarray(x) for x in draw(self.state, jax.random.key(sum(self.count))))
        counts, held = np.bincount(alone, minlength=ROWS), self.value > 0
        share = self.value / self.value.sum()
        assert counts[~held].sum() == 0
        often = share * counts.sum() > 5
        assert abs(chi_square(counts[often], share[often] / share[often].sum() * counts[often].sum())) < 4 and often.sum() >= 24
        assert counts[often].sum() == pytest.approx(share[often].sum() * counts.sum(), rel=1e-3)
        plain = (held.sum() * share[row]) ** -0.5
        np.testing.assert_allclose(weight, plain / plain.max(axis=1, keepdims=True), rtol=2e-6)


def test_every_stage_of_a_buffers_life():
    model, random = Model(), np.random.default_rng(1)
    for lane in (0, 1, 0):  # lanes hold different numbers of rows
        model.add(lane)
    model.assert_exact()

    rows = np.repeat(model.held(), 2)[:64]  # every row twice in one batch, the larger value first or last
    deltas = random.exponential(3.0, 64)
    deltas[1::2] = deltas[::2] * random.permuted(np.tile([0.1, 10.0], 16))
    model.update(rows, deltas)
    assert len(set(rows.tolist())) == 32
    model.assert_exact()

    for _ in range(100):  # over ten orders of magnitude
        model.update(random.choice(model.held(), 64), 10.0 ** random.uniform(-7, 3, 64))
    model.assert_exact()

    for _ in range(5):  # rounds
        for lane in (0, 1, 0, 0, 1, 0):
            model.add(lane)
            model.update(random.choice(model.held(), 64), random.exponential(2.0, 64))
        model.assert_exact()
    assert model.count == [22, 11] and len(model.held()) == ROWS  # 4 chunks a round: lane 0 came round five times


def test_the_distribution_comes_back_from_a_runs_tensors():
    """As a run's checkpoint keeps it: named tensors, taken by an empty buffer."""
    model, random = Model(), np.random.default_rng(2)
    for lane in (0, 1, 0, 0, 0, 0):
        model.add(lane)
        model.update(random.choice(model.held(), 64), random.exponential(2.0, 64))
    kept = {name: value.copy() for name, value in named(model.state, "run").items()}
    model.state = filled(BUFFER.init(SPEC, LANES * ENVS, LANES, STEPS), kept, "run")
    model.assert_exact()
    model.add(1)
    model.update(random.choice(model.held(), 64), random.exponential(2.0, 64))
    model.assert_exact()


@pytest.mark.parametrize("spread", [0.0, 3.0, 9.0])
def test_weights_in_double_precision(spread):
    """From equal priorities to eighteen orders of magnitude between them."""
    model, random = Model(), np.random.default_rng(3)
    for lane in (0, 1):
        model.add(lane)
    model.update(np.resize(model.held(), 64), np.resize(10.0 ** random.uniform(-spread, spread, 24), 64))
    _, row, weight = draw(model.state, jax.random.key(0))
    value = np.asarray(model.state.priority.levels[0], np.float64)
    plain = (24 * value[np.asarray(row)] / value.sum()) ** -0.5
    np.testing.assert_allclose(weight, plain / plain.max(axis=1, keepdims=True), rtol=1e-6)
    assert weight.dtype == jnp.float32 and len(set(np.asarray(row).reshape(-1).tolist())) >= 4
