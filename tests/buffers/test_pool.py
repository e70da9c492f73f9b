"""Large observations are kept once; what comes back is still every transition as it was."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from replay_streams import FILM, address, film, picture, side_by_side

from shoal.buffers import pool, ring
from shoal.buffers.host import Host
from shoal.buffers.mapped import Mapped
from shoal.buffers.prioritised import Prioritised
from shoal.buffers.uniform import Uniform

LANES, ENVS, STEPS = 2, 2, 3
UNIFORM = Uniform(capacity=96, batch_size=64, start=1, n_step=2, discount=0.5)
PRIORITISED = Prioritised(capacity=96, batch_size=64, start=1)
CHUNKS = {(lane, seq, end): film(lane, seq, STEPS, ENVS, end) for lane in range(LANES) for seq in range(24) for end in (0.05, 0.9)}


def init(buffer):
    return buffer.init(FILM, LANES * ENVS, LANES, STEPS)


def last_of(lane, step, env, end):
    return bool(CHUNKS[lane, step // STEPS, end].last[step % STEPS, env])


def check(sample, newest, filled, end):
    """Every drawn transition against the stream; answers the rows seen."""
    seen = set()
    sample = jax.tree.map(np.asarray, sample)
    for place in range(len(sample.weight)):
        lane, step, env, final = address(sample.batch.obs[place])
        assert not final and newest[lane] - filled[lane] <= step < newest[lane]
        np.testing.assert_array_equal(sample.batch.obs[place], picture(lane, step, env, 0))
        seen.add((lane, step, env))
        stop = step if last_of(lane, step, env, end) or step + 1 == newest[lane] else step + 1
        over = last_of(lane, stop, env, end)
        np.testing.assert_array_equal(sample.batch.next_obs[place], picture(lane, stop + (not over), env, int(over)))
        assert bool(sample.batch.last[place]) == over
    return seen


@pytest.mark.parametrize("end", [0.05, 0.9])
def test_every_transition_comes_back(end):
    state, add, sample = init(UNIFORM), jax.jit(UNIFORM.add), jax.jit(UNIFORM.sample)
    assert [f.kind for f in state.form[0].fields if "obs" in f.name] == ["pool", "successor"]
    count, least, most = [0, 0], 96, 0
    for i in range(34):
        lane = i % 3 // 2  # lane 0 is twice as fast
        state = add(state, lane, CHUNKS[lane, count[lane], end])
        count[lane] += 1
        filled = [int(x) for x in state.index.filled]
        seen = check(sample(state, jax.random.key(i))[1], [c * STEPS for c in count], filled, end)
        if i > 30:
            least, most = min(least, filled[0]), max(most, filled[0])
            assert len(seen) > 20
    assert count[0] > 20 and (least, most) == ((24, 24) if end < 0.5 else (least, most))
    assert end < 0.5 or 12 <= least <= most < 24  # many ends: fewer rows, all of them right


@pytest.mark.parametrize("end", [0.05, 0.9])
def test_rows_given_up_are_never_drawn_and_tickets_are_void(end):
    state, add = init(PRIORITISED), jax.jit(PRIORITISED.add)
    sample, update = jax.jit(PRIORITISED.sample), jax.jit(PRIORITISED.update)
    old = None
    for seq in range(20):
        state = add(state, 0, CHUNKS[0, seq, end])
        state, drawn = sample(state, jax.random.key(seq))
        old = drawn.ticket if seq == 7 else old
    held = int(state.index.filled[0])
    priority = np.asarray(state.priority.levels[0]).reshape(-1)[:96].reshape(LANES, 24, ENVS)
    expected = np.zeros_like(priority)
    expected[0, [step % 24 for step in range(60 - held, 60)]] = 1.0
    np.testing.assert_array_equal(priority, expected)
    after = update(state, old, np.ones(64, np.float32))
    assert int(after.priority.ignored) == 64
    after = update(state, drawn.ticket, np.ones(64, np.float32))
    assert int(after.priority.ignored) == 0


@pytest.mark.parametrize("end", [0.05, 0.9])
def test_together_apart_and_in_memory(end):
    """Lane by lane, all lanes at once, and in memory: the same rows, pool and draws."""
    buffer, host = UNIFORM, Host(UNIFORM)
    add, add_all, sample = jax.jit(buffer.add), jax.jit(lambda state, data: buffer.add(state, None, data)), jax.jit(buffer.sample)
    apart, together, memory, memory_all = init(buffer), init(buffer), init(host), init(host)
    for seq in range(16):
        chunks = [CHUNKS[lane, seq, end] for lane in range(LANES)]
        for lane in range(LANES):
            apart, memory = add(apart, lane, chunks[lane]), host.add(memory, lane, chunks[lane])
        together, memory_all = add_all(together, side_by_side(chunks)), host.add(memory_all, None, side_by_side(chunks))
    for other in (together, memory, memory_all):
        jax.tree.map(np.testing.assert_array_equal, apart, other)
    there, here = sample(apart, jax.random.key(0))[1], host.sample(memory, jax.random.key(0))[1]
    jax.tree.map(np.testing.assert_array_equal, here, there)
    check(there, [48, 48], [int(x) for x in apart.index.filled], end)


def test_sequences_from_the_pool():
    buffer = Uniform(capacity=96, batch_size=32, start=1, length=4)
    state, add = init(buffer), jax.jit(buffer.add)
    for seq in range(12):
        state = add(state, 0, CHUNKS[0, seq, 0.05])
    _, drawn = jax.jit(buffer.sample)(state, jax.random.key(0))
    obs, following, last = (np.asarray(x) for x in (drawn.batch.obs, drawn.batch.next_obs, drawn.batch.last))
    for place in range(32):
        _, step, env, _ = address(obs[0, place])
        assert step + 4 <= 36
        for ahead in range(4):
            over = last_of(0, step + ahead, env, 0.05)
            assert address(obs[ahead, place]) == (0, step + ahead, env, 0) and last[ahead, place] == over
            assert address(following[ahead, place]) == (0, step + ahead + (not over), env, int(over))


@pytest.mark.parametrize("end", [0.05, 0.9])
def test_a_stream_that_breaks_off_ends_there(end, tmp_path):
    """A lane that starts anew: its newest steps become ends with their true successors, wherever the rows are; n steps stop there."""
    host, mapped = Host(UNIFORM), Mapped(UNIFORM, str(tmp_path / "replay"), 9_000)
    states = [init(UNIFORM), init(host), init(mapped)]
    add, interrupt, sample = jax.jit(UNIFORM.add), jax.jit(UNIFORM.interrupt), jax.jit(UNIFORM.sample)
    states = [interrupt(states[0], 0), host.interrupt(states[1], 0), mapped.interrupt(states[2], 0)]  # empty: nothing happens
    count, cut = [0, 0], {5: 0, 9: 1, 10: 0, 14: 0}
    broken = set()
    for i in range(20):
        lane = i % 2
        states = [b(s, lane, CHUNKS[lane, count[lane], end]) for b, s in zip((add, host.add, mapped.add), states, strict=True)]
        count[lane] += 1
        if i in cut:
            broken.add((cut[i], count[cut[i]] * STEPS - 1))
            states = [b(s, cut[i]) for b, s in zip((interrupt, host.interrupt, mapped.interrupt), states, strict=True)]
    drawn = [b(s, jax.random.key(0))[1] for b, s in zip((sample, host.sample, mapped.sample), states, strict=True)]
    for other in drawn[1:]:
        jax.tree.map(np.testing.assert_array_equal, drawn[0], other)
    batch, ends = jax.tree.map(np.asarray, drawn[0].batch), 0
    for place in range(64):
        lane, step, env, _ = address(batch.obs[place])
        stop = step if (lane, step) in broken or last_of(lane, step, env, end) or step + 1 == count[lane] * STEPS else step + 1
        over = last_of(lane, stop, env, end)
        ends += (lane, stop) in broken
        np.testing.assert_array_equal(batch.next_obs[place], picture(lane, stop + (not over), env, int(over)))
        assert bool(batch.last[place]) == (over or (lane, stop) in broken)
        assert batch.alive[place] == CHUNKS[lane, stop // STEPS, end].alive[stop % STEPS, env] * 0.5 ** (stop - step)
    assert ends > 2


def test_a_block_that_ends_where_the_pool_does_is_followed_by_one_at_its_beginning():
    shape = ring.Shape(lanes=1, slots=4, envs=1, steps=1)
    index, which, starts = ring.init(shape)._replace(blocks=pool.init(shape)), np.zeros(1, np.int32), []
    for ends in [0] * 7 + [1, 0, 1]:
        slot = int(index.cursor[0])
        index, _ = pool.allocate(shape, index, which, np.int32([ends]))
        index = ring.advance(shape, index, 0)
        starts.append(int(index.blocks.start[0, slot]))
    assert pool.entries(shape) == 9 and starts == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_memory_is_nearly_halved():
    buffer = Uniform(capacity=100_000, batch_size=8, start=1)
    assert 1.06 < buffer.nbytes(FILM, 8, 1, 4) / (100_000 * 24 * 24 * 2) < 1.10
