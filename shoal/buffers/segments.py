"""Rows in files: rings that are written in order, cut into segments of a fixed size, each a memory-mapped file.

A segment that is full is sealed: it is flushed and never written again. When the ring comes round, a new file takes its place, and the
old one goes once the new one is full. So a checkpoint may keep sealed segments by linking them, and only copies the few that are open.
"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal import disk
from shoal.errors import DamagedError, StoreError
from shoal.faultpoint import at

ROLE = "buffer"
Kind = tuple[tuple[int, ...], str]  # shape and dtype of an entry of one array


class Segment:
    """One file: some entries of every array, array after array."""

    def __init__(self, path: Path, kinds: tuple[Kind, ...], entries: int, lap: int, written: int = 0) -> None:
        self.path, self.lap, self.written, self._digest = path, lap, written, ""
        memory = np.memmap(path, np.uint8, "r+")
        self.arrays, place = [], 0
        for shape, dtype in kinds:
            size = entries * math.prod(shape) * np.dtype(dtype).itemsize
            self.arrays.append(memory[place:place + size].view(dtype).reshape((entries, *shape)))
            place += size
        self.memory = memory

    def digest(self, fresh: bool) -> str:
        """SHA-256 of the file; of one that is sealed it is worked out once, and not before that: until then it changes."""
        if fresh:
            return hashlib.sha256(self.memory.data).hexdigest()
        self._digest = self._digest or self.digest(fresh=True)
        return self._digest

    def seal(self) -> None:
        """Flush it to the disk."""
        at(ROLE, "seal")
        try:
            self.memory.flush()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written: {disk.cause(error)}") from error


class Ring(NamedTuple):
    """The sizes of what is kept in order: so many entries for each lane."""

    name: str
    lanes: int
    entries: int  # of a lane
    kinds: tuple[Kind, ...]


class Segments:
    """One ring's segments in a folder."""

    def __init__(self, folder: Path, ring: Ring, segment_bytes: int) -> None:
        self.folder, self.ring = folder, ring
        width = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in ring.kinds)
        self.length = max(1, min(segment_bytes // width, ring.entries))  # entries of a segment
        self.nbytes = self.length * width
        self.num = -(-ring.entries // self.length)
        self.now: dict[tuple[int, int], Segment] = {}
        self.before: dict[tuple[int, int], Segment] = {}  # what the present lap has not overwritten yet
        self.lap, self.place = [0] * ring.lanes, [-1] * ring.lanes  # of the last write

    def write(self, lane: int, start: int, arrays: list[np.ndarray]) -> None:
        """Write entries [n, ...] from ``start`` on; each call starts after the one before, or the ring has come round."""
        came_round = start <= self.place[lane]
        for number in range(max(self.place[lane], 0) // self.length, self.num if came_round else start // self.length):
            self._seal(lane, number)
        self.lap[lane] += came_round
        self.place[lane] = start
        self.rewrite(lane, start, arrays)

    def rewrite(self, lane: int, start: int, arrays: list[np.ndarray]) -> None:
        """Write entries in or just behind the newest ones: no segment is sealed by that."""
        count, done = len(arrays[0]), 0
        while done < count:
            number, offset = divmod(start + done, self.length)
            part = min(self.length - offset, count - done)
            segment = self._open(lane, number)
            for whole, new in zip(segment.arrays, arrays, strict=True):
                whole[offset:offset + part] = new[done:done + part]
            segment.written = max(segment.written, offset + part)
            done += part

    def _seal(self, lane: int, number: int) -> None:
        """Close a segment that this lap is past; what stood there before has been overwritten."""
        segment = self.now.get((lane, number))
        if segment is None or segment.lap != self.lap[lane]:
            return
        segment.seal()
        old = self.before.pop((lane, number), None)
        if old is not None:
            disk.remove(old.path)

    def _open(self, lane: int, number: int) -> Segment:
        """The segment that this lap writes to."""
        key = lane, number
        segment = self.now.get(key)
        if segment is not None and segment.lap == self.lap[lane]:
            return segment
        if segment is not None:
            self.before[key] = segment
        path = self.folder / f"{self.ring.name}-{lane}-{number}-{self.lap[lane]}.rows"
        allocate(path, self.nbytes)
        self.now[key] = Segment(path, self.ring.kinds, self.length, self.lap[lane])
        return self.now[key]

    def read(self, array: int, which: np.ndarray) -> np.ndarray:
        """Entries of one array by number, counted through all lanes."""
        shape, dtype = self.ring.kinds[array]
        flat = which.reshape(-1)
        answer = np.zeros((len(flat), *shape), dtype)
        lane, place = np.divmod(flat, self.ring.entries)
        number, offset = np.divmod(place, self.length)
        group = lane * self.num + number
        order = np.argsort(group, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            key = int(lane[part[0]]), int(number[part[0]])
            segment, old = self.now.get(key), self.before.get(key)
            if segment is None:
                continue
            fresh = offset[part] < segment.written
            answer[part[fresh]] = segment.arrays[array][offset[part[fresh]]]
            if old is not None and not fresh.all():
                answer[part[~fresh]] = old.arrays[array][offset[part[~fresh]]]
        return answer.reshape((*which.shape, *shape))

    # checkpoints -----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        """Link what is sealed into ``folder`` and copy what is open; answers what ``load`` needs beside the files, and their SHA-256."""
        kept, digests = [], {}
        for age, segments in (("now", self.now), ("before", self.before)):
            for (lane, number), segment in sorted(segments.items()):
                is_open = self._is_open(age, lane, number, segment.lap)
                if is_open:
                    segment.seal()
                (disk.copy if is_open else disk.link)(segment.path, folder / segment.path.name)
                digests[segment.path.name] = segment.digest(fresh=is_open)
                kept.append([age, lane, number, segment.lap, segment.written])
        return {"segments": kept, "lap": list(self.lap), "place": list(self.place), "length": self.length}, digests

    def _is_open(self, age: str, lane: int, number: int, lap: int) -> bool:
        """Whether a segment may still be written to."""
        return age == "now" and lap == self.lap[lane] and (number + 1) * self.length > self.place[lane]

    def load(self, folder: Path, saved: dict[str, Any]) -> None:
        """Take over what ``save`` left in ``folder``."""
        if saved["length"] != self.length:
            raise DamagedError(f"{folder}: segments of {saved['length']} rows, expected {self.length}")
        self.lap, self.place = list(saved["lap"]), list(saved["place"])
        for age, lane, number, lap, written in saved["segments"]:
            path = self.folder / f"{self.ring.name}-{lane}-{number}-{lap}.rows"
            source = folder / path.name
            if not source.is_file() or source.stat().st_size != self.nbytes:
                raise DamagedError(f"{source}: missing, or not of {self.nbytes} bytes")
            (disk.copy if self._is_open(age, lane, number, lap) else disk.link)(source, path)
            (self.now if age == "now" else self.before)[lane, number] = Segment(path, self.ring.kinds, self.length, lap, written)


def allocate(path: Path, nbytes: int) -> None:
    """A new file with all its blocks: a disk that fills up is found out here, and not by a signal in the middle of a write."""
    try:
        at(ROLE, "allocate")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{path.parent}: no room for another {nbytes / 2**20:,.1f} MiB of replay: {disk.cause(error)}") from error
