"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere; on stderr, since stdout is for results.

A display must never stop a run: when its stream breaks it goes silent.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TextIO

RATE_WINDOW_S = 5.0
LINE_EVERY_S = 5.0
FRAME_EVERY_S = 0.1


class Status(NamedTuple):
    """What there is to show."""

    title: str
    step: int
    total: int | None
    steps_per_s: float  # over the last few seconds; nan while unknown
    elapsed_s: float
    left_s: float  # nan while unknown
    values: dict[str, float]  # returns and losses, newest of each; empty before the first iterations


class _View(Protocol):
    """One way to show it. Any method may raise what its stream raises."""

    every_s: float

    def show(self, status: Status) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


class Progress:
    """Start, update as often as you like, stop. ``total_steps`` is None where the budget is not in steps."""

    def __init__(self, total_steps: int | None, quiet: bool = False, stream: TextIO | None = None, *,
                 clock: Callable[[], float] = time.monotonic, console: Any = None) -> None:
        self._total = total_steps or None
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet or (self._stream is None and console is None)  # stderr itself may be None, in a daemon
        self._clock = clock
        self._console = console
        self._view: _View | None = None
        self._samples: deque[tuple[float, int]] = deque()
        self._values: dict[str, float] = {}
        self._title, self._shown_at, self._fresh = "", -math.inf, False

    def start(self, title: str, step: int = 0, elapsed_s: float = 0.0) -> None:
        """Show the title and where the run begins: not at 0 when it resumes."""
        self._title = title
        self._samples = deque([(elapsed_s, step)])
        if not self._quiet:
            self._try(self._open)

    def update(self, step: int, row: Mapping[str, Any], elapsed_s: float) -> None:
        """Take in where the run stands; ``row`` may be a row of metrics, of an evaluation, or empty."""
        self._samples.append((elapsed_s, step))
        while len(self._samples) > 2 and self._samples[1][0] <= elapsed_s - RATE_WINDOW_S:
            self._samples.popleft()
        for name, value in row.items():
            if (name in ("mean_return", "eval_return") or "loss" in name) and isinstance(value, int | float):
                self._values[name] = float(value)
        self._fresh = True
        if self._view is not None and self._clock() - self._shown_at >= self._view.every_s:
            self._try(self._show)

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._view is not None:
            view = self._view
            self._try(lambda: view.note(text))

    def warn(self, text: str) -> None:
        """A line that must be seen: also when quiet, and before the start."""
        if self._view is not None:
            self.note(text)
        elif self._stream is not None:
            self._try(lambda: _Lines(self._stream).note(text))

    def stop(self) -> None:
        """Show the last state and give the terminal back. May be called twice."""
        if self._view is not None and self._fresh:
            self._try(self._show)
        if self._view is not None:
            self._try(self._view.close)
            self._view = None

    def _open(self) -> None:
        status = self._status()
        if self._console is not None or _is_terminal(self._stream):
            self._view = _Bar(self._stream, self._console)
            self._view.show(status)
        else:
            self._view = _Lines(self._stream)
            self._view.note(self._title)

    def _show(self) -> None:
        self._shown_at, self._fresh = self._clock(), False
        if self._view is not None:
            self._view.show(self._status())

    def _status(self) -> Status:
        (first_s, first), (elapsed_s, step) = self._samples[0], self._samples[-1]
        rate = (step - first) / (elapsed_s - first_s) if elapsed_s > first_s else math.nan
        left_s = max(0, self._total - step) / rate if self._total is not None and rate > 0 else math.nan
        order = {"mean_return": 0, "eval_return": 1}
        names = sorted(self._values, key=lambda name: (order.get(name, 2), name))
        return Status(self._title, step, self._total, rate, elapsed_s, left_s, {name: self._values[name] for name in names})

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (OSError, UnicodeError):
            self._give_up()
        except ValueError:
            if not getattr(self._stream, "closed", False):  # "I/O operation on closed file" has no class of its own
                raise
            self._give_up()

    def _give_up(self) -> None:
        if isinstance(self._view, _Bar):
            self._view.abandon()
        self._view = None


class _Lines:
    """Plain lines, for files, pipes and logs."""

    every_s = LINE_EVERY_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, status: Status) -> None:
        parts = [_steps(status), _rate(status), *_values(status), _left(status)]
        self.note("  ".join(part for part in parts if part))

    def note(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        pass


class _Bar:
    """A live display of two lines, drawn only when told to: no thread runs beside the training."""

    every_s = FRAME_EVERY_S

    def __init__(self, stream: TextIO, console: Any = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console if console is not None else Console(file=stream, highlight=False)
        vars(self._console)["on_broken_pipe"] = _raise_broken_pipe  # rich would end the process here
        # Printing by callbacks and warnings goes above the bar, but what is meant for a file or a pipe is left alone.
        ours = stream is sys.stderr and console is None
        self._live = Live(console=self._console, auto_refresh=False, redirect_stderr=ours,
                          redirect_stdout=ours and _is_terminal(sys.stdout))
        self._live.start()
        self._console.show_cursor(True)  # a run that is killed must not leave the terminal without one

    def show(self, status: Status) -> None:
        self._live.update(_drawing(status), refresh=True)

    def note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text))

    def close(self) -> None:
        self._live.stop()

    def abandon(self) -> None:
        """Leave a broken stream: write nothing more, and give back stdout and stderr."""
        self._console.quiet = True
        with suppress(OSError, ValueError):
            self._live.stop()


def _drawing(status: Status) -> Any:
    """Title, bar and counts on one line, returns and losses below; each cut, never wrapped, where the terminal is narrow."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def line(*parts: tuple[str, str]) -> Text:
        return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")

    counts = "  ".join(part for part in (_steps(status), _rate(status), _left(status)) if part)
    top = Table.grid(padding=(0, 1), expand=status.total is not None)
    top.add_column(no_wrap=True, overflow="ellipsis", max_width=28)
    if status.total is None:
        top.add_column(no_wrap=True, overflow="ellipsis")
        top.add_row(line((status.title, "bold")), line((counts, "cyan")))
    else:
        top.add_column(ratio=1, max_width=40)
        top.add_column(no_wrap=True, overflow="ellipsis")
        bar = ProgressBar(total=status.total, completed=min(status.step, status.total))
        top.add_row(line((status.title, "bold")), bar, line((counts, "cyan")))
    values = _values(status)
    below = line(("  ".join(values), "")) if values else line(("waiting for the first iterations", "dim"))
    return Group(top, below)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):  # not quite a file, or closed
        return False


def _raise_broken_pipe() -> None:
    raise BrokenPipeError


def _steps(status: Status) -> str:
    if status.total is None:
        return f"{status.step:,} steps"
    return f"{status.step:,}/{status.total:,} steps ({100 * status.step // status.total}%)"


def _rate(status: Status) -> str:
    return "" if math.isnan(status.steps_per_s) else f"{status.steps_per_s:,.0f} steps/s"


def _left(status: Status) -> str:
    if status.total is not None and status.step >= status.total:
        return f"took {_duration(status.elapsed_s)}"
    return "" if math.isnan(status.left_s) else f"{_duration(status.left_s)} left"


def _values(status: Status) -> list[str]:
    short = {"mean_return": "return", "eval_return": "eval"}
    return [f"{short.get(name, name)} {_number(value, name)}" for name, value in status.values.items() if not math.isnan(value)]


def _number(value: float, name: str) -> str:
    return f"{value:.1f}" if name.endswith("_return") and 1 <= abs(value) < 1e7 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    """``0:07``, ``12:30``, ``3:05:00``."""
    whole = math.ceil(min(seconds, 1e9))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
