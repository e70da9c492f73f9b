"""Drivers ended at random moments, by every signal, once and twice: nothing is left behind, no traceback is shown, the run is whole."""

from __future__ import annotations

import random
import secrets
import signal
import subprocess
import time
from pathlib import Path

import fault_page
import pytest
from drivers import PATIENCE_S, nothing_more_than, rows, shared_memory, start, wait_for

from shoal import store

ARGS = ["train", "ppo", "CartPole-v1", "--runtime", "processes", "--workers", "2", "--num-envs", "4", "--lane-envs", "2",
        "--num-steps", "16", "--num-minibatches", "2", "--num-epochs", "2", "--hidden", "8", "--seed", "3", "--preset", "none",
        "--eval-episodes", "4", "--eval-every", "1280", "--log-every", "64", "--checkpoint-every", "640", "--steps", "6400000", "--json"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ACTIONS = {signal.SIGINT: "interrupt", signal.SIGTERM: "terminate", signal.SIGKILL: "kill"}
MOMENTS = ("start-up", "running", "saving", "evaluating")
TRIALS, PARTS = 50, 5


def marked(mark: str) -> list[int]:
    """Processes that have ``mark`` in their environment: the driver's and all that came of it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it is over
            continue
    return found


def end(folder: Path, moment: str, number: int, twice: bool, draw: random.Random, replay: str) -> tuple[subprocess.Popen[str], str]:
    """A driver that a signal ended, and what it wrote to stderr."""
    mark, scratch = f"shoal-trial-{secrets.token_hex(8)}", folder / "tmp"
    scratch.mkdir()
    nth = {"saving": draw.randint(40, 90), "evaluating": draw.randint(1, 3)}.get(moment, 0)
    fault = f"{'store:*' if moment == 'saving' else 'driver:evaluate'}:{nth}:{ACTIONS[signal.Signals(number)]}"
    driver = start(folder, *ARGS, "--out", "run", SHOAL_TRIAL=mark, TMPDIR=str(scratch), **({"SHOAL_FAULT": fault} if nth else {}))
    if moment == "start-up":
        wait_for(driver, lambda: bool(marked(mark)))
        time.sleep(draw.uniform(0.05, 4.0))
    elif moment == "running":
        wait_for(driver, lambda: rows(folder / "run") >= 3)
        time.sleep(draw.uniform(0.0, 0.5))
    if not nth:
        driver.send_signal(number)
    if twice:
        if nth:
            wait_for_quietly(driver, lambda: rows(folder / "run") >= 1)
        time.sleep(draw.uniform(0.02, 0.5))
        driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=PATIENCE_S)
    until = time.monotonic() + 5.0
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, f"{replay}: processes {left} are left"
    assert not list(scratch.iterdir()), f"{replay}: {list(scratch.iterdir())} are left"
    return driver, err


def wait_for_quietly(driver: subprocess.Popen[str], ready_fn) -> None:
    while driver.poll() is None and not ready_fn():
        time.sleep(0.01)


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.slow) for part in range(PARTS)])
def test_nothing_is_left_behind(tmp_path: Path, part: int):
    shared, ended = shared_memory(), []
    for trial in range(part, TRIALS, PARTS):
        draw = random.Random(1000 + trial)
        moment, number = MOMENTS[trial // PARTS % len(MOMENTS)], SIGNALS[trial % len(SIGNALS)]
        twice = number == signal.SIGINT and draw.random() < 0.4
        replay = f"trial {trial}: {number.name}{' twice' if twice else ''} while {moment}"
        folder = tmp_path / str(trial)
        folder.mkdir()
        driver, err = end(folder, moment, number, twice, draw, replay)
        code = driver.returncode
        expected = {signal.SIGINT: (130,), signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15) if moment == "start-up" else (143,)}[number]
        assert code in expected, f"{replay}: exit code {code}\n{err}"
        assert number == signal.SIGKILL or "Traceback" not in err, f"{replay}\n{err}"
        if (folder / "run").exists():  # whole or not at all
            point, skipped = store.newest(folder / "run")
            assert not skipped and (moment == "start-up" or twice or number == signal.SIGKILL or point.step > 0), f"{replay}: {skipped}"
        else:
            assert moment == "start-up", replay
        ended.append(f"{number.name}{' ×2' if twice else ''} {moment}")
    nothing_more_than(shared)
    fault_page.write("F9", "SIGINT, SIGTERM, SIGKILL, Ctrl-C twice", f"driver, trials {part}, {part + PARTS} … of {TRIALS}",
                     "0 left after 5 s; no traceback", f"0 left: {', '.join(ended)}", len(ended))
