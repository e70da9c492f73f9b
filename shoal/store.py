"""Run folders and the checkpoints in them: written whole or not at all.

A run folder holds ``config.toml``, the metric files and ``checkpoints/``. A checkpoint is filled under a temporary name,
flushed, and renamed into place. Names that can be loaded:

* ``step-<n>`` and ``best-<n>``;
* ``step-<n>.old-<nonce>``: what a save of the same step moved aside; it counts while nothing better is there.

Whatever starts with ``.tmp-`` is a dead attempt or half deleted, is never loaded, and goes with the next ``prune``.
One process writes a run at a time; it holds ``lock``. No JAX here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal import disk
from shoal.checkpoint import NAME, Attach, Checkpoint, contents, fill, intact, is_count, is_name, link_attached, load, sha256
from shoal.errors import ConfigError, DamagedError, StoreError, nearest
from shoal.toml import MAX_BYTES, dumps_toml, loads_toml

__all__ = ["METRIC_FILES", "Checkpoint", "best", "create_run", "dumps_toml", "found", "load", "lock", "newest", "prune",
           "read_config", "save", "save_best", "sha256", "truncate"]

CONFIG = "config.toml"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
METRIC_FILES = ("metrics.jsonl", "metrics.csv", "timing.jsonl")  # empty at checkpoint 0, whatever is in them later

_TMP = ".tmp-"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
_PLACE = (*_TAKEN, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EBUSY, errno.ELOOP,
          errno.ENOENT, errno.EINVAL)  # the place is wrong, and another --out would do


def create_run(folder: Path, config: Mapping[str, Any]) -> None:
    """Make ``folder`` a run: its config and checkpoint 0, whole or not at all. It may be absent or empty before."""
    text = dumps_toml(config).encode()
    if len(text) > MAX_BYTES:
        raise ConfigError(f"config of {len(text)} bytes: expected at most {MAX_BYTES}; env_options hold settings, not data")
    if "\0" in str(folder):
        raise ConfigError(f"out = {str(folder)!r}: expected the name of a folder")
    target = Path(os.path.realpath(folder))
    _refuse_taken(target, folder)
    tmp = target.with_name(f"{_TMP}run-{target.name}-{secrets.token_hex(4)}")
    made: list[Path] = []
    moved = done = False
    try:
        for parent in reversed([path for path in target.parents if not path.exists()]):
            disk.mkdir(parent)
            made.append(parent)
        for dead in target.parent.iterdir():
            if re.fullmatch(re.escape(f"{_TMP}run-{target.name}-") + "[0-9a-f]{8}", dead.name):
                disk.remove(dead)
        start = tmp / CHECKPOINTS / "step-0"
        for path in (tmp, start.parent, start):
            disk.mkdir(path)
        disk.write(tmp / CONFIG, text)
        fill(start, 0, {}, {"fresh": True}, dict.fromkeys(METRIC_FILES, 0))
        for path in (start.parent, tmp):
            disk.sync(path)
        disk.rename(tmp, target)
        moved = True
        for path in (target, *reversed(made)):
            disk.sync(path.parent)
        done = True
    except OSError as error:
        if error.errno in _TAKEN:
            _refuse_taken(target, folder)
        kind = ConfigError if error.errno in _PLACE else StoreError
        raise kind(f"out = {str(folder)!r}: cannot make a run there: {disk.cause(error)}") from error
    finally:
        if not done:
            with contextlib.suppress(OSError):  # the first failure is the one to tell
                if moved:
                    disk.rename(target, tmp)
                if os.path.lexists(tmp):
                    disk.remove(tmp)
                for parent in reversed(made):
                    os.rmdir(parent)


def read_config(folder: Path) -> dict[str, Any]:
    """The config of the run in ``folder``."""
    _require_run(folder)
    path = Path(folder) / CONFIG
    try:
        return loads_toml(contents(path, most=MAX_BYTES, follow=True))
    except ValueError as error:
        raise StoreError(f"{path}: malformed: {error}") from None


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Be the only process that writes the run in ``folder``. The kernel lets go when the process dies, however it dies."""
    _require_run(folder)
    try:
        # through a link, a run folder from elsewhere could make files anywhere
        descriptor = os.open(Path(folder) / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise StoreError(f"{folder} cannot be locked: {disk.cause(error)}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{folder} is being written by another process") from None
        except OSError as error:
            raise StoreError(f"{folder} cannot be locked: {disk.cause(error)}") from error
        yield
    finally:
        os.close(descriptor)


def truncate(folder: Path, lengths: Mapping[str, int]) -> None:
    """Cut the metric files back to where a checkpoint saw them. All are looked at before the first is touched."""
    _refuse_lengths(lengths)
    for name in (*METRIC_FILES, *lengths):
        if (Path(folder) / name).is_symlink():  # a run folder from elsewhere could have any file cut
            raise StoreError(f"{Path(folder) / name}: is a link; expected the file itself")
    longer = []
    for name, length in lengths.items():
        path = Path(folder) / name
        size = path.stat().st_size if path.exists() else -1
        if length and size < length:
            state = "is missing" if size < 0 else f"has {size} bytes"
            raise StoreError(f"{path} {state}, but had {length} when the checkpoint was made: data was lost")
        if size > length:
            longer.append((path, length))
    for path, length in longer:
        try:
            disk.truncate(path, length)
        except OSError as error:
            raise StoreError(f"{path}: cannot be truncated to {length} bytes: {disk.cause(error)}") from error


def save(folder: Path, step: int, tensors: Mapping[str, np.ndarray], meta: Mapping[str, Any], lengths: Mapping[str, int],
         attach_fn: Attach | None = None, name: str = "") -> Path:
    """Write a checkpoint (``name`` defaults to ``step-<step>``) in place of any of that name; metric files are flushed first.

    Killed or failing anywhere, it leaves the old checkpoint or the new one loadable.
    """
    name = name or f"step-{step}"
    if not is_count(step) or name not in (f"step-{step}", f"best-{step}"):
        raise StoreError(f"checkpoint {name!r} of step {step!r}: expected step-<n> or best-<n> of that same step")
    _refuse_lengths(lengths)
    place = Path(folder) / CHECKPOINTS
    tmp = place / f"{_TMP}{step}-{secrets.token_hex(4)}"
    try:
        if not place.exists():
            disk.mkdir(place)
        disk.mkdir(tmp)
        for file in lengths:
            if (Path(folder) / file).exists():
                disk.sync(Path(folder) / file)
        fill(tmp, step, tensors, meta, lengths, attach_fn)
        _publish(tmp, place / name)
    except OSError as error:
        raise StoreError(f"{place / name}: cannot be saved: {disk.cause(error)}") from error
    finally:
        with contextlib.suppress(OSError):  # the first failure is the one to tell; prune comes back to this
            if os.path.lexists(tmp):
                disk.remove(tmp)
    return place / name


def save_best(folder: Path, step: int, tensors: Mapping[str, np.ndarray], meta: Mapping[str, Any],
              lengths: Mapping[str, int], attach_fn: Attach | None = None) -> Path:
    """Write ``best-<step>``, then remove the best one before it."""
    path = save(folder, step, tensors, meta, lengths, attach_fn, name=f"best-{step}")
    with contextlib.suppress(OSError):  # the new one is safe; what is left over goes with the next
        for old in found(folder, "best"):
            if old != path:
                _discard(old)
    return path


def prune(folder: Path, keep: int) -> None:
    """Remove dead attempts and all but the newest ``keep`` checkpoints and the best, but never the last that loads."""
    if keep < 1:
        raise StoreError(f"keep = {keep!r}: expected a number of at least 1")
    place = Path(folder) / CHECKPOINTS
    try:
        for dead in place.glob(f"{_TMP}*"):
            disk.remove(dead)
        for kind, count in (("step", keep), ("best", 1)):
            paths = found(folder, kind)
            one_per_step: dict[str, Path] = {}
            for path in paths:
                one_per_step.setdefault(path.name.partition(".")[0], path)
            kept = list(one_per_step.values())[:count]
            doomed = [path for path in paths if path not in kept]
            if doomed and not any(map(intact, kept)):
                rescued = next(filter(intact, doomed), None)
                doomed = [path for path in doomed if path != rescued]
            for path in doomed:
                _discard(path)
    except OSError as error:
        raise StoreError(f"{place}: cannot be pruned: {disk.cause(error)}") from error


def found(folder: Path, kind: str = "step") -> list[Path]:
    """Where checkpoints of a kind (``step`` or ``best``) lie, newest first; whether they load is another question."""
    place = Path(folder) / CHECKPOINTS
    try:
        names = [path.name for path in place.iterdir()] if place.is_dir() else []
    except OSError as error:
        raise StoreError(f"{place}: cannot be read: {disk.cause(error)}") from error
    matches = [match for match in map(NAME.fullmatch, names) if match and match[1] == kind]
    return [place / match[0] for match in sorted(matches, key=lambda match: (-int(match[2]), match[3] or ""))]


def newest(folder: Path, check_fn: Callable[[Path, Checkpoint], None] | None = None) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that loads, and a line for each damaged one that was passed over.

    ``check_fn`` may find damage that the checksums do not show: it gets the path and what was loaded.
    """
    return _first_whole(folder, "step", check_fn)


def best(folder: Path) -> tuple[Checkpoint, list[str]]:
    """The best checkpoint, likewise."""
    return _first_whole(folder, "best")


def _publish(tmp: Path, target: Path) -> None:
    if os.path.lexists(target):
        disk.rename(target, target.with_name(f"{target.name}.old-{secrets.token_hex(4)}"))
    disk.rename(tmp, target)
    disk.sync(target.parent)
    with contextlib.suppress(OSError):  # the checkpoint is safe; what is left over goes with the next prune
        for old in target.parent.glob(f"{target.name}.old-*"):
            _discard(old)


def _discard(path: Path) -> None:
    """Remove a checkpoint; by the first step it stops being one, so that half of it is never taken for damage."""
    gone = path.with_name(f"{_TMP}gone-{secrets.token_hex(4)}")
    disk.rename(path, gone)
    disk.remove(gone)


def _first_whole(folder: Path, kind: str, check_fn: Callable[[Path, Checkpoint], None] | None = None
                 ) -> tuple[Checkpoint, list[str]]:
    _require_run(folder)
    skipped: list[str] = []
    for path in found(folder, kind):
        try:
            point = load(path)
            if check_fn is not None:
                check_fn(path, point)
            return point, skipped
        except DamagedError as error:
            skipped.append(f"skipped damaged {path.name}: {error}")
    what = "checkpoint" if kind == "step" else "best checkpoint"
    if skipped:
        raise StoreError(f"every {what} of {folder} is damaged: {'; '.join(skipped)}")
    raise StoreError(f"{folder} holds no {what}")


def _refuse_lengths(lengths: Mapping[str, int]) -> None:
    for name, length in lengths.items():
        if not is_name(name) or not is_count(length):
            raise StoreError(f"lengths[{name!r}] = {length!r}: expected a file of the run folder and a number of bytes")


def _refuse_taken(target: Path, folder: Path) -> None:
    if not os.path.lexists(target):
        return
    try:
        inside = os.listdir(target)
        here = os.path.samefile(target, os.curdir)
    except OSError as error:
        raise ConfigError(f"out = {str(folder)!r}: expected a folder that is absent or empty: {disk.cause(error)}") from error
    if CONFIG in inside or CHECKPOINTS in inside:
        raise StoreError(f"{folder} already holds a run; resume it or choose another --out")
    if inside:
        raise ConfigError(f"out = {str(folder)!r}: is not empty; expected a folder that is absent or empty")
    if here:
        raise ConfigError(f"out = {str(folder)!r}: is the current folder; expected one below it or beside it")


def _require_run(folder: Path) -> None:
    folder = Path(folder)
    if os.path.lexists(folder / CONFIG):
        return
    runs: list[str] = []
    with contextlib.suppress(OSError):  # a hint only
        runs = [path.name for path in folder.parent.iterdir() if os.path.lexists(path / CONFIG)]
    raise ConfigError(f"no run in {str(folder)!r}{nearest(folder.name, runs)}")


def rewrite_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Put another config in place of the run's, whole or not at all: a budget that was extended, for one."""
    target = Path(folder) / CONFIG
    tmp = target.with_name(f"{_TMP}config-{secrets.token_hex(4)}")
    try:
        disk.write(tmp, dumps_toml(config).encode())
        disk.rename(tmp, target)
        disk.sync(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            tmp.unlink(missing_ok=True)
        raise StoreError(f"{target}: cannot be written: {disk.cause(error)}") from error


def copy_run(folder: Path, target: Path) -> Path:
    """A run of its own at ``target``, with this one's config and newest checkpoint; its metrics stay behind."""
    point, _ = newest(folder)
    create_run(target, read_config(folder))
    if not point.meta.get("fresh"):
        save(target, point.step, point.tensors, point.meta, {}, lambda tmp: link_attached(point, tmp))
    return Path(target)
