"""Checkpoints: what goes in comes out, in order, and the right ones stay."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from shoal import checkpoint, store
from shoal.errors import StoreError


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run / "checkpoints"))


def assert_same(left: dict, right: dict) -> None:
    assert sorted(left) == sorted(right)
    for name, value in right.items():
        assert left[name].dtype == value.dtype and left[name].shape == value.shape, name
        np.testing.assert_array_equal(left[name], value, err_msg=name)


def test_round_trip(run: Path, tensors):
    meta = {"score": -math.inf, "counts": {"updates": 3, 7: [1, None, "é"]}, 10: 1, 9: 2, "text": "a\nb"}
    path = store.save(run, 250, tensors(250), meta, {"metrics.jsonl": 12})
    assert path == run / "checkpoints" / "step-250"
    back = store.load(path)
    assert (back.step, back.lengths) == (250, {"metrics.jsonl": 12})
    assert back.meta == {"score": -math.inf, "counts": {"updates": 3, "7": [1, None, "é"]}, "10": 1, "9": 2, "text": "a\nb"}
    assert list(back.tensors) == sorted(tensors(250))
    assert_same(back.tensors, tensors(250))


@pytest.mark.parametrize("dtype", checkpoint._DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)])
def test_every_dtype_and_shape(run: Path, dtype: str, shape: tuple[int, ...]):
    value = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    back = store.load(store.save(run, 1, {"x": value}, {}, {})).tensors["x"]
    assert back.dtype == np.dtype(dtype) and back.shape == shape
    np.testing.assert_array_equal(back, value)


def test_memory_order_does_not_leak_in(run: Path):
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    given = {"turned": grid.T, "strided": grid[::2, ::-1], "fortran": np.asfortranarray(grid), "nan": np.array([np.nan, -0.0])}
    back = store.load(store.save(run, 1, given, {}, {})).tensors
    np.testing.assert_array_equal(back["turned"], [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]])
    np.testing.assert_array_equal(back["strided"], [[3, 2, 1, 0], [11, 10, 9, 8]])
    np.testing.assert_array_equal(back["fortran"], grid)
    assert back["nan"].tobytes() == given["nan"].tobytes()


@pytest.mark.parametrize("value", [
    np.array([1, "a"], object), np.array(["a"]), np.zeros(2, np.complex128), np.zeros(2, np.longdouble), np.zeros(2, ">f4"),
    np.array(["2020-01-01"], "datetime64[D]"), np.zeros(2, [("a", "f4")]),
])
def test_unsupported_dtype_names_the_tensor(run: Path, value):
    before = names(run)
    with pytest.raises(StoreError, match="tensor 'params/odd': dtype .* cannot be saved"):
        store.save(run, 200, {"params/odd": value}, {}, {})
    assert names(run) == before


def test_refuses_what_could_not_be_read_back(run: Path, monkeypatch):
    before = names(run)
    with pytest.raises(StoreError, match="keeps this name"):
        store.save(run, 200, {"__metadata__": np.zeros(1)}, {}, {})
    with pytest.raises(StoreError, match="meta of step 200: expected JSON data"):
        store.save(run, 200, {}, {"a": object()}, {})
    with pytest.raises(StoreError, match="lengths"):
        store.save(run, 200, {}, {}, {"../x": 1})
    for step, name in ((-1, ""), (True, ""), (2.0, ""), (200, "step-201"), (200, "latest"), (200, "../step-200")):
        with pytest.raises(StoreError, match="expected step-<n>"):
            store.save(run, step, {}, {}, {}, name=name)
    monkeypatch.setattr(checkpoint, "_MAX_TEXT", 1000)
    with pytest.raises(StoreError, match="expected at most 1000"):
        store.save(run, 200, {}, {"a": "x" * 1000}, {})
    assert names(run) == before


def test_manifest_says_what_the_design_asks_for(run: Path, tensors):
    path = store.save(run, 7, tensors(7), {"shoal": "9.8.7"}, {"metrics.csv": 3})
    manifest = json.loads((path / "MANIFEST.json").read_bytes())
    assert manifest["format"] == 1 and manifest["shoal"] == "9.8.7" and manifest["step"] == 7
    assert manifest["lengths"] == {"metrics.csv": 3}
    assert manifest["files"]["state.safetensors"]["size"] == (path / "state.safetensors").stat().st_size
    assert sorted(os.listdir(path)) == ["MANIFEST.json", "state.safetensors"]


def test_same_state_same_bytes(run: Path, tensors):
    turned = dict(reversed(tensors(5).items()))
    one = (store.save(run, 5, tensors(5), {"a": 1, "b": 2}, {}) / "state.safetensors").read_bytes()
    manifest = (run / "checkpoints" / "step-5" / "MANIFEST.json").read_bytes()
    two = (store.save(run, 5, turned, {"b": 2, "a": 1}, {}) / "state.safetensors").read_bytes()
    assert one == two and manifest == (run / "checkpoints" / "step-5" / "MANIFEST.json").read_bytes()


def test_newest_counts_in_numbers(run: Path, tensors):
    assert store.newest(run)[0].step == 100  # "step-9" sorts after it as text
    store.save(run, 1000, tensors(1000), {}, {})
    for stray in ("step-5000x", "step-05000", "astep-5000", ".tmp-5000-abcd", "step--5000", "step-٥٠٠٠"):
        (run / "checkpoints" / stray).mkdir()
    newest, skipped = store.newest(run)
    assert newest.step == 1000 and skipped == []
    assert_same(newest.tensors, tensors(1000))


def test_saving_a_step_again_replaces_it(run: Path, tensors):
    store.save(run, 100, tensors(101), {"again": True}, {})
    newest, _ = store.newest(run)
    assert newest.step == 100 and newest.meta == {"again": True}
    assert_same(newest.tensors, tensors(101))
    assert names(run) == ["step-0", "step-100", "step-9"]


def test_best_is_one_and_the_last_given(run: Path, tensors):
    with pytest.raises(StoreError, match="holds no best checkpoint"):
        store.best(run)
    for step in (50, 9, 100):
        store.save_best(run, step, tensors(step), {"score": step}, {})
        best, skipped = store.best(run)
        assert (best.step, best.meta, skipped) == (step, {"score": step}, [])
    assert names(run) == ["best-100", "step-0", "step-100", "step-9"]
    assert store.newest(run)[0].meta == {"updates": 100}


def test_prune_keeps_the_newest_and_sweeps_up(run: Path, tensors):
    store.save_best(run, 9, tensors(9), {}, {})
    dead = run / "checkpoints" / ".tmp-7-0badcafe"
    dead.mkdir()
    (dead / "state.safetensors").write_bytes(b"half")
    (run / "checkpoints" / ".tmp-link").symlink_to(run)
    store.prune(run, 2)
    assert names(run) == ["best-9", "step-100", "step-9"]
    store.prune(run, 1)
    assert names(run) == ["best-9", "step-100"]
    assert (run / "config.toml").exists()
    with pytest.raises(StoreError, match="keep = 0"):
        store.prune(run, 0)


def test_prune_never_removes_the_last_that_loads(run: Path, tensors):
    (run / "checkpoints" / "step-100" / "state.safetensors").write_bytes(b"rotten")
    store.prune(run, 1)
    assert names(run) == ["step-100", "step-9"]
    newest, skipped = store.newest(run)
    assert newest.step == 9 and len(skipped) == 1
    store.save(run, 100, tensors(100), {}, {})
    store.prune(run, 1)
    assert names(run) == ["step-100"]


def test_what_was_moved_aside_counts_only_while_it_must(run: Path):
    place = run / "checkpoints"
    (place / "step-100").rename(place / "step-100.old-00000001")
    assert store.newest(run)[0].step == 100
    store.prune(run, 1)
    assert names(run) == ["step-100.old-00000001"]
    store.save(run, 100, {"x": np.ones(1)}, {"new": 1}, {})
    assert names(run) == ["step-100"] and store.newest(run)[0].meta == {"new": 1}


def test_sha256_sees_name_dtype_shape_and_bytes():
    base = {"a": np.array([1, 2], np.int32), "b": np.zeros((), np.float32)}
    same = store.sha256(base)
    assert store.sha256(dict(reversed(base.items()))) == same
    assert store.sha256({"a": np.array([1, 0, 2], np.int32)[::2], "b": np.float32(0)}) == same
    others = [{"a": base["a"]}, base | {"c": np.zeros(0)}, {"a": base["a"], "B": base["b"]},
              base | {"a": np.array([1, 3], np.int32)}, base | {"a": base["a"].astype(np.uint32)},
              base | {"a": base["a"].reshape(1, 2)}, base | {"b": np.float32(-0.0)},
              base | {"b": np.zeros(1, np.float32)}]
    assert len({same, *map(store.sha256, others)}) == len(others) + 1
    # the digest is written down in results that people compare: it may not drift
    header = b'["a", "int32", [2]]\n' + struct.pack("<ii", 1, 2) + b'["b", "float32", []]\n' + struct.pack("<f", 0.0)
    assert same == hashlib.sha256(header).hexdigest()


def test_metric_files_are_flushed_before_a_checkpoint_refers_to_them(run: Path, tensors, monkeypatch):
    """The order that makes it safe against a power cut: every file, its folder, the rename, the parent."""
    (run / "metrics.jsonl").write_bytes(b"abc")
    seen: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def watch_fsync(descriptor):
        seen.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def watch_rename(old, new):
        seen.append(("rename", Path(new).name))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "rename", watch_rename)
    store.save(run, 300, tensors(300), {}, {"metrics.jsonl": 3, "metrics.csv": 0})
    tmp = seen[3][1]
    assert tmp.startswith(".tmp-300-")
    assert seen == [("fsync", "metrics.jsonl"), ("fsync", "state.safetensors"), ("fsync", "MANIFEST.json"), ("fsync", tmp),
                    ("rename", "step-300"), ("fsync", "checkpoints")]
