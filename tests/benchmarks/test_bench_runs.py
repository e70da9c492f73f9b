"""The benchmarks measure the real thing: verify's runs are those of the command line, and the GPU's part needs no extras."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from benchmarks import asynchronous, table, training
from shoal import config

_SMALL = {"num_envs": 8, "num_steps": 16, "hidden": (8,), "num_epochs": 1, "num_minibatches": 1, "eval_episodes": 4}


def _run(*command):
    done = subprocess.run([sys.executable, *command], cwd=table.ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_second_seed_in_a_compiled_program_equals_the_command_line(tmp_path):
    first, second = training.train("cartpole", "fused", 1024, [3, 4], **_SMALL)
    flags = [f"--{name.replace('_', '-')}={value[0] if isinstance(value, tuple) else value}" for name, value in _SMALL.items()]
    told = json.loads(_run("-m", "shoal", "train", "ppo", "cartpole", "--steps", "1024", "--seed", "4", "--path", "fused", *flags,
                           "--out", str(tmp_path / "run"), "--json", "--quiet").splitlines()[-1])
    assert (second["params_sha256"], second["eval_return"]) == (told["params_sha256"], told["eval_return"])
    assert second["params_sha256"] != first["params_sha256"]
    assert second["steps"] == told["steps"] == 1024


def test_a_run_that_is_told_to_stop_is_no_result():
    before = signal.getsignal(signal.SIGTERM)

    def stop():
        while signal.getsignal(signal.SIGTERM) is before:  # until the run hears it
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(SystemExit, match="ppo cartpole seed 3: SIGTERM after .* steps; no row is written"):
        list(training.train("cartpole", "ported", 10**9, [3, 4], **_SMALL))


_WITHOUT = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gymnasium", "rich", "safetensors"):
            raise ModuleNotFoundError(f"{name} is not there")

sys.meta_path.insert(0, Absent())
from benchmarks import gpu
print(json.dumps(gpu.measure(16, 8, seconds=0.01, samples=2)))
"""


@pytest.mark.slow
def test_the_gpu_part_runs_without_gymnasium_rich_or_safetensors():
    found = json.loads(_run("-c", _WITHOUT).splitlines()[-1])
    assert (found["num_envs"], found["num_steps"], len(found["samples"])) == (16, 8, 2)
    assert found["steps_per_s"] > 0 and found["compile_s"] > 0


def test_a_row_of_runs_that_wait_for_nobody():
    results = [{"eval_return": score, "steps": 1000, "staleness": {"1": 3, "4": 1}, "ledger": {"dropped": 2}} for score in (500.0, 470.0)]
    row = asynchronous.row("A3C", 2, results)
    assert (row["mean"], row["mean age"], row["dropped"], row["met"]) == ("485.0", "1.8", "4", "yes")
    assert tuple(row) == asynchronous.COLUMNS
    assert asynchronous.row("A3C", 2, results[1:])["met"] == "no"
    for plan in asynchronous.PLANS.values():  # each names a preset that there is
        assert config.resolve({"algo": plan.algo, "env": asynchronous.ENV, "preset": plan.preset})[0].mode == "async"
