"""The page of what was shown of replay at full size: a row for each proof, as it was last run."""

from __future__ import annotations

from benchmarks import table

PAGE = table.ROOT / "docs" / "replay-proofs.md"
COLUMNS = ("proof", "what was done", "seen", "expected", "met", "commit", "date")
START = """# Replay at full size

What the tests hold at small sizes, done once at the sizes that are promised. z is how many standard deviations Pearson's statistic of
the rows drawn lies above its mean. Rows are written by `SHOAL_DOCS=1 make chaos` and by `python -m benchmarks.oracle`. A commit with
a plus had changes of its own on top.
"""


def write(proof: str, done: str, seen: str, expected: str, met: bool) -> None:
    """Put a proof's row into the page, in the place of its last one."""
    row = {"proof": proof, "what was done": done, "seen": seen, "expected": expected, "met": "yes" if met else "no",
           "commit": table.commit(), "date": table.today()}
    table.update(PAGE, START, [row], COLUMNS, ("proof",))
