"""Refusals. Each names what was wrong, what was expected and, where there is one, the nearest right thing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ShoalError(Exception):
    """Base of everything shoal raises on purpose; its text is one short line."""


class ConfigError(ShoalError):
    """A setting that cannot be used. The command line answers it with exit code 2."""


class MissingError(ConfigError):
    """A name that nothing is registered under, or a package that is not installed."""


class StoreError(ShoalError):
    """A run folder or checkpoint that cannot be read or written."""


class DamagedError(StoreError):
    """A checkpoint that fails its own checksums or structure."""


class ReplayError(ShoalError):
    """An environment that could not be brought back to where it stood."""


class EnvError(ShoalError):
    """An environment that raised, or answered something its spec does not allow."""


class DivergedError(ShoalError):
    """Learning produced numbers that are not finite, again and again."""


class WorkerError(ShoalError):
    """A worker process that failed again and again, or in a way that trying again cannot mend."""


class DeadlineError(ShoalError):
    """A wait that reached its deadline."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest known name, or the known names, or nothing."""
    known = sorted(known)
    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    if close:
        return f"; did you mean {next(k for k in known if k.lower() == close[0])!r}?"
    return f"; known: {', '.join(known[:12])}{', …' if len(known) > 12 else ''}" if known else ""


class Interrupted(Exception):
    """Waiting for workers was given up because the run is to stop."""
