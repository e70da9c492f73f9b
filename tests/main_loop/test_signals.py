"""The first signal finishes the iteration and saves; a second SIGINT leaves at once; what is left can be resumed, to the bit."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from drivers import PATIENCE_S, rows, wait_for

import shoal
from shoal import store


@pytest.mark.parametrize(("env", "steps", "number", "code"), [
    ("cartpole", "192000", signal.SIGTERM, 143), ("CartPole-v1", "32000", signal.SIGINT, 130)], ids=["fused-term", "ported-int"])
def test_stopped_and_resumed(shoal_process, flags, tmp_path, env, steps, number, code):
    args = [env, *flags, "--steps", steps, "--eval-every", "6400", "--checkpoint-every", "0"]
    process = shoal_process("train", "ppo", *args, "--out", "stopped", "--json")
    stopped = tmp_path / "stopped"
    wait_for(process, lambda: rows(stopped) >= 20)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code and "Traceback" not in err
    result = json.loads(out.splitlines()[-1])
    assert result["stopped_by"] == number.name and result["steps"] % 64 == 0 and 0 < result["steps"] < int(steps)
    assert store.newest(stopped)[0].step == result["steps"]  # saved, though checkpoints were off
    again = shoal.resume(stopped).result

    calm = shoal_process("train", "ppo", *args, "--out", "calm", "--json")
    expected = json.loads(calm.communicate(timeout=PATIENCE_S)[0].splitlines()[-1])
    for name in ("params_sha256", "steps", "episodes", "updates", "mean_return", "eval_return"):
        assert again[name] == expected[name], name
    assert (stopped / "metrics.jsonl").read_bytes() == (tmp_path / "calm" / "metrics.jsonl").read_bytes()


def test_a_second_interrupt_leaves_at_once_even_while_compiling(shoal_process, flags, tmp_path, run):
    process = shoal_process("train", "ppo", "cartpole", *flags, "--steps", "640", "--out", "stopped", cold=True)
    line = process.stderr.readline()  # the title: the next thing is the compilation
    assert "cartpole" in line
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # two signals at once are one
    assert process.wait(timeout=PATIENCE_S) == 130
    folder = tmp_path / "stopped"
    assert [path.name for path in store.found(folder)] == ["step-0"] and rows(folder) == 0
    assert shoal.resume(folder).result["params_sha256"] == run(steps=640, who=shoal.PPO(**_algorithm(folder))).sha


def _algorithm(folder: Path) -> dict:
    options = store.read_config(folder)["algorithm"]
    return options | {"hidden": tuple(options["hidden"])}


def test_an_interrupt_during_start_up(shoal_process, flags, tmp_path):
    process = shoal_process("train", "ppo", "cartpole", *flags, "--steps", "640", "--out", "stopped")
    assert process.stdout.readline()  # which preset is used: said before JAX is imported
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and "Traceback" not in err
    folder = tmp_path / "stopped"
    if folder.exists():  # whole or not at all
        assert shoal.resume(folder).result["steps"] == 640
