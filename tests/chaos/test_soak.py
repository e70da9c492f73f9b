"""A long run with a fault every five seconds: what the driver holds does not grow, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fault_page
import numpy as np
import pytest
from drivers import PATIENCE_S, nothing_more_than, rows, shared_memory, start, wait_for, workers_of

SOAK_S = float(os.environ.get("SHOAL_SOAK_S", "600"))
EVERY_S, TIMEOUT_S, WORKERS = 5.0, 3, 2
STARTING = 10  # descriptors of a worker's channels, its log and its start
ARGS = ["train", "ppo", "shaky", "--plugin", "shaky_worlds", "--runtime", "processes", "--workers", str(WORKERS), "--num-envs", "8",
        "--lane-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--num-epochs", "2", "--hidden", "16", "--seed", "3",
        "--preset", "none", "--eval-episodes", "4", "--eval-every", "12800", "--log-every", "6400", "--checkpoint-every", "6400",
        "--steps", "640000000", "--step-timeout-s", str(TIMEOUT_S), "--json"]


class Held(NamedTuple):
    """What a process has."""

    at: float
    memory: float  # MB that are its own
    descriptors: int
    threads: int
    children: int
    shared: int  # descriptors of shared memory


def held(pid: int, begun: float) -> Held:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(path))
        except OSError:
            continue
    return Held(time.monotonic() - begun, int(status["RssAnon"].split()[0]) / 1024, len(links), int(status["Threads"]),
                len(workers_of(pid)), sum("memfd:" in link for link in links))


def faults(pid: int, marker: Path, draw: random.Random) -> Iterator[str]:
    """Kill a worker, stop one, have an environment raise, in turn."""
    while True:
        for kind, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP), ("raise", 0)):
            found = workers_of(pid)
            if number and found:
                os.kill(draw.choice(found), number)
            else:
                kind = "raise"
                marker.touch()
            yield kind


@pytest.mark.slow
def test_what_a_driver_holds_does_not_grow(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]))
    shm, marker, made = shared_memory(), tmp_path / "raise", []
    driver = start(tmp_path, *ARGS, "--out", "run", "--env-option", f"marker={marker}")
    wait_for(driver, lambda: rows(tmp_path / "run") >= 2)
    begun, seen = time.monotonic(), []
    strike = faults(driver.pid, marker, random.Random(1))
    while (now := time.monotonic() - begun) < SOAK_S:
        if now >= EVERY_S * len(made):
            made.append(next(strike))
        assert driver.poll() is None, f"seed 1, after {made}: {driver.communicate()}"
        seen.append(held(driver.pid, begun))
        time.sleep(0.5)
    driver.send_signal(signal.SIGTERM)
    out, err = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 143, err
    result = json.loads(out.splitlines()[-1])
    text = summary(seen, made, result)
    assert_flat(seen, text)
    nothing_more_than(shm)
    ledger = result["ledger"]
    assert ledger["produced"] == ledger["learned"] + ledger["in_flight"] and ledger["lost"] == 0, text
    assert ledger["restarts"] >= 0.6 * len(made), text  # a worker that starts may be struck again before it is noticed
    fault_page.write("F8", f"SIGKILL, SIGSTOP, raise in turn, every {EVERY_S:g} s", f"actor, env; {SOAK_S:g} s", "flat", text, len(made))


def summary(seen: list[Held], made: list[str], result: dict) -> str:
    early, late = halves(seen)
    parts = [f"{name} {np.mean([getattr(x, name) for x in early]):.1f} → {np.mean([getattr(x, name) for x in late]):.1f}"
             for name in ("memory", "descriptors", "threads", "children", "shared")]
    return (f"{', '.join(parts)} (means of the second and the last third; memory in MB, slope {slope(seen):+.2f} MB/min); "
            f"{len(made)} faults, {result['ledger']['restarts']} restarts, {result['ledger']['lost']} lost, {result['steps']:,} steps")


def halves(seen: list[Held]) -> tuple[list[Held], list[Held]]:
    """The second and the last third: the first warms up."""
    third = len(seen) // 3
    return seen[third:2 * third], seen[2 * third:]


def slope(seen: list[Held]) -> float:
    """MB a minute, after the first third."""
    kept = seen[len(seen) // 3:]
    return float(np.polyfit([x.at / 60 for x in kept], [x.memory for x in kept], 1)[0])


def assert_flat(seen: list[Held], text: str) -> None:
    early, late = halves(seen)
    for name in ("descriptors", "threads", "children", "shared"):
        # one more for each fault would show in the median; a worker that is being started holds a few for a moment
        assert np.median([getattr(x, name) for x in late]) <= np.median([getattr(x, name) for x in early]), f"{name}: {text}"
        assert max(getattr(x, name) for x in seen) <= np.median([getattr(x, name) for x in early]) + STARTING, f"{name}: {text}"
    grown = np.median([x.memory for x in late]) - np.median([x.memory for x in early])
    assert grown <= 0.02 * np.median([x.memory for x in early]), f"memory: {text}"
    assert max(x.children for x in seen) <= WORKERS, text
