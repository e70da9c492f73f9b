"""Four shards are drawn from as one buffer with the same rows, however unequal they are; and loads stay even whoever writes."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest
from replay_streams import FILM, SPEC, chi_square, chunk, film

from shoal.buffers.prioritised import Prioritised
from shoal.buffers.shards import Shards
from shoal.buffers.uniform import Uniform

LANES, ENVS, STEPS = 4, 2, 4
CHUNK = ENVS * STEPS
WRITERS = [0] * 40 + [1] * 12 + [2] * 3 + [3] * 17  # of 16 chunks that a shard holds: lane 0 comes round twice, lane 2 stays small
KINDS = {"uniform": Uniform(capacity=512, batch_size=128, start=1),
         "prioritised": Prioritised(capacity=512, batch_size=128, start=1, alpha=0.8, epsilon=1e-6)}


def written(pool, writers):
    """A pool or buffer after these lanes' chunks, and how many there were of each."""
    state, count, add = pool.init(SPEC, LANES * ENVS, LANES, STEPS), Counter(), jax.jit(pool.add)
    for lane in writers:
        state = add(state, lane, chunk(lane, count[lane], STEPS, ENVS))
        count[lane] += 1
    return state, count


def loads(state):
    """Of every shard, rows held and chunks ever added."""
    index = jax.device_get(getattr(state, "inner", state).index)
    return index.filled * ENVS, index.count


def wish(rows):
    """The |δ| that each row (lane, step, env) is to have."""
    lane, step, env = np.asarray(rows).T
    return (0.5 + (7 * lane + 3 * step + 5 * env) % 11).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_unequal_shards_that_came_round_are_drawn_from_as_one(kind):
    one, pool = KINDS[kind], Shards(KINDS[kind], num=4, routing="lane")
    held = [(lane, step, env) for lane, chunks in enumerate((40, 12, 3, 17)) for step in range(max(0, chunks - 16) * STEPS, chunks * STEPS)
            for env in range(ENVS)]
    share = np.ones(len(held)) if kind == "uniform" else (wish(held).astype(np.float64) + 1e-6) ** 0.8
    every = {}
    for name, buffer in (("one", one), ("pool", pool)):
        state, _ = written(buffer, WRITERS)
        if kind == "prioritised":
            sample, update = jax.jit(buffer.sample), jax.jit(buffer.update)
            for seed in range(60):  # new rows have the largest priority, so all are drawn before long
                state, got = sample(state, jax.random.key(seed))
                state = update(state, got.ticket, wish(got.batch.obs))
        draw = jax.jit(lambda state, root, buffer=buffer: jax.lax.map(lambda key: buffer.sample(state, key)[1].batch.obs,
                                                                      jax.random.split(root, 300)))
        drawn = Counter(map(tuple, np.asarray(draw(state, jax.random.key(1))).reshape(-1, 3).astype(int).tolist()))
        assert set(drawn) == set(held)
        every[name] = np.array([drawn[row] for row in held])
        assert chi_square(every[name], share / share.sum() * every[name].sum()) < 4
    between = (every["one"] - every["pool"]) ** 2 / (every["one"] + every["pool"])
    degrees = len(held) - 1
    assert (between.sum() - degrees) / np.sqrt(2 * degrees) < 4


def test_least_loaded_is_even_at_every_moment_with_one_busy_writer():
    """One lane writes ten times as often as the others; before the shards are full and long after."""
    pool = Shards(KINDS["uniform"], num=4, routing="least_loaded")
    state, add, count = pool.init(SPEC, LANES * ENVS, LANES, STEPS), jax.jit(pool.add), Counter()
    writers = np.random.default_rng(0).permutation(np.repeat(np.arange(LANES), [160, 16, 16, 16])).tolist()
    for number, lane in enumerate(writers, start=1):
        state = add(state, lane, chunk(lane, count[lane], STEPS, ENVS))
        count[lane] += 1
        rows, chunks = loads(state)
        assert np.ptp(rows) <= CHUNK and np.ptp(chunks) <= 1
        assert chunks.sum() == number and rows.sum() == min(number, 64) * CHUNK
    assert count[0] == 10 * count[1] and chunks.tolist() == [52] * 4


def test_least_loaded_starves_no_shard_when_episodes_become_short():
    """Pictures of short episodes take more room, so a shard holds fewer rows of them: that must not draw every later chunk to it."""
    pool = Shards(KINDS["uniform"], num=4, routing="least_loaded")
    state, add = pool.init(FILM, LANES * ENVS, LANES, STEPS), jax.jit(pool.add)
    long, short = (film(0, 0, STEPS, ENVS, end) for end in (0.0, 0.9))
    for number in range(160):
        state = add(state, 0, long if number < 80 else short)
        rows, chunks = loads(state)
        assert np.ptp(chunks) <= 1 and np.ptp(rows) <= 2 * CHUNK
    assert rows.max() < 16 * CHUNK  # they did have to give up rows
