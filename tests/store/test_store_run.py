"""Run folders: made whole or not at all, and refused with one line."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import tomllib
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest

from shoal import store
from shoal.errors import ConfigError, StoreError
from shoal.testing import faults

CONFIG = {
    "algo": "ppo", "steps": 200_000, "seed": 2**64 - 1, "target_return": math.inf, "low": -math.inf, "rate": 2.5e-5, "big": 1e300,
    "on": True, "off": False, "plugins": ("a", "b"), "empty": [], "mixed": [1, 2.0, "x", True], "nested": [[1, 2], []],
    "odd key.with dots": "v", "": "empty key",
    "env_options": {"gravity": 9.81, "name": "x", "deep": {"a": [1.5], "b": {"c": False}}},
    "algorithm": {}, "last": {"text": "quote\" back\\slash \n\t\r\b\f\x00\x1f\x7f é ☃ 😀 \u2028"},
}


def lists(value):
    """What is expected back: TOML has no tuples."""
    if isinstance(value, dict):
        return {name: lists(inner) for name, inner in value.items()}
    return [lists(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def test_toml_round_trip():
    assert tomllib.loads(store.dumps_toml(CONFIG)) == lists(CONFIG)


def test_toml_nan_and_numpy_numbers():
    class Kind(IntEnum):
        TWO = 2

    given = {"nan": math.nan, "f": np.float32(0.5), "d": np.float64(0.1), "i": np.int32(3), "k": Kind.TWO, "b": np.bool_(True)}
    back = tomllib.loads(store.dumps_toml(given))
    assert math.isnan(back.pop("nan"))
    assert back == {"f": 0.5, "d": 0.1, "i": 3, "k": 2, "b": True}


def test_toml_keeps_every_control_character():
    text = "".join(map(chr, range(0x20))) + "\x7f\x85\r\n"
    assert tomllib.loads(store.dumps_toml({"t": text, text: 1})) == {"t": text, text: 1}


@pytest.mark.parametrize(("config", "said"), [
    ({"a": {"b": None}}, "a.b = None"), ({"f": [len]}, "f = <built-in"), ({1: 2}, "key 1"), ({"t": {3: {}}}, "key 3"),
    ({"s": "\ud800"}, "'s'"), ({"o": object}, "o = "),
])
def test_toml_refuses_what_it_cannot_say(config, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        store.dumps_toml(config)


def test_create_run_holds_config_and_checkpoint_zero(tmp_path: Path):
    folder = tmp_path / "a" / "b" / "run"
    store.create_run(folder, CONFIG)
    assert store.read_config(folder) == lists(CONFIG)
    start, skipped = store.newest(folder)
    assert start == store.Checkpoint(0, {}, {"fresh": True}, dict.fromkeys(store.METRIC_FILES, 0))
    assert skipped == []
    assert sorted(os.listdir(folder)) == ["checkpoints", "config.toml"]
    assert os.listdir(folder.parent) == ["run"]


def test_create_run_takes_an_empty_folder_also_through_a_link(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    store.create_run(tmp_path / "link", {"seed": 3})
    assert store.read_config(tmp_path / "empty") == {"seed": 3}


def test_create_run_refuses_a_folder_that_holds_a_run(run: Path):
    before = store.sha256(store.newest(run)[0].tensors)
    with pytest.raises(StoreError, match="already holds a run; resume it or choose another --out"):
        store.create_run(run, {"seed": 2})
    assert store.read_config(run) == {"seed": 1}
    assert store.sha256(store.newest(run)[0].tensors) == before
    assert os.listdir(run.parent) == ["one"]


def test_create_run_refuses_other_places(tmp_path: Path, monkeypatch):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = sorted(tmp_path.rglob("*"))
    for place in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / "file" / "a" / "run", tmp_path / "full",
                  Path("."), Path("/"), tmp_path / "new" / ("x" * 300), tmp_path / "nul\0", Path("/proc/nothing/run")):
        with pytest.raises(ConfigError, match="^out = ") as caught:
            store.create_run(place, {"seed": 1})
        assert "\n" not in str(caught.value)
        assert sorted(tmp_path.rglob("*")) == before


def test_create_run_refuses_a_bad_config_before_touching_the_disk(tmp_path: Path):
    with pytest.raises(ConfigError, match="x = None"):
        store.create_run(tmp_path / "a" / "run", {"x": None})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("action", "error", "said"), [
    ("eacces", ConfigError, os.strerror(errno.EACCES)), ("enospc", StoreError, os.strerror(errno.ENOSPC)),
    ("eio", StoreError, os.strerror(errno.EIO)), ("raise", faults.Fault, "injected"),
])
def test_create_run_leaves_nothing_half_written_wherever_it_fails(tmp_path: Path, action, error, said):
    with faults.record("store") as points:
        store.create_run(tmp_path / "a" / "b" / "run", CONFIG)
    assert {"mkdir", "open", "write", "fsync", "rename"} == set(points)
    for nth in range(1, len(points) + 1):
        place = tmp_path / f"place{nth}"
        place.mkdir()
        faults.arm("store", "*", nth, action)
        with pytest.raises(error, match=said):
            store.create_run(place / "a" / "b" / "run", CONFIG)
        assert os.listdir(place) == []
        faults.disarm()
        store.create_run(place / "a" / "b" / "run", CONFIG)


def test_create_run_killed_anywhere_can_be_tried_again(tmp_path: Path, killed):
    with faults.record("store") as points:
        store.create_run(tmp_path / "probe" / "run", CONFIG)
    outcomes = set()
    for nth in range(1, len(points) + 1):
        folder = tmp_path / f"place{nth}" / "run"
        assert killed(nth, lambda folder=folder: store.create_run(folder, CONFIG)) == signal.SIGKILL
        outcomes.add(folder.exists())
        if folder.exists():
            assert store.newest(folder)[0].step == 0
        else:
            store.create_run(folder, CONFIG)
        assert store.read_config(folder) == lists(CONFIG)
        assert os.listdir(folder.parent) == ["run"]
    assert outcomes == {True, False}


def test_no_run_names_the_nearest(run: Path):
    with pytest.raises(ConfigError, match="no run in .*'; did you mean 'one'"):
        store.read_config(run.parent / "onne")
    with pytest.raises(ConfigError, match="no run in"):
        store.newest(run.parent / "absent" / "deeper")
    (run.parent / "bare").mkdir()
    with pytest.raises(ConfigError, match="no run in"), store.lock(run.parent / "bare"):
        pass


@pytest.mark.parametrize(("text", "said"), [
    (b'seed = 1\nalgo = "ppo\n', "line 2"), (b"a = 1\na = 2\n", "line 2"), (b"\n\n\n= 3", "line 4"),
    (b"ok = 1\nb = \xff\xfe", "line 2"),
    (b"x = 1\ny = " + b"[" * 5000 + b"]" * 5000, "line 2: nested"), (b"x = " + b"9" * 5000, "malformed"),
])
def test_malformed_config_names_file_and_line(run: Path, text: bytes, said: str):
    (run / "config.toml").write_bytes(text)
    with pytest.raises(StoreError, match=f"config.toml: .*{said}"):
        store.read_config(run)


def test_config_that_is_no_file_is_refused_at_once(run: Path):
    (run / "config.toml").unlink()
    os.mkfifo(run / "config.toml")
    with pytest.raises(StoreError, match=r"config.toml: cannot be read: not a regular file"):
        store.read_config(run)


def test_lock_keeps_a_second_process_out_and_dies_with_its_holder(run: Path):
    program = "import sys; from shoal import store\nwith store.lock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match="is being written by another process"), store.lock(run):
            pass
        holder.kill()
    with store.lock(run), pytest.raises(StoreError, match="another process"), store.lock(run):
        pass
    with store.lock(run):
        pass


def test_truncate_cuts_to_the_recorded_bytes(run: Path):
    (run / "metrics.jsonl").write_bytes(b"0123456789")
    (run / "metrics.csv").write_bytes(b"abc")
    (run / "timing.jsonl").write_bytes(b"zzz")
    store.truncate(run, {"metrics.jsonl": 4, "metrics.csv": 3, "timing.jsonl": 0, "absent.jsonl": 0})
    assert (run / "metrics.jsonl").read_bytes() == b"0123"
    assert (run / "metrics.csv").read_bytes() == b"abc"
    assert (run / "timing.jsonl").read_bytes() == b""
    assert not (run / "absent.jsonl").exists()


@pytest.mark.parametrize("lengths", [{"metrics.jsonl": 2, "metrics.csv": 9}, {"metrics.jsonl": 2, "absent.csv": 1}])
def test_truncate_refuses_lost_data_and_touches_nothing(run: Path, lengths):
    (run / "metrics.jsonl").write_bytes(b"0123456789")
    (run / "metrics.csv").write_bytes(b"abc")
    with pytest.raises(StoreError, match="data was lost"):
        store.truncate(run, lengths)
    assert (run / "metrics.jsonl").read_bytes() == b"0123456789"


@pytest.mark.parametrize("lengths", [
    {"../config.toml": 0}, {"/etc/x": 0}, {".lock": 0}, {"metrics.jsonl": -1}, {"metrics.jsonl": True},
    {"metrics.jsonl": 1.5}, {"a\n": 0},
])
def test_truncate_refuses_names_and_lengths_that_are_none(run: Path, lengths):
    with pytest.raises(StoreError, match="lengths"):
        store.truncate(run, lengths)


def test_resume_from_checkpoint_zero_empties_the_metrics(tmp_path: Path):
    store.create_run(tmp_path / "run", {"seed": 1})
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"{}\n")
    store.truncate(tmp_path / "run", store.newest(tmp_path / "run")[0].lengths)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == b""
