"""Named points where a test may make something fail. In a real run nothing is installed and a point costs one comparison.

The hook lies at the bottom so that any room can name its points; ``shoal.testing.faults`` arms it.
"""

from __future__ import annotations

from collections.abc import Callable

Handler = Callable[[str, str], None]

_handler: Handler | None = None


def at(role: str, point: str) -> None:
    """Say that ``role`` stands at ``point``, just before it does what the point is named for."""
    if _handler is not None:
        _handler(role, point)


def install(handler: Handler | None) -> None:
    """Call ``handler(role, point)`` at every point from now on; None takes it out."""
    global _handler
    _handler = handler
