"""The page of faults: what was done to runs on worker processes, what should have followed, and what did."""

from __future__ import annotations

import fcntl
import os

from benchmarks import table

PAGE = table.ROOT / "docs" / "faults.md"
COLUMNS = ("id", "fault", "where", "expected", "found", "trials", "commit", "date")
START = """# Faults of runs on worker processes

Each row is a fault that a test makes, on purpose, in a run with `--runtime processes`; what should follow; and what did when it was last
run. R: the run recovers, in step to the same bits as a run that nothing happened to. D: it goes on with less, and counts it. S: it stops,
says why, and can be resumed. F1 to F12 are what is asked of the whole: fault cells (F1), kills of workers (F2), of drivers (F3, in
[chaos.md](chaos.md)), long runs (F8), what is left behind (F9), learning under fire (F10), numbers that are none (F11), data that would
be code (F12). A fault at a named point is replayed by one line, `SHOAL_FAULT=…`: [processes.md](processes.md#faults-on-demand).

Rows are written by `SHOAL_DOCS=1 make chaos`. A commit with a plus had changes of its own on top. A row without trials names the test that
holds it, which runs with `make test` or `make chaos`. A row that failed stays, even where tests are made otherwise since.
"""


def held(name: str, fault: str, where: str, expected: str, file: str, test: str) -> None:
    """A row for what a test elsewhere holds: it is there, and how it ended is its own to say."""
    assert f"def {test}(" in (table.ROOT / file).read_text()
    write(name, fault, where, expected, f"held by `{test}`", "–")


def write(name: str, fault: str, where: str, expected: str, found: str, trials: int | str) -> None:
    """Put a fault's row into the page, in the place of its last one; several processes may do so at once."""
    if not os.environ.get("SHOAL_DOCS"):
        return
    row = {"id": name, "fault": fault, "where": where, "expected": expected, "found": found, "trials": str(trials),
           "commit": table.commit(), "date": table.today()}
    folder = table.ROOT / ".pytest_cache"
    folder.mkdir(exist_ok=True)
    with open(folder / "faults.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table.update(PAGE, START, [row], COLUMNS, ("id", "fault", "where"))
