"""A buffer saved and loaded on its own goes on as if nothing had happened; what is damaged or another buffer's is refused."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import FILM, SPEC, chi_square, chunk, film

from shoal.buffers import keep, sum_tree
from shoal.buffers.host import Host
from shoal.buffers.mapped import Mapped
from shoal.buffers.prioritised import Prioritised
from shoal.buffers.shards import Shards
from shoal.buffers.uniform import Uniform
from shoal.errors import DamagedError, StoreError
from shoal.specs import Box, Discrete, EnvSpec, Group
from shoal.testing import faults

LANES, ENVS, STEPS = 2, 2, 3
BUFFER = Prioritised(capacity=96, batch_size=64, start=1, alpha=0.7)
STORES = {"device": lambda folder: BUFFER, "host": lambda folder: Host(BUFFER), "mapped": lambda folder: Mapped(BUFFER, str(folder), 9_000)}


def init(buffer, spec=FILM):
    return buffer.init(spec, LANES * ENVS, LANES, STEPS)


def advanced(buffer, state, begin, stop):
    """Add, draw and update; answers what was drawn, too."""
    drawn = []
    for i in range(begin, stop):
        state = buffer.add(state, i % LANES, film(i % LANES, i // LANES, STEPS, ENVS, 0.1))
        state, sample = buffer.sample(state, jax.random.key(i))
        state = buffer.update(state, sample.ticket, jnp.abs(sample.batch.reward))
        drawn.append(jax.device_get(sample))
    return state, drawn


@pytest.fixture(scope="module")
def compiled():
    """The same buffer on the device, its calls compiled once."""
    return SimpleNamespace(init=BUFFER.init, add=jax.jit(BUFFER.add), sample=jax.jit(BUFFER.sample), update=jax.jit(BUFFER.update))


@pytest.mark.parametrize("name", STORES)
def test_a_loaded_buffer_goes_on_with_the_same_draws(name, tmp_path, compiled):
    """Past wrap-around, with priorities: every later draw and every count is that of the one that was saved."""
    first, second = (compiled if name == "device" else STORES[name](tmp_path / folder) for folder in ("one", "two"))
    state, _ = advanced(first, init(first), 0, 20)
    keep.save(tmp_path / "kept", state)
    kept = jax.device_get((state.index, state.priority))
    again = keep.load(tmp_path / "kept", init(second))
    jax.tree.map(np.testing.assert_array_equal, (again.index, again.priority), kept)
    state, drawn = advanced(first, state, 20, 23)
    again, same = advanced(second, again, 20, 23)
    jax.tree.map(np.testing.assert_array_equal, drawn, same)
    jax.tree.map(np.testing.assert_array_equal, (again.index, again.priority), (state.index, state.priority))
    assert int(state.index.count.sum()) == 23 and int(state.index.filled.sum()) * ENVS <= 96  # lanes came round


def test_rows_follow_their_priorities_after_loading(tmp_path, compiled):
    state, _ = advanced(compiled, init(compiled), 0, 22)
    keep.save(tmp_path / "kept", state)
    again = keep.load(tmp_path / "kept", init(Host(BUFFER)))  # a device's rows may go on in memory
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(again.store))
    plain = np.asarray(again.priority.levels[0], np.float64)[:96]
    draw = jax.jit(sum_tree.sample, static_argnums=2)
    row = np.concatenate([draw(again.priority.levels, jax.random.key(seed), 500)[0] for seed in range(100)])
    counts, expected = np.bincount(row, minlength=96), plain / plain.sum() * len(row)
    assert (counts[plain == 0] == 0).all() and (plain > 0).sum() >= 72 and len(set(plain.tolist())) > 40
    assert chi_square(counts[expected > 5], expected[expected > 5]) < 4


def test_half_precision_and_pools_of_shards(tmp_path):
    spec = EnvSpec("half", Group((("half", Box((5,), dtype="bfloat16")), ("whole", Box((2,))))), Discrete(4))
    pool = Shards(Uniform(capacity=48, batch_size=16, start=1), num=2)
    state, draw, add = init(pool, spec), np.random.default_rng(0), jax.jit(pool.add)
    for seq in range(3):
        plain = chunk(0, seq, STEPS, ENVS)
        obs = {"half": jnp.asarray(draw.normal(size=(STEPS, ENVS, 5)), jnp.bfloat16), "whole": plain.obs[..., :2]}
        state = add(state, 0, plain._replace(obs=obs, next_obs=obs))
    keep.save(tmp_path / "kept", state)
    again = keep.load(tmp_path / "kept", init(pool, spec))
    jax.tree.map(np.testing.assert_array_equal, again, state)
    assert jnp.dtype("bfloat16") in {x.dtype for x in jax.tree.leaves(again)}
    assert np.asarray(getattr(again, "inner", again).index.count).sum() == 3
    assert jax.tree.structure(again) == jax.tree.structure(state)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A mapped buffer in a folder; what a test changes in a copy of it."""
    folder = tmp_path_factory.mktemp("kept")
    mapped = Mapped(BUFFER, str(folder / "rows"), 2_000)
    state = init(mapped, SPEC)
    for i in range(9):
        state = mapped.add(state, 0, chunk(0, i, STEPS, ENVS))
    return keep.save(folder / "good", state)


