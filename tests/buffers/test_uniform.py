"""Uniform replay: what is drawn is what was added, put together over n steps or as sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import SPEC, chi_square, chunk, side_by_side

from shoal.buffers import layout
from shoal.buffers.uniform import Uniform
from shoal.errors import ConfigError, EnvError
from shoal.specs import Box, Discrete, EnvSpec, Group
from shoal.types import Transition

LANES, ENVS, STEPS = 2, 3, 4
ADDS = [0, 1, 0, 0, 0, 1, 0, 0]  # six chunks of lane 0, which holds four; two of lane 1


def filled(buffer, adds=ADDS):
    """A buffer after chunks of lanes, and what each row was: {(lane, step, env): row of numbers}."""
    state = buffer.init(SPEC, LANES * ENVS, LANES, STEPS)
    add, count, rows = jax.jit(buffer.add), [0] * LANES, {}
    for lane in adds:
        data = chunk(lane, count[lane], STEPS, ENVS)
        state = add(state, lane, data)
        for step in range(STEPS):
            for env in range(ENVS):
                rows[lane, count[lane] * STEPS + step, env] = jax.tree.map(lambda x, s=step, e=env: np.asarray(x)[s, e], data)
        count[lane] += 1
    slots = state.form[0].ring.slots
    newest = [c * STEPS for c in count]
    return state, {at: row for at, row in rows.items() if at[1] >= newest[at[0]] - slots}, newest


def address(obs):
    return [tuple(int(x) for x in row) for row in np.asarray(obs).reshape(-1, 3)]


def test_every_row_comes_back_as_it_was_equally_often():
    state, rows, _ = filled(Uniform(capacity=96, batch_size=96, start=1))
    buffer = Uniform(capacity=96, batch_size=30_000, start=1)
    _, sample = jax.tree.map(np.asarray, jax.jit(buffer.sample)(state, jax.random.key(0)))
    seen = address(sample.batch.obs)
    assert set(seen) == set(rows) and len(rows) == 16 * ENVS + 8 * ENVS
    counts = np.array([seen.count(at) for at in rows])
    assert abs(chi_square(counts, np.full(len(rows), 30_000 / len(rows)))) < 4
    for place in range(200):
        jax.tree.map(lambda got, was, p=place: np.testing.assert_array_equal(got[p], was), sample.batch, rows[seen[place]])
    np.testing.assert_array_equal(sample.weight, 1.0)


@pytest.mark.parametrize("n_step", [2, 7])
def test_n_steps_against_a_plain_loop(n_step):
    buffer = Uniform(capacity=96, batch_size=96, start=1, n_step=n_step, discount=0.9)
    state, rows, newest = filled(buffer)
    _, sample = jax.tree.map(np.asarray, jax.jit(buffer.sample)(state, jax.random.key(1)))
    shorter = 0
    for place, (lane, step, env) in enumerate(address(sample.batch.obs)):
        reward, power = 0.0, 1.0
        for ahead in range(n_step):
            end = rows[lane, step + ahead, env]
            reward += power * end.reward
            if end.last or step + ahead + 1 == newest[lane] or ahead + 1 == n_step:
                shorter += ahead + 1 < n_step
                break
            power *= 0.9
        got = jax.tree.map(lambda x, p=place: x[p], sample.batch)
        assert got.reward == pytest.approx(reward, abs=1e-5) and got.alive == pytest.approx(end.alive * power, abs=1e-6)
        np.testing.assert_array_equal(got.next_obs, end.next_obs)
        assert got.last == end.last and got.action == rows[lane, step, env].action and got.valid == 1
    assert shorter > 10


def test_sequences_never_run_past_the_newest_step():
    buffer = Uniform(capacity=96, batch_size=96, start=1, length=5)
    state, rows, newest = filled(buffer)
    _, sample = jax.tree.map(np.asarray, jax.jit(buffer.sample)(state, jax.random.key(2)))
    assert sample.batch.obs.shape == (5, 96, 3) and sample.weight.shape == (96,)
    for place in range(96):
        lane, step, env = address(sample.batch.obs[0, place])[0]
        assert step + 5 <= newest[lane]
        counts = 1.0
        for ahead in range(5):
            was = rows[lane, step + ahead, env]
            np.testing.assert_array_equal(sample.batch.obs[ahead, place], was.obs)
            np.testing.assert_array_equal(sample.batch.reward[ahead, place], was.reward)
            assert float(sample.batch.valid[ahead, place]) == counts
            counts *= 1.0 - was.last
    drawn = {address(sample.batch.obs[0, p])[0] for p in range(96)}
    assert len(drawn) > 30


def test_lanes_added_together_or_one_by_one():
    buffer = Uniform(capacity=96, batch_size=8, start=1)
    one = together = buffer.init(SPEC, LANES * ENVS, LANES, STEPS)
    add, add_all = jax.jit(buffer.add), jax.jit(lambda state, data: buffer.add(state, None, data))
    for seq in range(6):
        chunks = [chunk(lane, seq, STEPS, ENVS) for lane in range(LANES)]
        for lane in range(LANES):
            one = add(one, lane, chunks[lane])
        together = add_all(together, side_by_side(chunks))
    jax.tree.map(np.testing.assert_array_equal, one, together)
    np.testing.assert_array_equal(one.index.count, 6)


def test_ready_after_the_start_size():
    buffer = Uniform(capacity=96, batch_size=8, start=20)
    state = buffer.init(SPEC, LANES * ENVS, LANES, STEPS)
    told = []
    for lane in (0, 1):
        told.append(bool(buffer.ready(state)))
        state = buffer.add(state, lane, chunk(lane, 0, STEPS, ENVS))
    assert [*told, bool(buffer.ready(state))] == [False, False, True]
    longer = Uniform(capacity=96, batch_size=8, start=1, length=6)
    assert not bool(longer.ready(state)) and buffer.pace(64) == (1, 1)


def test_dtypes_are_those_of_the_spec():
    spec = EnvSpec("picture", Group((("pixels", Box((9, 9, 3), 0, 255, "uint8")), ("half", Box((5,), dtype="bfloat16")))), Discrete(3))
    buffer = Uniform(capacity=40, batch_size=16, start=1, n_step=2)
    state = buffer.init(spec, 2, 1, 5, extras={"log_prob": jax.ShapeDtypeStruct((), jnp.float32)})
    assert {x.dtype.name for x in state.store.wide} == {"uint8", "bfloat16"} and state.store.words.shape == (1, 20, 2, 6)
    draw = np.random.default_rng(0)
    pixels = jnp.asarray(draw.integers(0, 255, (6, 2, 9, 9, 3)), jnp.uint8)
    half = jnp.asarray(draw.normal(size=(6, 2, 5)), jnp.float32)  # declared bfloat16: stored so
    last = jnp.zeros((5, 2), bool).at[1, 0].set(True)
    number = jnp.asarray(draw.normal(size=(5, 2)), jnp.float32)
    data = Transition({"pixels": pixels[:-1], "half": half[:-1]}, jnp.zeros((5, 2), jnp.int32), number, jnp.ones((5, 2)),
                      {"pixels": pixels[1:], "half": half[1:]}, last, jnp.ones((5, 2)), {"log_prob": number * 2})
    _, sample = jax.jit(lambda state, data: buffer.sample(buffer.add(state, 0, data), jax.random.key(0)))(state, data)
    np.testing.assert_array_equal(sample.batch.extras["log_prob"].shape, (16,))
    sample, pixels, last, number = jax.tree.map(np.asarray, (sample, pixels, last, number))
    for place in range(16):
        step = next(s for s in range(10) if (sample.batch.obs["pixels"][place] == pixels[s // 2, s % 2]).all())
        time, env = divmod(step, 2)
        end = time if last[time, env] or time == 4 else time + 1
        np.testing.assert_array_equal(sample.batch.next_obs["pixels"][place], pixels[end + 1, env])
        np.testing.assert_array_equal(sample.batch.next_obs["half"][place], np.asarray(half[end + 1, env].astype(jnp.bfloat16)))
        assert float(sample.batch.extras["log_prob"][place]) == float(number[time, env] * 2)


def test_capacity_is_rounded_up_to_whole_chunks():
    ring = Uniform(capacity=100, start=1, batch_size=1).form(SPEC, 6, 2, 4).ring
    assert ring.slots == 20 and ring.rows == 120
    assert Uniform(capacity=9, start=1, batch_size=1, n_step=6).form(SPEC, 1, 1, 4).ring.slots == 12
    assert Uniform(capacity=1, start=1, batch_size=1).form(SPEC, 1, 1, 4).ring.slots == 4


@pytest.mark.parametrize(("settings", "field"), [
    ({"batch_size": 512, "capacity": 96}, "batch_size = 512"), ({"start": 97, "capacity": 96}, "start = 97"),
    ({"length": 3, "n_step": 2}, "length = 3"), ({"capacity": 2**31 - 1}, "capacity = 2147483647"),
])
def test_settings_that_cannot_work_are_named(settings, field):
    with pytest.raises(ConfigError, match=field):
        Uniform(**({"batch_size": 8, "start": 1} | settings)).form(SPEC, 6, 2, 4)


def test_memory_is_known_before_it_is_taken():
    buffer = Uniform(capacity=10**9, batch_size=8, start=1)
    needed = buffer.nbytes(SPEC, 8, 1, 8)
    assert needed == 10**9 * (3 + 1 + 1 + 1 + 3 + 1 + 1) * 4 + 3 * 4
    with pytest.raises(ConfigError, match="capacity = 1000000000"):
        Uniform(capacity=10**9, batch_size=8, start=1, limit=2.0**30).check(SPEC, 8, 1, 8)
    fits = Uniform(capacity=10**6, batch_size=8, start=1)
    assert fits.check(SPEC, 8, 1, 8) == fits.nbytes(SPEC, 8, 1, 8)
    small = Uniform(capacity=64, batch_size=8, start=1)
    kept = jax.tree.leaves(small.init(SPEC, 8, 1, 8))
    assert small.nbytes(SPEC, 8, 1, 8) == sum(x.nbytes for x in kept)


@pytest.mark.parametrize(("change", "words"), [
    ({"obs": jnp.zeros((4, 3, 2))}, r"transition.obs: shape \(4, 3, 2\), expected \(4, 3, 3\)"),
    ({"obs": jnp.zeros((4, 3, 3), jnp.int32)}, "transition.obs: dtype int32, expected float32"),
    ({"reward": np.zeros((4, 3))}, "transition.reward: dtype float64, expected float32"),
    ({"extras": {"value": jnp.zeros((4, 3))}}, "transition: its fields"),
])
def test_transitions_of_another_shape_are_refused(change, words):
    buffer = Uniform(capacity=96, batch_size=8, start=1)
    state = buffer.init(SPEC, LANES * ENVS, LANES, STEPS)
    with pytest.raises(EnvError, match=words):
        buffer.add(state, 0, chunk(0, 0, STEPS, ENVS)._replace(**change))


def test_no_array_of_a_buffer_is_copied():
    """A donated buffer of any size is changed in place: no instruction makes a second array of its size."""
    buffer = Uniform(capacity=50_000, batch_size=8, start=1)
    state = jax.eval_shape(lambda: buffer.init(SPEC, 1))
    data = jax.eval_shape(lambda: chunk(0, 0, 1, 1))
    cycle = jax.jit(lambda buffer, state, data, key: buffer.sample(buffer.add(state, 0, data), key), donate_argnums=1)
    compiled = cycle.lower(buffer, state, data, jax.random.key(0)).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= layout.nbytes(state.form[0]) and memory.temp_size_in_bytes < 50_000
