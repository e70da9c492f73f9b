"""Fail, or be killed, before every operation of a save: the old checkpoint or the new one is always there, whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from shoal import disk, store
from shoal.errors import ConfigError, StoreError
from shoal.testing import faults


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(disk, "BLOCK", 200)  # several writes per file, so that some are cut in the middle


def save_new(run: Path, tensors) -> None:
    store.save(run, 200, tensors(200), {"updates": 200}, {"metrics.jsonl": 0})


def save_again(run: Path, tensors) -> None:
    store.save(run, 100, tensors(200), {"updates": 200}, {"metrics.jsonl": 0})


def save_best(run: Path, tensors) -> None:
    store.save_best(run, 200, tensors(200), {"updates": 200}, {"metrics.jsonl": 0})


def prune(run: Path, tensors) -> None:
    store.prune(run, 1)


WAYS = {"new": save_new, "again": save_again, "best": save_best, "prune": prune}


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


@pytest.fixture
def places(way: str, tmp_path: Path, tensors):
    """As many equal run folders as there are points to fail at, made one by one; and how many those are."""

    def make(label: str) -> Path:
        run = tmp_path / label
        store.create_run(run, {"seed": 1})
        (run / "metrics.jsonl").write_bytes(b"")
        for step in (9, 100):
            store.save(run, step, tensors(step), {"updates": step}, {})
        store.save_best(run, 9, tensors(9), {"updates": 9}, {})
        return run

    run = make("rehearsal")
    with faults.record("store") as points:
        WAYS[way](run, tensors)
    expected = {"rename", "remove"} if way == "prune" else {"mkdir", "open", "write", "fsync", "rename"}
    assert expected <= set(points)
    assert way == "prune" or points.count("write") >= 4
    return make, points


def check(run: Path, way: str, tensors, replay: str) -> str:
    """Old or new, whole, nothing between; then that life goes on. Says which it was."""
    newest, skipped = store.newest(run)
    best, best_skipped = store.best(run)
    assert skipped == best_skipped == [], replay  # a half-made or half-deleted one must never look like damage
    seen = best if way == "best" else newest
    assert seen.meta["updates"] in ((9, 200) if way == "best" else (100, 200)), replay
    for name, value in tensors(seen.meta["updates"]).items():
        np.testing.assert_array_equal(seen.tensors[name], value, err_msg=replay)
    store.save(run, 300, tensors(300), {"updates": 300}, {})
    store.save_best(run, 300, tensors(300), {"updates": 300}, {})
    store.prune(run, 1)
    assert sorted(os.listdir(run / "checkpoints")) == ["best-300", "step-300"], replay
    assert store.newest(run)[0].step == store.best(run)[0].step == 300, replay
    return "new" if seen.meta["updates"] == 200 else "old"


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("action", ["enospc", "eio"])
def test_an_error_anywhere(way, places, tensors, action, forever):
    make, points = places
    outcomes, told = set(), 0
    for nth in range(1, len(points) + 1):
        run = make(f"run{nth}")
        replay = faults.line("store", "*", nth, action, forever=forever)
        faults.arm("store", "*", nth, action, forever=forever)
        try:
            WAYS[way](run, tensors)
        except StoreError as error:
            told += 1
            assert {"enospc": "No space left on device", "eio": "Input/output error"}[action] in str(error), replay
            assert str(run / "checkpoints") in str(error), replay
            if way != "prune" and not forever:
                assert not list((run / "checkpoints").glob(".tmp-*")), replay
        faults.disarm()
        outcomes.add(check(run, way, tensors, replay))
    # what fails after the checkpoint is in place is only the sweeping up, and does not fail the save
    last = len(points) if way in ("new", "prune") else len(points) - points[::-1].index("fsync")
    assert told == last
    assert outcomes == ({"old"} if way == "prune" else {"old", "new"})


def test_a_kill_anywhere(way, places, tensors, killed):
    make, points = places
    outcomes = set()
    for nth in range(1, len(points) + 1):
        run = make(f"run{nth}")
        replay = faults.line("store", "*", nth, "kill")
        assert killed(nth, lambda run=run: WAYS[way](run, tensors)) == signal.SIGKILL, replay
        outcomes.add(check(run, way, tensors, replay))
    assert outcomes == ({"old"} if way == "prune" else {"old", "new"})


def test_a_write_that_the_power_cut_shortened(run: Path):
    """The rename reached the disk and the data did not: detected, reported, and the one before is used."""
    whole = {name: (run / "checkpoints" / "step-100" / name).read_bytes() for name in ("state.safetensors", "MANIFEST.json")}
    for name, data in whole.items():
        for length in (0, 1, len(data) // 2, len(data) - 1):
            (run / "checkpoints" / "step-100" / name).write_bytes(data[:length])
            newest, skipped = store.newest(run)
            assert newest.step == 9
            assert len(skipped) == 1 and name in skipped[0]
        (run / "checkpoints" / "step-100" / name).write_bytes(data)
    assert store.newest(run)[0].step == 100


def test_faults_from_the_environment(run: Path, tensors, monkeypatch):
    monkeypatch.delenv("SHOAL_FAULT", raising=False)
    assert not faults.arm_from_env()
    # flushes of a save: state, manifest, their folder; then, after the rename, the parent
    for text, step in (("store:fsync:3:eio", 100), ("store:fsync:4:eio", 200), ("store:fsync:5:eio", None)):
        monkeypatch.setenv("SHOAL_FAULT", text)
        assert faults.arm_from_env()
        if step is None:
            store.save(run, 200, tensors(200), {}, {})
            continue
        with pytest.raises(StoreError, match="step-200: cannot be saved: Input/output error"):
            store.save(run, 200, tensors(200), {}, {})
        assert store.newest(run)[0].step == step
    for text in ("store", "store:fsync:x:eio", "store:fsync:0:eio", "store:fsync:1:explode", "a:b:1:eio:more"):
        monkeypatch.setenv("SHOAL_FAULT", text)
        with pytest.raises(ConfigError):
            faults.arm_from_env()


def test_a_fault_strikes_its_own_role_and_point_only():
    faults.arm("store", "write", 2, "raise")
    for role, point in (("store", "write"), ("store", "open"), ("actor", "write")):
        faults.at(role, point)
    with pytest.raises(faults.Fault, match="SHOAL_FAULT=store:write:2:raise"):
        faults.at("store", "write")
    faults.at("store", "write")
    faults.arm("store", "*", 2, "raise", forever=True)
    faults.at("store", "a")
    for point in "bcd":
        with pytest.raises(faults.Fault):
            faults.at("store", point)
    faults.disarm()
    faults.at("store", "e")
