"""Faults on demand: arm one, and the n-th time a role reaches a point it strikes, deterministically.

``arm("store", "fsync", 3, "kill")`` here, or ``SHOAL_FAULT=store:fsync:3:kill`` for a process that calls
``arm_from_env``. The point ``*`` is any point of the role; ``3+`` strikes at the third visit and ever after.

Workers arm what the driver's environment says: roles ``worker`` and ``env`` are every worker's, ``worker1`` and ``env1`` those of
worker 1. A worker that is started again is not struck again, except by ``3+``, which strikes in every life. ``POINTS`` has them all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from shoal import faultpoint
from shoal.errors import ConfigError, nearest
from shoal.faultpoint import at

__all__ = ["ACTIONS", "POINTS", "VARIABLE", "Fault", "Struck", "arm", "arm_from_env", "arm_worker", "at", "disarm", "line", "record"]

VARIABLE = "SHOAL_FAULT"
POINTS = {
    "driver": ("start", "ask", "publish", "evaluate"),  # start: of a worker
    "learner": ("update",),
    "worker": ("start", "ready", "chunk", "send", "evaluate", "close"),  # chunk: before one is made; send: when it has been made
    "env": ("reset", "step", "close"),  # of a worker's environments, where they live in Python
    "store": ("mkdir", "open", "write", "fsync", "rename", "link", "copy", "truncate", "remove", "allocate", "seal"),
}


class Fault(Exception):
    """What the action ``raise`` raises: a failure that nobody planned for."""


def _signal(number: int) -> Callable[[str], None]:
    return lambda where: os.kill(os.getpid(), number)


def _raise(where: str) -> None:
    raise Fault(f"injected at {where}")


def _hang(where: str) -> None:
    while True:
        time.sleep(3600)


def _exit(where: str) -> None:
    sys.exit(7)


def _exhaust(where: str) -> None:
    raise MemoryError(f"injected at {where}")


def _os_error(number: int) -> Callable[[str], None]:
    def strike(where: str) -> None:
        raise OSError(number, os.strerror(number))

    return strike


ACTIONS: dict[str, Callable[[str], None]] = {
    "kill": _signal(signal.SIGKILL),
    "raise": _raise,
    "hang": _hang,
    "stop": _signal(signal.SIGSTOP),
    "interrupt": _signal(signal.SIGINT),
    "terminate": _signal(signal.SIGTERM),
    "exit": _exit,
    "memory": _exhaust,
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
    if not os.environ.get(VARIABLE):
        return False
    role, point, nth, action, forever = _from_env()
    arm(role, point, nth, action, forever=forever)
    return True


def arm_worker(index: int, life: int) -> str:
    """Arm what ``SHOAL_FAULT`` says in a worker, if it is meant; the role that is struck, else nothing."""
    role, point, nth, action, forever = _from_env()
    match = re.fullmatch(r"(worker|env)([0-9]*)", role)
    if match is None or match[2] not in ("", str(index)) or (life > 1 and not forever):
        return ""
    arm(match[1], point, nth, action, forever=forever)
    return match[1]


def _from_env() -> tuple[str, str, int, str, bool]:
    text = os.environ.get(VARIABLE, "")
    match = re.fullmatch(r"([^:]+):([^:]+):([0-9]{1,9})(\+?):([^:]+)", text)
    if match is None:
        raise ConfigError(f"{VARIABLE} = {text!r}: expected role:point:nth:action, such as store:fsync:3:kill")
    role, point, nth, more, action = match.groups()
    return role, point, int(nth), action, bool(more)


class Struck:
    """A host environment whose calls are points of the role ``env``; all else is the environment's own."""

    def __init__(self, env: Any):
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, seed: int) -> Any:
        at("env", "reset")
        return self._env.reset(seed)

    def step(self, action: Any) -> Any:
        at("env", "step")
        return self._env.step(action)

    def close(self) -> None:
        at("env", "close")
        self._env.close()


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
