"""Faults on demand: arm one, and the n-th time a role reaches a point it strikes, deterministically.

``arm("store", "fsync", 3, "kill")`` here, or ``SHOAL_FAULT=store:fsync:3:kill`` for a process that calls
``arm_from_env``. The point ``*`` is any point of the role; ``3+`` strikes at the third visit and ever after.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Iterator

from shoal import faultpoint
from shoal.errors import ConfigError, nearest
from shoal.faultpoint import at

__all__ = ["ACTIONS", "VARIABLE", "Fault", "arm", "arm_from_env", "at", "disarm", "line", "record"]

VARIABLE = "SHOAL_FAULT"


class Fault(Exception):
    """What the action ``raise`` raises: a failure that nobody planned for."""


def _kill(where: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(where: str) -> None:
    raise Fault(f"injected at {where}")


def _hang(where: str) -> None:
    while True:
        time.sleep(3600)


def _os_error(number: int) -> Callable[[str], None]:
    def strike(where: str) -> None:
        raise OSError(number, os.strerror(number))

    return strike


ACTIONS: dict[str, Callable[[str], None]] = {
    "kill": _kill,
    "raise": _raise,
    "hang": _hang,
    "eio": _os_error(errno.EIO),
    "enospc": _os_error(errno.ENOSPC),
    "eacces": _os_error(errno.EACCES),
}


def arm(role: str, point: str, nth: int, action: str, *, forever: bool = False) -> None:
    """Strike with ``action`` at the ``nth`` (from 1) visit of ``role`` to ``point``; only then, unless ``forever``.

    One fault is armed at a time; arming again starts counting anew.
    """
    if action not in ACTIONS:
        raise ConfigError(f"fault action {action!r} is unknown{nearest(action, ACTIONS)}")
    if nth < 1:
        raise ConfigError(f"fault nth = {nth}: expected a number of at least 1")
    visits = 0

    def handle(at_role: str, at_point: str) -> None:
        nonlocal visits
        if at_role != role or point not in ("*", at_point):
            return
        visits += 1
        if visits == nth or (forever and visits > nth):
            ACTIONS[action](line(role, point, nth, action, forever=forever))

    faultpoint.install(handle)


def disarm() -> None:
    """Nothing strikes any more."""
    faultpoint.install(None)


def arm_from_env() -> bool:
    """Arm what ``SHOAL_FAULT`` says; False where it is not set."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return False
    match = re.fullmatch(r"([^:]+):([^:]+):([0-9]{1,9})(\+?):([^:]+)", text)
    if match is None:
        raise ConfigError(f"{VARIABLE} = {text!r}: expected role:point:nth:action, such as store:fsync:3:kill")
    role, point, nth, more, action = match.groups()
    arm(role, point, int(nth), action, forever=bool(more))
    return True


def line(role: str, point: str, nth: int, action: str, *, forever: bool = False) -> str:
    """The setting that replays a fault in another process."""
    return f"{VARIABLE}={role}:{point}:{nth}{'+' if forever else ''}:{action}"


@contextlib.contextmanager
def record(role: str) -> Iterator[list[str]]:
    """The points that ``role`` visits inside the block, in order: what there is to strike at."""
    seen: list[str] = []
    faultpoint.install(lambda at_role, at_point: seen.append(at_point) if at_role == role else None)
    try:
        yield seen
    finally:
        disarm()
