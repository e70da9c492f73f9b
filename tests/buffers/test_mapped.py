"""Rows in files: the same bits as in memory, sealed segments that never change again, and disks that fill up."""

from __future__ import annotations

import hashlib
import resource
import shutil

import jax
import numpy as np
import pytest
from replay_streams import FILM, SPEC, chunk, film

from shoal.buffers.host import Host
from shoal.buffers.mapped import Files, Mapped
from shoal.buffers.uniform import State, Uniform
from shoal.errors import DamagedError, StoreError

LANES, ENVS, STEPS = 2, 2, 3
BUFFER = Uniform(capacity=96, batch_size=64, start=1, n_step=2)
ORDER = [0, 1, 0] * 12
CASES = {"numbers": (SPEC, 0.2, 500), "film": (FILM, 0.05, 9_000), "short films": (FILM, 0.9, 9_000)}


def data(spec, lane, seq, end):
    return chunk(lane, seq, STEPS, ENVS, end) if spec is SPEC else film(lane, seq, STEPS, ENVS, end)


def run(name, tmp_path, begin, stop, states, buffers):
    """Add and draw in all buffers alike; every draw must be the same."""
    spec, end, _ = CASES[name]
    count = [ORDER[:begin].count(lane) for lane in range(LANES)]
    for i in range(begin, stop):
        lane = ORDER[i]
        new = data(spec, lane, count[lane], end)
        count[lane] += 1
        states = [buffer.add(state, lane, new) for buffer, state in zip(buffers, states, strict=True)]
        drawn = [buffer.sample(state, jax.random.key(i))[1] for buffer, state in zip(buffers, states, strict=True)]
        for other in drawn[1:]:
            jax.tree.map(np.testing.assert_array_equal, drawn[0], other)
    return states


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("name", CASES)
def test_same_bits_as_in_memory_and_after_a_checkpoint(name, tmp_path):
    spec, _, size = CASES[name]
    memory, mapped = Host(BUFFER), Mapped(BUFFER, str(tmp_path / "one"), size)
    states = [buffer.init(spec, LANES * ENVS, LANES, STEPS) for buffer in (memory, mapped)]
    states = run(name, tmp_path, 0, 25, states, [memory, mapped])
    files = list((tmp_path / "one").iterdir())
    assert len(files) > 8 and all(path.stat().st_size <= size for path in files)

    saved = tmp_path / "saved"
    saved.mkdir()
    states[1].store.save(saved)
    before = digests(saved)
    linked = [path for path in saved.glob("*.rows") if path.stat().st_nlink == 2]
    assert len(linked) >= len(files) - (4 if spec is FILM else 2) * LANES  # open: one or two of each lane, for rows and for places
    other = Mapped(BUFFER, str(tmp_path / "two"), size)
    again = other.init(spec, LANES * ENVS, LANES, STEPS)
    again.store.load(saved)
    copied = [jax.tree.map(lambda x: x.copy(), x) for x in (states[0].index, states[0].priority)]
    again = State(again.store, *copied, again.form)
    states = run(name, tmp_path, 25, 36, [*states, again], [memory, mapped, other])
    assert digests(saved) == before  # a checkpoint stays as it was whatever happens to the run
    assert int(states[0].index.count[0]) == 24
    present = len(list((tmp_path / "one").iterdir()))
    assert present <= len(files) + 4  # what was overwritten is gone


def test_a_full_disk_is_an_error_with_the_folders_name(tmp_path):
    mapped = Mapped(BUFFER, str(tmp_path / "replay"), 5_000)
    state = mapped.init(SPEC, LANES * ENVS, LANES, STEPS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(StoreError, match=r"replay: no room for another .* MiB of replay"):
            mapped.add(state, 0, chunk(0, 0, STEPS, ENVS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "replay").iterdir())


def test_folders_and_files_that_are_not_ours(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "thesis.tex").touch()
    form = BUFFER.form(SPEC, LANES * ENVS, LANES, STEPS)
    with pytest.raises(StoreError, match="replay: not empty"):
        Files(tmp_path / "replay", form, 1_000)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: cannot keep replay there"):
        Files(tmp_path / "file", form, 1_000)


def test_damaged_checkpoints_are_refused(tmp_path):
    mapped = Mapped(BUFFER, str(tmp_path / "one"), 500)
    state = mapped.init(SPEC, LANES * ENVS, LANES, STEPS)
    for seq in range(5):
        state = mapped.add(state, 0, chunk(0, seq, STEPS, ENVS))
    good = tmp_path / "good"
    good.mkdir()
    state.store.save(good)

    def missing(folder):
        next(folder.glob("rows-*")).unlink()

    def short(folder):
        path = next(folder.glob("rows-*"))
        data = path.read_bytes()
        path.unlink()  # it may be a link
        path.write_bytes(data[:-1])

    def wrong(folder):
        (folder / "segments.json").write_text('{"rows": 3}')

    for i, damage in enumerate((missing, short, wrong)):
        bad = tmp_path / f"bad{i}"
        shutil.copytree(good, bad)
        damage(bad)
        with pytest.raises(DamagedError, match=f"bad{i}"):
            Files(tmp_path / f"new{i}", state.form[0], 500).load(bad)


def test_digests_are_those_of_the_files_at_every_save(tmp_path):
    """A segment that was open at one save and is full at the next has another digest then."""
    mapped = Mapped(BUFFER, str(tmp_path / "one"), 500)
    state = mapped.init(SPEC, LANES * ENVS, LANES, STEPS)
    for seq in range(12):
        state = mapped.add(state, 0, chunk(0, seq, STEPS, ENVS))
        if seq % 3 == 0:
            saved = tmp_path / f"saved{seq}"
            saved.mkdir()
            assert state.store.save(saved) == digests(saved)
