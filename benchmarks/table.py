"""Tables in Markdown that are filled part by part: a row that was not measured now stays as it was."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of the table under ``columns``; none where the text has no such table."""
    lines = text.splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("|") and _cells(line) == list(columns)]
    if not heads:
        return []
    rows = []
    for line in lines[heads[0] + 2:]:
        cells = _cells(line)
        if not line.startswith("|") or len(cells) != len(columns):
            break
        rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def merge(old: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]], keys: Sequence[str]) -> list[dict[str, str]]:
    """``old`` in its order with the rows of ``new`` in the place of those with the same ``keys``, and the others behind."""
    def key(row: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(row[name] for name in keys)

    rows = {key(row): dict(row) for row in old}
    rows.update({key(row): dict(row) for row in new})
    return list(rows.values())


def write(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> str:
    """Rows as a Markdown table."""
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *(line([row[name] for name in columns]) for row in rows)])


def replace(text: str, table: str, columns: Sequence[str]) -> str:
    """``text`` with its table under ``columns`` replaced, or with ``table`` at its end."""
    lines = text.splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("|") and _cells(line) == list(columns)]
    if not heads:
        return text.rstrip("\n") + "\n\n" + table + "\n"
    end = heads[0]
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "\n".join([*lines[:heads[0]], *table.splitlines(), *lines[end:]]) + "\n"


def update(path: Path, start: str, rows: Sequence[Mapping[str, str]], columns: Sequence[str], keys: Sequence[str], words: str = ""
           ) -> list[dict[str, str]]:
    """Put ``rows`` into the table of ``path``, which begins as ``start`` where it does not exist; all rows it then has.

    A table that is new comes behind ``words``.
    """
    text = path.read_text() if path.exists() else start
    old = read(text, columns)
    text += f"\n{words}" if words and not old else ""
    merged = merge(old, rows, keys)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(replace(text, write(merged, columns), columns))
    return merged


def commit() -> str:
    """The commit measured; a plus where the package differs from it."""
    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "shoal") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def today() -> str:
    return time.strftime("%Y-%m-%d")
