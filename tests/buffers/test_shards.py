"""A pool of shards: the distribution of one buffer, even loads under skewed writers, and no window across what does not belong together."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import FILM, SPEC, chi_square, chunk, film, side_by_side

from shoal.buffers.host import Host
from shoal.buffers.mapped import Mapped
from shoal.buffers.prioritised import Prioritised
from shoal.buffers.shards import Shards
from shoal.buffers.uniform import Uniform
from shoal.errors import ConfigError, EnvError

LANES, ENVS, STEPS = 4, 2, 4
ROUTINGS = ("round_robin", "lane", "least_loaded")


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
    seen = {name: float(value) for name, value in pool.metrics(state).items()}
    assert seen["replay_rows"] == pool.rows(state).sum() == 150 * STEPS * ENVS and state.index.count.sum() == 150
    assert seen["replay_rows_max"] - seen["replay_rows_min"] == np.ptp(pool.rows(state)) <= STEPS * ENVS
    skewed, _ = filled(Shards(pool.buffer, num=4, routing="lane"), draw.choice(LANES, 150, p=[0.85, 0.05, 0.05, 0.05]).tolist())
    assert np.ptp(pool.rows(skewed)) > 10 * STEPS * ENVS  # which is what it is for


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


@pytest.mark.parametrize(("routing", "spec"), [("round_robin", SPEC), ("lane", SPEC), ("least_loaded", FILM)], ids=ROUTINGS)
def test_the_same_bits_wherever_rows_lie(routing, spec, tmp_path):
    kept = Prioritised(capacity=64, batch_size=16, start=1, n_step=2)
    pools = [Shards(inner, num=2, routing=routing) for inner in (kept, Host(kept), Mapped(kept, str(tmp_path / "rows"), 9_000))]
    states = [pool.init(spec, LANES * ENVS, LANES, STEPS) for pool in pools]
    assert [pool.apart for pool in pools] == [False, True, True] and [pool.in_files for pool in pools] == [False, False, True]
    calls = [(jax.jit(pools[0].add), jax.jit(pools[0].sample), jax.jit(pools[0].update)), *((p.add, p.sample, p.update) for p in pools[1:])]
    make, draws = chunk if spec is SPEC else film, [None] * 3
    for seq in range(4):  # 16 chunks for 2 shards of 4: they wrap
        data = side_by_side([make(lane, seq, STEPS, ENVS, 0.2) for lane in range(LANES)])
        for i, (add, sample, update) in enumerate(calls):
            state, drawn = sample(add(states[i], None, data), jax.random.key(seq))
            states[i] = update(state, drawn.ticket, jnp.abs(drawn.batch.reward))
            draws[i] = drawn
        jax.tree.map(np.testing.assert_array_equal, draws[0], draws[1])
        jax.tree.map(np.testing.assert_array_equal, draws[0], draws[2])
    for state in states[1:]:
        jax.tree.map(np.testing.assert_array_equal, (states[0].index, states[0].priority), (state.index, state.priority))
    np.testing.assert_array_equal(states[0].index.count, [8, 8])
    seen = [{name: float(value) for name, value in pool.metrics(state).items()} for pool, state in zip(pools, states, strict=True)]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0].keys() == {"replay_rows", "replay_rows_min", "replay_rows_max", "priorities_ignored", "priorities_bad"}


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="routing = 'lane'"):
        Shards(Uniform(capacity=64, batch_size=8, start=1), num=3, routing="lane").init(SPEC, LANES * ENVS, LANES, STEPS)
    with pytest.raises(ConfigError, match="length = 5: a pool of 4 shards cuts what it keeps into chunks of num_steps = 4"):
        Shards(Host(Uniform(capacity=64, batch_size=8, start=1, length=5))).init(SPEC, LANES * ENVS, LANES, STEPS)
    pool = Shards(Uniform(capacity=64, batch_size=8, start=1))
    for data, why in ((chunk(0, 0, STEPS, ENVS)._replace(reward=np.zeros((STEPS, 3), np.float32)), r"transition.reward: shape \(4, 3\)"),
                      (chunk(0, 0, STEPS, ENVS)._replace(action=np.zeros((STEPS, ENVS), np.int64)), "transition.action: dtype int64"),
                      (chunk(0, 0, STEPS + 1, ENVS), r"transition.obs: shape \(5, 2, 3\), expected \(4, 2, 3\)")):
        with pytest.raises(EnvError, match=why):
            pool.add(pool.init(SPEC, LANES * ENVS, LANES, STEPS), None, data)
