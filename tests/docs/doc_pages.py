"""The pages as data: their snippets, run in order, and their tables of fields, written from the code.

Run as a program with a page, it runs the page's snippets in the current folder; without one, it writes the tables again.
A fence with a file name (``python my_world.py``) is written to that file instead of being run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from shoal import cli, config, fields

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXEMPT = ("make train", "make test", "make lint", "python -m pip install -e .")  # set-up: this test runs inside its result
_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"(<!-- fields: (\w+)(?: beyond (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)


class Snippet(NamedTuple):
    language: str
    file: str | None
    code: str
    line: int  # of its first line, on the page


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [Snippet(found[1], found[2], found[3], text[: found.start(3)].count("\n") + 1) for found in _FENCE.finditer(text)]


def commands(snippet: Snippet) -> list[str]:
    """The command lines of a shell snippet, without comments and without what is exempt."""
    lines = [line.split(" #")[0].strip() for line in snippet.code.splitlines()]
    return [line for line in lines if line and line not in EXEMPT]


def runnable() -> list[Path]:
    """The pages with something to run."""
    return [page for page in PAGES if any(s.language == "python" or (s.language == "bash" and commands(s)) for s in snippets(page))]


def assert_runs(page: Path, said: str) -> None:
    """Every snippet of the page was run, by what the program said."""
    ran = re.findall(rf"^ran {re.escape(page.name)}:(\d+)$", said, re.MULTILINE)
    assert [int(line) for line in ran] == [snippet.line for snippet in snippets(page)]


def run_page(page: Path) -> None:
    """Every snippet of a page: Python in one namespace, `shoal` through its own entry, both in the current folder."""
    sys.path.insert(0, os.getcwd())
    names: dict[str, Any] = {"__name__": "__page__"}
    for snippet in snippets(page):
        where = f"{page.name}:{snippet.line}"
        if snippet.file:
            Path(snippet.file).parent.mkdir(parents=True, exist_ok=True)
            Path(snippet.file).write_text(snippet.code, encoding="utf-8")
        elif snippet.language == "python":
            exec(compile("\n" * (snippet.line - 1) + snippet.code, str(page), "exec"), names)
        elif snippet.language == "bash":
            for line in commands(snippet):
                words = [word for word in shlex.split(line) if word != "PYTHONPATH=."]  # this folder is on the path already
                if words[0] == "mpiexec":
                    own = (sys.executable, "-m", "shoal")
                    words[0] = str(Path(sys.executable).with_name("mpiexec"))
                    code = subprocess.run([part for word in words for part in (own if word == "shoal" else (word,))],
                                          timeout=300).returncode
                elif words[0] == "shoal":
                    code = cli.main(words[1:])
                else:
                    raise SystemExit(f"{where}: cannot run {line!r}")
                if code:
                    raise SystemExit(f"{where}: exit code {code} from {line!r}")
        print(f"ran {where}", flush=True)


def field_table(name: str, beyond: str | None = None) -> str:
    """The fields of the plan, or of an algorithm, as a table; ``beyond`` another, those that it has not or has otherwise."""
    known = fields.plan_fields() if name == "plan" else config.fields("algo", name)
    if beyond:
        known = [item for item in known if item not in config.fields("algo", beyond)]
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for item in known:
        if name == "plan" and item.name in ("algo", "env", "algorithm"):
            continue
        default = "" if item.default is fields.COMPUTED else f"`{_written(item.default)}`"
        help_text = " ".join(item.help.split()).replace("|", "\\|")
        rows.append(f"| `{item.name}` | {item.type.split('[')[0]} | {default} | {help_text} |")
    return "\n".join(rows) + "\n"


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


def with_tables(text: str) -> str:
    return _TABLE.sub(lambda found: found[1] + field_table(found[2], found[3]) + found[4], text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_page(Path(sys.argv[1]))
    else:
        for each in PAGES:
            old = each.read_text(encoding="utf-8")
            if with_tables(old) != old:
                each.write_text(with_tables(old), encoding="utf-8")
