"""Where compiled programs are kept between runs: code, so in the user's own cache, closed to others, never in a run folder."""

from __future__ import annotations

import os
from pathlib import Path


def folder(kind: str) -> Path | None:
    """The folder for one compiler's programs; None: nothing is kept. ``SHOAL_CACHE`` names another place for all, or ``off``."""
    wish = os.environ.get("SHOAL_CACHE", "")
    if wish == "off":
        return None
    try:
        base = Path(wish) if wish else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
        path = base if wish and kind == "xla" else base / kind
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in (base, path):
            status = each.stat()
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None  # others could put code there
        if not os.access(path, os.W_OK):
            return None
    except (OSError, RuntimeError):
        return None  # nothing is kept; nothing else changes
    return path
