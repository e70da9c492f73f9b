"""What a part finds that is not a ratio of rates: a line of its own table on ``docs/speed.md``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import table
from benchmarks.contest import PAGE, START, START_S

COLUMNS = ("check", "found", "wanted", "met", "commit", "date")


def train(out: Path, *args: str) -> dict[str, Any]:
    """What ``shoal train … --json`` answers."""
    command = [sys.executable, "-m", "shoal", "train", "ppo", *args, "--device", "cpu", "--json", "--quiet", "--out", str(out)]
    done = subprocess.run(command, cwd=table.ROOT, capture_output=True, text=True, timeout=START_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def check(what: str, found: str, wanted: str, met: bool) -> dict[str, str]:
    print(f"{what}: {found} (wanted {wanted}): {'yes' if met else 'NO'}", flush=True)
    return {"check": what, "found": found, "wanted": wanted, "met": "yes" if met else "no", "commit": table.commit(),
            "date": table.today()}


def put(rows: list[dict[str, str]]) -> bool:
    """Write checks down; whether all are met."""
    table.update(PAGE, START, rows, COLUMNS, ("check",))
    return all(found["met"] == "yes" for found in rows)
