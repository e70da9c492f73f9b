"""A pool of shards: the distribution of one buffer, even loads under skewed writers, and no window across what does not belong together."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest
from replay_streams import SPEC, chi_square, chunk, side_by_side

from shoal.buffers.prioritised import Prioritised
from shoal.buffers.shards import Shards
from shoal.buffers.uniform import Uniform
from shoal.errors import ConfigError

LANES, ENVS, STEPS = 4, 2, 4
ROUTINGS = ("round_robin", "least_loaded", "lane")


def filled(pool, writers):
    """A pool after chunks of the lanes ``writers``, in order; and every row that was added, oldest first."""
    state, count, rows = pool.init(SPEC, LANES * ENVS, LANES, STEPS), Counter(), []
    add = jax.jit(pool.add)
    for lane in writers:
        data = chunk(lane, count[lane], STEPS, ENVS)
        count[lane] += 1
        state = add(state, lane, data)
        rows.append([tuple(row) for row in np.asarray(data.obs).reshape(-1, 3).tolist()])
    return state, rows


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_row_is_as_likely_as_in_one_buffer(routing):
    pool = Shards(Uniform(capacity=512, batch_size=128, start=1), num=4, routing=routing)
    state, rows = filled(pool, [0, 1, 2, 3] * 6 + [0, 1])  # shards differ in size
    sample = jax.jit(lambda key: pool.sample(state, key)[1].batch.obs)
    drawn = Counter(tuple(row) for seed in range(200) for row in np.asarray(sample(jax.random.key(seed))).tolist())
    every = [row for part in rows for row in part]
    assert set(drawn) == set(every)
    counts = np.array([drawn[row] for row in every])
    assert abs(chi_square(counts, np.full(len(every), counts.sum() / len(every)))) < 5


def test_priorities_count_across_shards():
    pool = Shards(Prioritised(capacity=256, batch_size=64, start=1, alpha=1.0, epsilon=1e-6), num=4)
    state, rows = filled(pool, [0, 1, 2, 3] * 4)
    every = [row for part in rows for row in part]
    wish = {row: 0.1 + i % 7 for i, row in enumerate(every)}
    sample, update = jax.jit(pool.sample), jax.jit(pool.update)
    for seed in range(60):  # until every row has been drawn, and has the priority that is meant for it
        state, got = sample(state, jax.random.key(seed))
        state = update(state, got.ticket, np.float32([wish[tuple(row)] for row in np.asarray(got.batch.obs).tolist()]))
    batches = [sample(state, jax.random.key(10_000 + seed))[1].batch.obs for seed in range(400)]
    drawn = Counter(tuple(row) for batch in batches for row in np.asarray(batch).tolist())
    expected = np.array([wish[row] for row in every]) / sum(wish.values()) * sum(drawn.values())
    assert chi_square(np.array([drawn[row] for row in every]), expected) < 5


def test_least_loaded_is_even_under_skewed_writers():
    pool = Shards(Uniform(capacity=2_000, batch_size=8, start=1), num=4, routing="least_loaded")
    draw = np.random.default_rng(0)
    state, _ = filled(pool, draw.choice(LANES, 150, p=[0.85, 0.05, 0.05, 0.05]).tolist())
    seen = pool.statistics(state)
    assert seen.rows.sum() == 150 * STEPS * ENVS and seen.chunks.sum() == 150
    assert np.ptp(seen.rows) <= STEPS * ENVS
    skewed, _ = filled(Shards(pool.buffer, num=4, routing="lane"), draw.choice(LANES, 150, p=[0.85, 0.05, 0.05, 0.05]).tolist())
    assert np.ptp(pool.statistics(skewed).rows) > 10 * STEPS * ENVS  # which is what it is for


@pytest.mark.parametrize("routing", ROUTINGS)
def test_no_window_runs_into_another_chunk_and_successors_are_true(routing):
    pool = Shards(Uniform(capacity=512, batch_size=128, start=1, n_step=3), num=4, routing=routing)
    state, _ = filled(pool, [0, 0, 1, 0, 2, 3, 3, 1] * 4)
    batch = jax.device_get(jax.jit(lambda key: pool.sample(state, key)[1].batch)(jax.random.key(0)))
    lane, step, env = batch.obs.T
    to_lane, to_step, to_env = batch.next_obs.T
    np.testing.assert_array_equal((lane, env), (to_lane, to_env))
    assert ((to_step - step - 0.5) % 1 == 0).all() and ((to_step - 0.5) // STEPS == step // STEPS).all()
    assert (to_step - step).max() == 2.5 and (to_step - step).min() == 0.5


def test_all_lanes_at_once_are_as_one_after_the_other():
    pool = Shards(Uniform(capacity=256, batch_size=64, start=1), num=4)
    one, _ = filled(pool, [0, 1, 2, 3])
    together = pool.add(pool.init(SPEC, LANES * ENVS, LANES, STEPS), None, side_by_side([chunk(i, 0, STEPS, ENVS) for i in range(LANES)]))
    jax.tree.map(np.testing.assert_array_equal, one, together)


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="routing = 'lane'"):
        Shards(Uniform(capacity=64, batch_size=8, start=1), num=3, routing="lane").init(SPEC, LANES * ENVS, LANES, STEPS)
