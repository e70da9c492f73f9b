"""Environments that fail in a worker: what passes is mended to the same bits, what does not stops the run with its first cause."""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from drivers import workers_of

from shoal.errors import EnvError, WorkerError


def descriptors() -> list[str]:
    """What this process has open that workers could have to do with."""
    names = (os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sorted(name.split(":")[0] for name in names if "socket:" in name or "memfd:" in name or "pipe:" in name)


@pytest.fixture(autouse=True)
def _nothing_left():
    gc.collect()  # what earlier tests held goes first
    before = Counter(descriptors())
    yield
    gc.collect()
    assert workers_of(os.getpid()) == []
    assert not Counter(descriptors()) - before


ONCE = {"raise": r"ValueError in step or reset: the pump is dry \(lane \d, environment \d, at step \d+ of chunk \d\)",
        "exit": r"the environment called sys.exit\(7\)", "kill": "killed by SIGKILL", "memory": "out of memory: troubled: MemoryError",
        "raise in reset": r"RuntimeError in step or reset: no way to begin \(lane \d, environment \d, in reset\)",
        "hang": r"no sign of life for 6 s, lane \d, environment \d, at step", "stop": r"no sign of life for 6 s, lane \d",
        "hang in reset": "no sign of life for 6 s, lane .*, in reset"}


@pytest.mark.parametrize("troubles", [("raise", "hang"), pytest.param(tuple(ONCE), marks=pytest.mark.slow)], ids=["two", "all"])
def test_what_passes_is_mended_to_the_same_bits(run, tmp_path, troubles):
    """The first environment that gets so far is in trouble, and none after it."""
    calm = run()
    assert calm.ledger["restarts"] == 0
    for trouble in troubles:
        marker = tmp_path / trouble
        # a busy machine may take a second or two for a step
        done = run(workers=2, env_options={"trouble": trouble, "marker": str(marker)}, step_timeout_s=6.0)
        assert marker.exists(), trouble
        assert (done.sha, done.metrics) == (calm.sha, calm.metrics), trouble
        assert done.ledger["restarts"] == 1 and done.ledger["lost"] == 0, trouble
        (line,) = [line for line in done.said if "started again" in line]
        assert re.search(ONCE[trouble], line) and re.match(r"worker [01] \(life 1, pid \d+, lanes", line), line


ALWAYS = {"raise": (EnvError, r"worker \d \(.*the same 3 times at chunk 1; troubled: ValueError in step or reset: the pump is dry"),
          "exit": (WorkerError, r"the same 3 times at chunk 1; the environment called sys.exit\(7\)"),
          "kill": (WorkerError, "10 failures in a row; killed by SIGKILL"),
          "hang": (WorkerError, "the same 3 times at chunk 1; no sign of life for 6 s, lane ., environment 0, at step 3"),
          "nan reward": (EnvError, r"worker \d .*troubled: reward is not finite at step 3 of environment 0"),
          "nan observation": (EnvError, "troubled: observation is not finite at step 3 of environment 0"),
          "shape": (EnvError, r"troubled: observation from step has shape \(2,\), its space says \(3,\)")}


@pytest.mark.parametrize("trouble", ["raise", "nan reward", "shape"])
def test_what_does_not_pass_stops_the_run(run, trouble, capsys):
    kind, text = ALWAYS[trouble]
    with pytest.raises(kind, match=text):
        run(workers=2, env_options={"trouble": trouble}, step_timeout_s=6.0)
    shown = capsys.readouterr().err  # the traceback, from where it happened
    assert shown.count("Traceback") == (2 if trouble == "raise" else 1) and 'worker.py", line' in shown


@pytest.mark.slow
@pytest.mark.parametrize("trouble", sorted(ALWAYS))
def test_everything_that_does_not_pass_stops_the_run(run, trouble, monkeypatch):
    monkeypatch.setattr("shoal.runtime.supervise.FIRST_DELAY_S", 0.001)
    kind, text = ALWAYS[trouble]
    with pytest.raises(kind, match=text):
        run(workers=2, env_options={"trouble": trouble}, step_timeout_s=6.0)


@pytest.mark.slow
def test_an_environment_that_will_not_close_is_left_behind_and_gone(run):
    begun = time.monotonic()
    done = run(workers=2, env_options={"trouble": "hang in close"})
    assert done.result["steps"] == 640 and time.monotonic() - begun < 60


def test_a_worker_that_cannot_be_started_is_told(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(WorkerError, match="worker 0 .*the same 3 times.*could not be started: No such file or directory"):
        run(workers=2)
