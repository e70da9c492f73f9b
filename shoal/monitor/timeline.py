"""The timeline of a run, read back: as a file that trace viewers open, and as a table of where the time went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import MissingError, StoreError
from shoal.runtime.trace import FOLDER

PICTURE = "trace.json"


class Span(NamedTuple):
    """One thing that one process did."""

    who: str  # role and number
    life: int
    pid: int
    name: str
    begun: int  # ns
    took: int  # ns
    about: dict[str, Any]


class Share(NamedTuple):
    """What one kind of work came to."""

    who: str
    name: str
    times: int
    seconds: float
    share: float  # of the time from the first span of all to the last


def read(folder: Path) -> list[Span]:
    """All spans of a run, in order; a line that a killed process left half written is passed over."""
    files = sorted((folder / FOLDER).glob("*.jsonl"))
    if not files:
        raise MissingError(f"{str(folder)!r} has no timeline; train with --trace to have one written")
    spans = []
    for file in files:
        for line in file.read_text(errors="replace").splitlines():
            try:
                row = json.loads(line)
                spans.append(Span(f"{row.pop('role')} {row.pop('index')}", int(row.pop("life")), int(row.pop("pid")), str(row.pop("name")),
                                  int(row.pop("at")), int(row.pop("ns")), row))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
    return sorted(spans, key=lambda span: span.begun)


def shares(spans: list[Span]) -> list[Share]:
    """Where the time went, by process and kind of work; what is left of a process's time is ``idle``."""
    first, last = min(s.begun for s in spans), max(s.begun + s.took for s in spans)
    total, out = max(last - first, 1), []
    for who in sorted({span.who for span in spans}):
        own = [span for span in spans if span.who == who]
        kinds = {name: [s.took for s in own if s.name == name] for name in dict.fromkeys(s.name for s in own)}
        for name, took in sorted(kinds.items(), key=lambda item: -sum(item[1])):
            out.append(Share(who, name, len(took), sum(took) * 1e-9, sum(took) / total))
        rest = total - sum(span.took for span in own)
        out.append(Share(who, "idle", 0, max(0, rest) * 1e-9, max(0.0, rest / total)))
    return out


def lines(found: list[Share]) -> list[str]:
    """The table, for a reader."""
    head = f"{'who':<12}{'what':<12}{'times':>9}{'seconds':>11}{'share':>9}"
    return [head, *(f"{s.who:<12}{s.name:<12}{s.times or '':>9}{s.seconds:>11.3f}{s.share:>8.1%}" for s in found)]


def draw(folder: Path, spans: list[Span]) -> Path:
    """Write the file that Perfetto and Chrome's tracing open: a row for each process."""
    first = min(span.begun for span in spans)
    pids = {who: number for number, who in enumerate(sorted({span.who for span in spans}))}
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": number, "args": {"name": who}}
                                    for who, number in pids.items()]
    events += [{"name": span.name, "ph": "X", "ts": (span.begun - first) / 1000, "dur": span.took / 1000, "pid": pids[span.who],
                "tid": span.life, "args": span.about | {"pid": span.pid}} for span in spans]
    path = folder / PICTURE
    try:
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
    return path