def test_every_damaged_byte_is_refused(kept, tmp_path):
    names = sorted(os.listdir(kept))
    assert {"MANIFEST.json", "state.safetensors", "segments.json", "newest.rows"} < set(names) and len(names) > 4
    for number, name in enumerate(names):
        bad = tmp_path / str(number)
        shutil.copytree(kept, bad)
        data = bytearray((bad / name).read_bytes())
        where = len(data) // 2
        data[where:where + 1] = bytes([data[where] ^ 1]) if data else b"x"
        (bad / name).write_bytes(data)
        with pytest.raises(DamagedError, match=str(bad / name)):
            keep.load(bad, init(Mapped(BUFFER, str(tmp_path / f"rows{number}"), 2_000), SPEC))
    again = keep.load(kept, init(Mapped(BUFFER, str(tmp_path / "rows"), 2_000), SPEC))
    assert int(again.index.count[0]) == 9


def test_another_buffers_folder_is_refused_by_name(kept, tmp_path):
    with pytest.raises(StoreError, match="is there already"):
        keep.save(kept, init(BUFFER, SPEC))
    cases = {"sizes was": Prioritised(capacity=120, batch_size=64, start=1), "has no buffer.store.words": BUFFER,
             "holds buffer.priority": Mapped(Uniform(capacity=96, batch_size=64, start=1), str(tmp_path / "u"), 2_000),
             "segments of": Mapped(BUFFER, str(tmp_path / "s"), 500)}
    for message, buffer in cases.items():
        with pytest.raises(StoreError, match=message):
            keep.load(kept, init(buffer, SPEC))
    with pytest.raises(StoreError, match="fields was"):
        keep.load(kept, init(BUFFER, EnvSpec("other", Box((3,)), Box((1,)))))


def test_a_save_that_fails_leaves_all_or_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    state, place = init(BUFFER, SPEC), tmp_path / "kept"
    with faults.record("store") as points:
        keep.save(tmp_path / "rehearsal", state)
    assert {"mkdir", "write", "fsync", "rename"} <= set(points)
    for number in range(1, len(points) + 1):
        (tmp_path / ".tmp-kept-0123abcd").mkdir()  # as a kill would leave it
        faults.arm("store", "*", number + 1, "enospc")  # the first point removes that
        with pytest.raises(StoreError, match="kept: cannot be saved: No space left"):
            keep.save(place, state)
        faults.disarm()
        assert set(os.listdir(tmp_path)) <= {"kept", "rehearsal"}
        assert place.exists() == (number == len(points))  # the last one only flushes the name
    jax.tree.map(np.testing.assert_array_equal, keep.load(place, init(BUFFER, SPEC)), state)
