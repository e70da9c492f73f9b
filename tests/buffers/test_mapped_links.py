"""What a save of a mapped buffer writes: only what is new, whatever it holds; and a loaded one goes on with the same draws.

The same life at 10 GB in 2 GB of memory is in ``tests/chaos/test_mapped_large.py``.
"""

from __future__ import annotations

import shutil

import jax
import large_replay
import numpy as np
import pytest

from shoal.errors import DamagedError

PLAN = large_replay.Plan(side=20, chunks=12, segment_bytes=2**18, again=5, between=3, batch=32, draw_every=2)


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    folder = tmp_path_factory.mktemp("life")
    return folder, large_replay.fill(PLAN, folder)


def test_a_save_writes_only_what_is_new(life):
    folder, seen = life
    open_bytes = 2 * large_replay.LANES * PLAN.segment_bytes + seen["index"] + 2**17  # two of a lane's pictures; rows are few
    for save in seen["saves"]:
        assert save["holds"] >= PLAN.rows * PLAN.picture_bytes
        assert 0 < save["new"] <= open_bytes < save["holds"] / 4
    linked = {path.stat().st_ino for path in (folder / "save1").glob("places-*")} & {
        path.stat().st_ino for path in (folder / "save0").glob("places-*")}
    assert len(linked) > 14  # of the two saves' files most are the same
    assert sum(large_replay.inodes(folder).values()) < 2 * seen["saves"][0]["holds"]  # all three and the buffer, which came round


def test_a_loaded_buffer_draws_the_same(life):
    folder, seen = life
    again = large_replay.resume(PLAN, folder)
    assert again["draws"] == seen["draws"] and again["verified"] >= 2 * PLAN.batch
    assert seen["verified"] >= 10 * PLAN.batch


def test_a_row_that_changed_is_found(life, tmp_path):
    """On the disk, by the load; in what is drawn, by the check of this life."""
    folder, _ = life
    shutil.copytree(folder / "save2", tmp_path / "save2")
    path = max((tmp_path / "save2").glob("places-*"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=path.name):
        large_replay.resume(PLAN, tmp_path)
    life = large_replay.Life(PLAN, tmp_path / "rows")
    life.run(0, 1)
    _, drawn = life.buffer.sample(life.state, jax.random.key(0))
    large_replay.check(PLAN, drawn, 1)
    obs = np.array(drawn.batch.obs)
    obs[7, 0, 0, 0] ^= 1
    with pytest.raises(AssertionError, match="not as it was written"):
        large_replay.check(PLAN, drawn._replace(batch=drawn.batch._replace(obs=obs)), 1)
