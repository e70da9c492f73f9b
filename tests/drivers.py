"""Runs in processes of their own: what they have written, which workers they have, and waiting for either."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import shoal

PATIENCE_S = 240.0


def start(folder: Path, *args: str, **environment: str) -> subprocess.Popen[str]:
    """``shoal ARGS`` in a folder, from this checkout."""
    path = os.pathsep.join(filter(None, [str(Path(shoal.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen([sys.executable, "-m", "shoal", *args], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=os.environ | {"PYTHONPATH": path} | environment)


def wait_for(process: subprocess.Popen[str], ready_fn: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not ready_fn():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def rows(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def workers_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "shoal.runtime.worker"], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def table_workers_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "shoal.runtime.table_worker"], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def wait_until(ready_fn: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not ready_fn():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def shared_memory() -> set[str]:
    """The names that lie in shared memory."""
    return set(os.listdir("/dev/shm"))


def nothing_more_than(before: set[str]) -> None:
    """Shared memory has no new names, or soon has none. A test beside this one may have one for a moment; what is left behind stays."""
    wait_until(lambda: shared_memory() <= before, 10.0)
