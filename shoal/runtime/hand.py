"""One worker as its driver sees it: the process, its channels, and what it was asked for."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shoal.errors import DeadlineError
from shoal.host_lane import CLOSE, PLAY, RESET
from shoal.runtime import supervise
from shoal.runtime.wire import Garbled, Gone, Layout, Line, Pages

_FIELDS: dict[str, dict[str, type]] = {  # of what a worker says
    "ready": {"notes": list, "mode": str}, "layout": {"leaves": list}, "scores": {"first": int, "scores": list},
    "chunk": {"lane": int, "seq": int, "version": int, "at": int, "layout": int},
    "error": {"kind": str, "text": str, "fatal": bool, "trace": str}}


class Hand:
    """Starts a worker, speaks with it, and says what became of it."""

    module = "shoal.runtime.worker"

    def __init__(self, index: int, lanes: tuple[int, ...], log: Path | None):
        self.index, self.lanes, self._log = index, lanes, log
        self.life, self.ready, self.seq, self.received, self.redone = 0, False, -1, 0, 0
        self.owed: set[int] = set()  # lanes whose chunk ``seq`` has been asked for and has not come
        self.plays: dict[int, int] = {}  # episodes of an evaluation that have not been played: from, to
        self._play: dict[str, Any] = {}  # what is to be evaluated
        self.start_at = 0.0  # when to start it (again)
        self.process: subprocess.Popen[bytes] | None = None

    # life

    def start(self, plan: dict[str, Any], fds: tuple[int, ...], state: Pages | None) -> None:
        """A new process; ``plan`` is told to it, with the descriptors of its own channels."""
        ours, theirs = socket.socketpair()
        self.life, self.ready, self.received, self._layouts = self.life + 1, False, 0, []  # type: ignore[var-annotated]
        self.chunks: Any = Pages()
        self._beats: Any = Pages()
        self.beat = self._beats.array("int64", (8,), 0)
        self._oom, self._quiet, self._seen = supervise.oom_kills(), time.monotonic(), ()  # type: ignore[var-annotated]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path if p), "JAX_PLATFORMS": "cpu"}
        env |= dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        own = (theirs.fileno(), self.chunks.fd, self._beats.fd, *([state.fd] if state else []))
        log: Any = None
        if self._log is not None:
            self._log.parent.mkdir(exist_ok=True)
            log = self._log.open("ab")
            log.write(f"--- worker {self.index}, life {self.life}, lanes {list(self.lanes)}\n".encode())
            log.flush()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, str(theirs.fileno())], pass_fds=(*own, *fds), env=env,
                stdin=subprocess.DEVNULL, stdout=log if log else 2, stderr=log, start_new_session=True)
        except OSError:
            self._release()
            ours.close()
            raise
        finally:
            theirs.close()
            if log:
                log.close()
        self.line = Line(ours)
        with contextlib.suppress(Gone, DeadlineError):  # what reads from it will find out
            self.line.send(plan | {"driver": os.getpid(), "index": self.index, "life": self.life, "lanes": list(self.lanes),
                                   "chunks_fd": self.chunks.fd, "beat_fd": self._beats.fd, "state_fd": state.fd if state else -1}, 10.0)

    @property
    def place(self) -> supervise.Place:
        return supervise.Place(self.index, self.life, self.process.pid if self.process else 0, self.lanes, self.seq)

    def stop(self) -> int:
        """End the process now, with whatever it started; its exit status."""
        process, self.process, self.ready = self.process, None, False
        if process is None:
            return 0
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        self.redone += len(self.owed)
        self.line.close()
        self._release()
        return status

    def _release(self) -> None:
        """Let go of shared memory."""
        self.beat = self.beat.copy()
        for pages in (self.chunks, self._beats):
            pages.close()
        self.chunks = self._beats = None

    def end(self) -> None:
        """Ask it to close its environments and leave."""
        with contextlib.suppress(Gone, DeadlineError):  # it will be ended another way
            self.line.send({"is": "end"}, 0.1)

    def left(self, until: float) -> None:
        """Wait until it has left, at most ``until`` some moment, and end it then."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, until - time.monotonic()))
        self.stop()

    # work

    def ask(self, seq: int, lanes: set[int]) -> None:
        self.seq, self.owed = seq, set(lanes)
        self.say(makes=True)

    def play(self, version: int, greedy: bool, waves: list[range]) -> None:
        """Have episodes played for an evaluation."""
        self.plays, self._play = {wave.start: wave.stop for wave in waves}, {"is": "evaluate", "version": version, "greedy": greedy}
        self.say(plays=True)

    def say(self, makes: bool = False, plays: bool = False) -> None:
        """Tell it what is wanted and has not come, if it can hear."""
        self._quiet = time.monotonic()
        with contextlib.suppress(Gone, DeadlineError):  # what reads from it will find out
            if self.ready and makes and self.owed:
                self.line.send({"is": "make", "seq": self.seq, "lanes": sorted(self.owed)}, 1.0)
            if self.ready and plays and self.plays:
                self.line.send(self._play | {"waves": sorted(self.plays.items())}, 1.0)

    def free(self, lane: int) -> None:
        """Say that there is room for another chunk of a lane."""
        self._quiet = time.monotonic()
        self.owed.add(lane)
        with contextlib.suppress(Gone, DeadlineError):  # what reads from it will find out
            self.line.send({"is": "free", "lane": lane}, 1.0)

    def hear(self) -> dict[str, Any] | None:
        """The next message that has come, if one has; raises ``Gone`` at the end of them."""
        message = self.line.receive(0.0)
        if message is None:
            return None
        self._quiet = time.monotonic()
        fields = _FIELDS.get(str(message.get("is")))
        if fields is None or not all(isinstance(message.get(name), kind) for name, kind in fields.items()):
            raise Garbled(f"no message that a worker has: {str(message)[:60]}")
        if message["is"] == "layout":
            self._layouts.append(Layout.read(message["leaves"]))
            return self.hear()
        return message

    def views(self, message: dict[str, Any]) -> list[Any]:
        """The arrays of a chunk, where the worker wrote them."""
        if message["lane"] not in self.lanes or message["at"] < 0 or not 0 <= message["layout"] < len(self._layouts):
            raise Garbled(f"a chunk that nobody can have made: {str(message)[:60]}")
        views = self._layouts[message["layout"]].views(self.chunks, message["at"])
        self.received += 1
        self.owed.discard(message["lane"])
        return views

    @property
    def busy_s(self) -> float:
        """Seconds that this life has spent on chunks."""
        return int(self.beat[5]) * 1e-9 if self.life else 0.0

    @property
    def has_stepped(self) -> bool:
        """Whether an environment of this life has taken a step: acting has been compiled by then."""
        return self.ready and int(self.beat[0]) >= 0

    def is_silent(self, limit_s: float) -> bool:
        """Whether it owes something and has not moved for so long."""
        now, beat = time.monotonic(), tuple(self.beat.tolist())
        if beat != self._seen:
            self._seen, self._quiet = beat, now
        return (not self.ready or bool(self.owed or self.plays)) and now - self._quiet > limit_s

    def whereabouts(self) -> str:
        """What it was last heard to be at."""
        step, env, phase, lane = self.beat.tolist()[:4]
        if not self.ready:
            return "starting up"
        if phase == PLAY:
            return f"environment {env}, at step {step} of an evaluation"
        what = {RESET: "in reset", CLOSE: "in close"}.get(phase, f"at step {max(0, step)} of chunk {self.seq}")
        return f"lane {lane}, environment {env}, {what}"

    def cause(self) -> supervise.Cause:
        """Why its channel ended."""
        while True:
            try:
                message = self.hear()
            except Gone:
                break
            if message is None:
                break
            if message["is"] == "error":
                self.stop()
                return supervise.told(message)
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        return supervise.ended(self.stop(), supervise.oom_kills() - self._oom, self._last_words())

    def _last_words(self) -> str:
        if self._log is None or not self._log.is_file():
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - 2000))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip() and not line.startswith("---")]
        return lines[-1][:200] if lines else ""
