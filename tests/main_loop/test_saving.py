"""Checkpoints of a run: when they are made changes nothing, and what goes wrong with them is said and survived."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

import shoal
from shoal import Callback, store
from shoal.errors import ShoalError, StoreError
from shoal.testing import faults

KINDS = pytest.mark.parametrize(("env", "path"), [("cartpole", "fused"), ("CartPole-v1", "ported")], ids=["fused", "ported"])


def damage(path) -> None:
    """One bit of the state, turned."""
    file = path / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@KINDS
def test_cadence_changes_no_bit(run, env, path):
    calm = run(env, path=path, steps=960, eval_every=192, checkpoint_every="0")
    assert [p.name for p in store.found(calm.folder)] == ["step-960", "step-0"]
    for every in ("1", "200", "0.001s"):
        saved = run(env, path=path, steps=960, eval_every=192, checkpoint_every=every)
        assert saved.sha == calm.sha
        assert (saved.folder / "metrics.jsonl").read_bytes() == (calm.folder / "metrics.jsonl").read_bytes()
        (one, _), (two, _) = store.newest(saved.folder), store.newest(calm.folder)
        assert store.sha256(one.tensors) == store.sha256(two.tensors)


def test_steps_of_the_cadence_and_what_is_kept(run):
    class Watch(Callback):
        seen: list[int] = []

        def on_checkpoint(self, loop, path):
            self.seen.append(loop.step)

    done = run(steps=960, checkpoint_every="200", keep=2, eval_every=192, callbacks=(Watch(),))
    assert Watch.seen == [256, 448, 640, 832, 960, 960]  # the first boundaries at or after 200, 400, 600, 800; the end, the score
    assert [p.name for p in store.found(done.folder)] == ["step-960", "step-832"]
    scores = done.evaluations()
    first_best = max(scores, key=lambda pair: (pair[1], -pair[0]))[0]
    assert [p.name for p in store.found(done.folder, "best")] == [f"best-{first_best}"]
    assert store.best(done.folder)[0].meta["counters"]["step"] == first_best
    assert not list((done.folder / "checkpoints").glob(".tmp-*"))


@KINDS
def test_a_damaged_newest_is_reported_and_the_previous_used(run, env, path, capfd):
    calm = run(env, path=path, steps=960, eval_every=192)
    done = run(env, path=path, steps=640, checkpoint_every="192", eval_every=192)
    kept = int(store.found(done.folder)[1].name.split("-")[1])  # the one before the last
    damage(done.folder / "checkpoints" / "step-640")
    capfd.readouterr()
    again = run(env, path=path, steps=960, eval_every=192, out=done.folder)
    err = capfd.readouterr().err
    assert "skipped damaged step-640" in err and "sha256" in err
    assert again.sha == calm.sha
    assert (again.folder / "metrics.jsonl").read_bytes() == (calm.folder / "metrics.jsonl").read_bytes()
    assert (calm.result["steps_again"], again.result["steps_again"]) == (0, 640 - kept)


def test_all_damaged_is_an_error_and_not_a_fresh_start(run):
    done = run(steps=640, checkpoint_every="192")
    for path in store.found(done.folder):
        (path / "MANIFEST.json").write_text("{}")
    before = sorted(p.name for p in (done.folder / "checkpoints").iterdir())
    with pytest.raises(StoreError, match="every checkpoint of .* is damaged"):
        shoal.resume(done.folder, steps=64)
    assert sorted(p.name for p in (done.folder / "checkpoints").iterdir()) == before


class FullDisk(Callback):
    """No space left from the first iteration on, until ``until``."""

    def __init__(self, until: int) -> None:
        self.until, self.saved = until, []

    def on_iteration_end(self, loop, iteration, result):
        if iteration == 0:
            faults.arm("store", "write", 1, "enospc", forever=True)
        if iteration == self.until:
            faults.disarm()

    def on_checkpoint(self, loop, path):
        self.saved.append(loop.step)


def test_a_full_disk_stops_no_training_and_a_later_save_works(run, capfd):
    calm = run(steps=640)
    disk = FullDisk(until=6)
    done = run(steps=640, checkpoint_every="64", callbacks=(disk,))
    err = capfd.readouterr().err
    assert err.count("could not save") == 6 and "No space left on device" in err
    assert disk.saved == [448, 512, 576, 640, 640]
    assert done.sha == calm.sha
    assert not list((done.folder / "checkpoints").glob(".tmp-*"))


def test_a_disk_that_stays_full_is_an_error_at_the_end(run):
    with pytest.raises(StoreError, match="No space left on device"):
        run(steps=640, checkpoint_every="64", callbacks=(FullDisk(until=99),))


def test_metrics_that_cannot_be_written_wait(run, capfd):
    """The limit on file sizes is a real refusal of the kernel, and strikes the metric files, which have no fault points."""
    calm = run(steps=640)
    capfd.readouterr()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Limit(Callback):
        def on_iteration_start(self, loop, iteration):
            if iteration == 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(loop.folder / "metrics.jsonl") + 10, hard))
            if iteration == 6:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    try:
        done = run(steps=640, callbacks=(Limit(),))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "metrics.jsonl: cannot be written: File too large" in capfd.readouterr().err
    assert (done.folder / "metrics.jsonl").read_bytes() == (calm.folder / "metrics.jsonl").read_bytes()


def test_a_torn_row_of_timing_does_not_stop_a_resume(run):
    done = run(steps=320)
    with open(done.folder / "timing.jsonl", "a") as file:
        file.write('{"step": 38')
    assert run(steps=640, out=done.folder).result["steps"] == 640
    text = (done.folder / "timing.jsonl").read_text()
    assert '{"step": 38{' not in text and text.endswith("\n")


def test_one_process_writes_a_run(run):
    done = run(steps=64)
    code = "import sys; from shoal import store\nwith store.lock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code, str(done.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="is being written by another process"):
            run(steps=128, out=done.folder)
    finally:
        holder.communicate()
    assert run(steps=128, out=done.folder).result["steps"] == 128


def test_a_checkpoint_of_another_plan_is_refused(run):
    done = run(steps=64)
    with pytest.raises(ShoalError, match="num_envs was 4 and is 8 now"):
        run(steps=128, out=done.folder, num_envs=8)
