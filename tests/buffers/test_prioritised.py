"""Prioritised replay: the exact distribution, the weights of the paper, and what happens to late and broken priorities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import SPEC, chi_square, chunk, side_by_side

from shoal.buffers.prioritised import Prioritised, check_priorities, weights
from shoal.buffers.ring import Ticket
from shoal.errors import DivergedError

LANES, ENVS, STEPS = 2, 3, 4
BUFFER = Prioritised(capacity=96, batch_size=64, start=1, alpha=0.7, beta=0.5, beta_updates=10.0, epsilon=1e-3)


def init(buffer=BUFFER):
    return buffer.init(SPEC, LANES * ENVS, LANES, STEPS)


@pytest.fixture(scope="module")
def compiled():
    return jax.jit(BUFFER.add), jax.jit(BUFFER.sample), jax.jit(BUFFER.update)


def used(compiled):
    """A buffer that has wrapped around, with many updates, among them duplicates and rows that were gone; and its priorities by hand."""
    add, sample, update = compiled
    state, draw = init(), np.random.default_rng(0)
    slots = state.form[0].ring.slots
    plain, largest = np.zeros(LANES * slots * ENVS), 1.0
    count, old = [0, 0], None
    for i, lane in enumerate([0, 1, 0, 0, 0, 1, 0, 0, 0]):
        state = add(state, lane, chunk(lane, count[lane], STEPS, ENVS))
        first = (lane * slots + count[lane] * STEPS % slots) * ENVS
        plain[first:first + STEPS * ENVS] = largest
        count[lane] += 1
        state, drawn = sample(state, jax.random.key(i))
        delta = np.abs(draw.normal(size=64)).astype(np.float32) * 3
        state = update(state, drawn.ticket, delta)
        value = (delta.astype(np.float64) + 1e-3) ** 0.7
        row = np.asarray(drawn.ticket.row)
        assert len(set(row.tolist())) < 64
        for r in set(row.tolist()):
            plain[r] = value[row == r].max()
        largest = max(largest, value.max())
        old = old or drawn.ticket
    return state, plain, largest, old


def test_the_distribution_is_exact_after_all_that(compiled):
    state, plain, largest, _ = used(compiled)
    np.testing.assert_allclose(np.asarray(state.priority.levels[0]).reshape(-1)[:96], plain, rtol=1e-5)
    assert float(state.priority.largest) == pytest.approx(largest, rel=1e-5)
    leaves, structure = jax.tree.flatten(state)
    saved = [np.array(x) for x in leaves]  # as a checkpoint would keep it
    state = jax.tree.unflatten(structure, [jnp.asarray(x) for x in saved])
    drawn = [compiled[1](state, jax.random.key(seed))[1] for seed in range(1_000)]
    row = np.concatenate([one.ticket.row for one in drawn])
    counts = np.bincount(row, minlength=96)
    assert (counts[plain == 0] == 0).all() and (plain == 0).sum() == 24
    expected = plain / plain.sum() * len(row)
    assert chi_square(counts[plain > 0], expected[plain > 0]) < 4
    # every row is the one its address says
    obs = np.concatenate([one.batch.obs for one in drawn])
    np.testing.assert_array_equal(obs[:, 0], row // 48)
    np.testing.assert_array_equal(obs[:, 2], row % ENVS)
    np.testing.assert_array_equal(obs[:, 1] % 16, row // ENVS % 16)


def test_weights_are_the_formula(compiled):
    _, sample, _ = compiled
    state, plain, _, _ = used(compiled)
    for draws in (0, 5, 10, 30):
        counted = type(state)(state.store, state.index, state.priority._replace(draws=jnp.int32(draws)), state.form)
        after, drawn = sample(counted, jax.random.key(draws))
        beta = 0.5 + 0.5 * min(draws / 10, 1.0)
        raw = (72 * plain[np.asarray(drawn.ticket.row)] / plain.sum()) ** -beta
        np.testing.assert_allclose(drawn.weight, raw / raw.max(), rtol=1e-4)
        assert int(after.priority.draws) == draws + 1 and float(drawn.weight.max()) == 1.0


def test_weights_by_hand():
    got = weights(jnp.asarray([1.0, 4.0, 0.0]), jnp.asarray(8.0), jnp.asarray(4), jnp.asarray(0.5))
    np.testing.assert_allclose(got, [1.0, 0.5, 0.0], rtol=1e-6)


def test_late_priorities_are_ignored_and_counted(compiled):
    _, _, update = compiled
    state, _, _, old = used(compiled)
    gone = np.asarray(old.row)  # all of lane 0's first chunk, overwritten since
    before = int(state.priority.ignored)
    after = update(state, old, np.full(64, 50.0, np.float32))
    assert int(after.priority.ignored) - before == 64 and (gone < 12).all()
    jax.tree.map(np.testing.assert_array_equal, after.priority.levels, state.priority.levels)
    assert float(after.priority.largest) == float(state.priority.largest)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1.0])
def test_broken_priorities_are_refused(compiled, wrong):
    _, sample, update = compiled
    state, plain, _, _ = used(compiled)
    state, drawn = sample(state, jax.random.key(3))
    given = np.full(64, wrong, np.float32)
    given[0] = 2.0
    after = update(state, drawn.ticket, given)
    assert int(after.priority.bad) == 63 and int(after.priority.ignored) == int(state.priority.ignored)
    plain[int(drawn.ticket.row[0])] = 2.001**0.7
    np.testing.assert_allclose(np.asarray(after.priority.levels[0]).reshape(-1)[:96], plain, rtol=1e-5)
    with pytest.raises(DivergedError, match=r"priorities\[1\]"):
        check_priorities(given)
    check_priorities(given[:1])


def test_the_larger_of_two_priorities_stays(compiled):
    add, _, update = compiled
    state = add(init(), 0, chunk(0, 0, STEPS, ENVS))
    row = jnp.asarray([3, 3, 5] + [7] * 61, jnp.int32)
    given = jnp.asarray([1.0, 4.0, 2.0] + [0.0] * 61)
    one = update(state, Ticket(row, jnp.zeros(64, jnp.int32)), given)
    other = update(state, Ticket(row[::-1], jnp.zeros(64, jnp.int32)), given[::-1])
    jax.tree.map(np.testing.assert_array_equal, one, other)
    kept = np.asarray(one.priority.levels[0]).reshape(-1)
    np.testing.assert_allclose(kept[[3, 5, 7]], [4.001**0.7, 2.001**0.7, 0.001**0.7], rtol=1e-5)


@pytest.mark.parametrize("length", [0, 6])
def test_lanes_added_together_or_one_by_one(length):
    buffer = Prioritised(capacity=96, batch_size=8, start=1, length=length)
    add, add_all = jax.jit(buffer.add), jax.jit(lambda state, data: buffer.add(state, None, data))
    one = together = init(buffer)
    for seq in range(6):
        chunks = [chunk(lane, seq, STEPS, ENVS) for lane in range(LANES)]
        for lane in range(LANES):
            one = add(one, lane, chunks[lane])
        together = add_all(together, side_by_side(chunks))
        # rows that can begin a window, and no others, have a priority
        newest = (seq + 1) * STEPS
        steps = range(max(0, newest - 16), newest - max(length, 1) + 1)
        expected = np.zeros((LANES, 16, ENVS))
        expected[:, [step % 16 for step in steps]] = 1.0
        np.testing.assert_array_equal(np.asarray(one.priority.levels[0]).reshape(-1)[:96], expected.reshape(-1))
    jax.tree.map(np.testing.assert_array_equal, one, together)


def test_sequences_in_proportion_stay_behind_the_newest_step():
    buffer = Prioritised(capacity=96, batch_size=64, start=1, length=5)
    state, add = init(buffer), jax.jit(buffer.add)
    for seq in range(5):
        state = add(state, 0, chunk(0, seq, STEPS, ENVS))
    _, drawn = jax.tree.map(np.asarray, jax.jit(buffer.sample)(state, jax.random.key(0)))
    assert drawn.batch.obs.shape == (5, 64, 3)
    np.testing.assert_array_equal(np.diff(drawn.batch.obs[..., 1], axis=0), 1.0)
    assert drawn.batch.obs[..., 1].max() == 19 and drawn.batch.obs[..., 1].min() == 4
    np.testing.assert_array_equal(drawn.weight, 1.0)


def test_nothing_of_a_buffers_size_is_copied():
    """Adding, drawing and updating a donated buffer, once or in a loop, makes no second array of its size."""
    buffer = Prioritised(capacity=50_000, batch_size=8, start=1)
    state = jax.eval_shape(lambda: buffer.init(SPEC, 1))

    def cycle(buffer, state, data, key, delta):
        state = jax.lax.fori_loop(0, 10, lambda i, state: buffer.add(state, 0, data), state)
        state, drawn = buffer.sample(buffer.add(state, 0, data), key)
        return buffer.update(state, drawn.ticket, delta), drawn

    given = jax.eval_shape(lambda: chunk(0, 0, 1, 1)), jax.random.key(0), jax.ShapeDtypeStruct((8,), jnp.float32)
    memory = jax.jit(cycle, donate_argnums=1).lower(buffer, state, *given).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= sum(x.size * 4 for x in jax.tree.leaves(state)) and memory.temp_size_in_bytes < 20_000
