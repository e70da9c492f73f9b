"""Progress: few plain lines for a log, a bar for a person, and silence when the stream breaks."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shoal.monitor.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drive(progress: Progress, clock: Clock, seconds: int, steps_per_s: int = 1000) -> None:
    for second in range(1, seconds + 1):
        clock.now += 1.0
        progress.update(second * steps_per_s, {"mean_return": 10.0 * second, "policy_loss": -0.125, "step": 7}, float(second))


def test_plain_lines_are_first_then_every_five_seconds_then_last() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(12_000, stream=stream, clock=clock)
    progress.start("ppo on cartpole")
    drive(progress, clock, 12)
    progress.stop()
    progress.stop()
    assert stream.getvalue().splitlines() == [
        "ppo on cartpole",
        "1,000/12,000 steps (8%)  1,000 steps/s  return 10.0  policy_loss -0.125  0:11 left",
        "6,000/12,000 steps (50%)  1,000 steps/s  return 60.0  policy_loss -0.125  0:06 left",
        "11,000/12,000 steps (91%)  1,000 steps/s  return 110.0  policy_loss -0.125  0:01 left",
        "12,000/12,000 steps (100%)  1,000 steps/s  return 120.0  policy_loss -0.125  took 0:12",
    ]


def test_the_last_line_is_not_printed_twice() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(6000, stream=stream, clock=clock)
    progress.start("run")
    drive(progress, clock, 6)
    progress.stop()
    assert [line[:5] for line in stream.getvalue().splitlines()] == ["run", "1,000", "6,000"]


def test_rate_is_of_the_last_seconds_and_a_resume_does_not_inflate_it() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(None, stream=stream, clock=clock)
    progress.start("resumed", step=1_000_000, elapsed_s=50.0)
    for second, step in ((51, 1_000_100), (52, 1_000_200), (60, 1_000_300), (66, 1_012_300)):
        clock.now += 10.0
        progress.update(step, {}, float(second))
    progress.stop()
    assert stream.getvalue().splitlines()[1:] == ["1,000,100 steps  100 steps/s", "1,000,200 steps  100 steps/s",
                                                  "1,000,300 steps  12 steps/s", "1,012,300 steps  2,000 steps/s"]


def test_notes_are_lines_and_an_evaluation_stays_in_view() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(None, stream=stream, clock=clock)
    progress.start("run")
    progress.update(10, {"eval_return": 431.25, "mean_return": None, "value_loss": float("nan")}, 0.0)
    progress.note("evaluation at 10: 431.2")
    clock.now += 6
    progress.update(20, {"mean_return": 0.015}, 0.0)
    progress.stop()
    assert stream.getvalue() == "run\n10 steps  eval 431.2\nevaluation at 10: 431.2\n20 steps  return 0.015  eval 431.2\n"


def test_quiet_and_absent_streams_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", None)
    for progress in (Progress(10, quiet=True, stream=stream, clock=clock), Progress(10, clock=clock)):
        progress.start("run")
        progress.note("note")
        drive(progress, clock, 3)
        progress.stop()
    assert stream.getvalue() == ""


class Broken(io.StringIO):
    def __init__(self, after: int, error: Exception) -> None:
        super().__init__()
        self.after, self.error = after, error

    def write(self, text: str) -> int:
        self.after -= 1
        if self.after < 0:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "Input/output error")])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_broken_stream_never_stops_the_run(after: int, error: Exception, terminal: bool) -> None:
    clock, stream, streams = Clock(), Broken(after, error), (sys.stdout, sys.stderr)
    console = Console(force_terminal=True, file=stream, width=80) if terminal else None
    progress = Progress(9000, stream=stream, clock=clock, console=console)
    progress.start("run")
    drive(progress, clock, 30)
    progress.note("note")
    progress.stop()
    assert stream.after < 0 and (sys.stdout, sys.stderr) == streams


def test_a_closed_stream_never_stops_the_run() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(9000, stream=stream, clock=clock)
    progress.start("run")
    stream.close()
    drive(progress, clock, 20)
    assert progress._view is None  # it gave up showing, and nothing was raised
    progress.stop()


@pytest.mark.parametrize("width", [4, 20, 40, 80, 200])
@pytest.mark.parametrize("total", [8000, None])
def test_the_bar_fits_the_terminal_and_shows_the_numbers(width: int, total: int | None) -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(force_terminal=True, file=stream, width=width, height=20, color_system=None, legacy_windows=False)
    progress = Progress(total, stream=stream, clock=clock, console=console)
    progress.start("ppo on cartpole")
    drive(progress, clock, 4)
    shown = stream.getvalue()
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "a run killed now leaves the terminal its cursor"
    progress.note("note")
    progress.stop()
    text = stream.getvalue()
    plain = text.replace("\r", "\n")
    for control in ("[2K", "[1A", "[?25l", "[?25h"):
        plain = plain.replace("\x1b" + control, "")
    assert "\x1b" not in plain and max(map(len, plain.splitlines())) <= width
    if width >= 80:
        last = plain[plain.rindex("ppo on cartpole") :]
        assert "4,000" in last and "1,000 steps/s" in last and "return 40.0" in last and "policy_loss -0.125" in last
        assert ("0:04 left" in last) == (total is not None)
        assert "note\n" in plain


def test_frames_are_limited_however_often_it_is_updated() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(1000, clock=clock, console=Console(force_terminal=True, file=stream, width=80))
    progress.start("run")
    for i in range(1000):
        clock.now += 0.001
        progress.update(i, {}, i / 1000)
    progress.stop()
    assert 10 <= stream.getvalue().count("steps (") <= 14


SCRIPT = """
import sys
from shoal.monitor.progress import Progress
progress = Progress(2000)
progress.start("title")
assert "jax" not in sys.modules and ("rich" in sys.modules) == sys.stderr.isatty()
for i in range(1, 5):
    progress.update(500 * i, {"mean_return": 1.5 * i}, 1.0 * i)
print("from a callback")
progress.stop()
print("result")
"""


@pytest.mark.parametrize("no_colour", [False, True])
def test_on_a_terminal_stdout_stays_clean(no_colour: bool) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": str(Path(__file__).parents[2])}
    env.pop("NO_COLOR", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env | ({"NO_COLOR": "1"} if no_colour else {}), stderr=theirs,
                          stdout=subprocess.PIPE, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 0, shown
    assert done.stdout == b"from a callback\nresult\n"
    assert "2,000/2,000 steps (100%)" in shown and "return 6.0" in shown
    assert ("\x1b[36m" in shown) != no_colour


def test_off_a_terminal_rich_is_not_even_imported() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"from a callback\nresult\n"
    assert done.stderr.decode().splitlines() == ["title", "500/2,000 steps (25%)  500 steps/s  return 1.5  0:03 left",
                                                 "2,000/2,000 steps (100%)  500 steps/s  return 6.0  took 0:04"]
