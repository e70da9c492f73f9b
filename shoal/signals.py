"""SIGINT and SIGTERM: the first asks the loop to finish its iteration and save; a second SIGINT leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from shoal.errors import Interrupted

_HANDLED = (signal.SIGINT, signal.SIGTERM)


_interrupted = False


@contextmanager
def start_up() -> Iterator[None]:
    """Remember an interrupt that comes before the main loop listens: an import may swallow the exception it raises."""
    global _interrupted
    _interrupted = False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGINT, _remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def _remember(number: int, frame: object) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


class Signals:
    """While entered, ``received`` holds the number of the first signal that came, else 0.

    A thread watches the wake-up pipe, because Python runs handlers only between two of its own instructions and a compilation
    may take seconds.
    """

    def __init__(self) -> None:
        self.received = 0
        self._active = False

    @property
    def name(self) -> str:
        return signal.Signals(self.received).name

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may handle signals; the caller keeps its own
        if _interrupted:
            raise KeyboardInterrupt
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._old = {number: signal.signal(number, self._heard) for number in _HANDLED}
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._active = True
        threading.Thread(target=self._watch, daemon=True, name="shoal-signals").start()
        return self

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Where waiting is given up inside, leave as the signal would have it: there is nothing to finish yet."""
        try:
            yield
        except Interrupted:
            if self.received == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + self.received) from None

    def _heard(self, number: int, frame: object) -> None:
        self.received = self.received or number

    def _watch(self) -> None:
        interrupts = 0
        while data := os.read(self._read, 16):
            interrupts += data.count(signal.SIGINT)
            if interrupts >= 2:
                os._exit(128 + signal.SIGINT)
        os.close(self._read)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._active:
            return
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._write)  # the watcher reads the end and leaves
        self._active = False
