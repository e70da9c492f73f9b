"""The few things the store asks of a disk, each with a named point of failure before it. No policy here: errors are OSErrors."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from io import BufferedReader
from pathlib import Path

from shoal.faultpoint import at

ROLE = "store"
BLOCK = 1 << 24  # bytes per write; a point of failure lies before each


def mkdir(path: Path) -> None:
    at(ROLE, "mkdir")
    os.mkdir(path)


def write(path: Path, data: bytes) -> None:
    """Write a new file and flush it to the disk."""
    at(ROLE, "open")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            at(ROLE, "write")
            rest = rest[os.write(descriptor, rest[:BLOCK]):]
        at(ROLE, "fsync")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Flush a file that is there already, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at(ROLE, "fsync")
        os.fsync(descriptor)
    except OSError as error:
        # some network file systems cannot flush a folder; they keep the order of renames by themselves
        if error.errno != errno.EINVAL or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def rename(old: Path, new: Path) -> None:
    at(ROLE, "rename")
    os.rename(old, new)


def link(source: Path, target: Path) -> None:
    """The same file under another name; a copy where the file system has no links."""
    at(ROLE, "link")
    try:
        os.link(source, target)
    except OSError:
        copy(source, target)


def copy(source: Path, target: Path) -> None:
    """Another file with the same bytes, flushed to the disk."""
    at(ROLE, "copy")
    shutil.copyfile(source, target)
    sync(target)


def truncate(path: Path, length: int) -> None:
    at(ROLE, "truncate")
    os.truncate(path, length)
    sync(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; links are removed, not followed."""
    if path.is_symlink() or not path.is_dir():
        at(ROLE, "remove")
        os.unlink(path)
        return
    for inner in sorted(path.iterdir()):
        remove(inner)
    at(ROLE, "remove")
    os.rmdir(path)


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read; a pipe or device that pretends to be one is refused instead of waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return open(descriptor, "rb")


def cause(error: OSError) -> str:
    """Why, in the operating system's words, without the path that the caller names anyway."""
    return error.strerror or str(error)


def memory() -> float:
    """Bytes of memory that are free, as far as the system says."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        return float("inf")


def room(folder: Path) -> float:
    """Bytes that are free on the disk which ``folder`` will lie on."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return float(shutil.disk_usage(there).free)
