"""A buffer larger than memory: its rows lie in memory-mapped files in a folder, and draw the same bits as anywhere else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from shoal import disk
from shoal.buffers import layout, pool
from shoal.buffers.host import Host
from shoal.buffers.layout import Chunk, Form
from shoal.buffers.segments import Ring, Segments
from shoal.buffers.uniform import State
from shoal.errors import ConfigError, DamagedError, StoreError
from shoal.specs import EnvSpec
from shoal.types import Tree, pytree

_NAMES = "segments.json"
_NEWEST = "newest.rows"


class Column(NamedTuple):
    """One field's rows, as ``layout.get`` reads them."""

    segments: Segments
    array: int

    def read(self, which: np.ndarray) -> np.ndarray:
        return self.segments.read(self.array, which)


class Waiting(NamedTuple):
    """A field of the pool: places in files, and behind them, in memory, each lane's newest successors."""

    column: Column
    newest: np.ndarray  # [L, b, ...]
    entries: int  # places of a lane that are in files

    def read(self, which: np.ndarray) -> np.ndarray:
        lane, place = np.divmod(which, self.entries + self.newest.shape[1])
        behind = place >= self.entries
        answer = self.column.read(np.where(behind, 0, lane * self.entries + place))
        answer[behind] = self.newest[lane[behind], place[behind] - self.entries]
        return answer


class Files:
    """The rows of a buffer in a folder. It is the only writer there."""

    def __init__(self, folder: Path, form: Form, segment_bytes: int) -> None:
        shape, shapes = form.ring, layout.shapes(form)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = any(folder.iterdir())
        except OSError as error:
            raise StoreError(f"{folder}: cannot keep replay there: {disk.cause(error)}") from error
        if taken:
            raise StoreError(f"{folder}: not empty; replay needs a folder of its own")
        self.folder, self.form = folder, form
        kinds = tuple((x.shape[3:], np.dtype(x.dtype).name) for x in (shapes.words, *shapes.wide))
        places = tuple((x.shape[2:], np.dtype(x.dtype).name) for x in shapes.pool)
        self.rows = Segments(folder, Ring("rows", shape.lanes, shape.slots * shape.envs, kinds), segment_bytes)
        self.words, *wide = (Column(self.rows, i) for i in range(len(kinds)))
        self.wide = tuple(wide)
        self.pool: Sequence[Waiting] = ()
        if form.pooled:
            self.places = Segments(folder, Ring("places", shape.lanes, pool.entries(shape), places), segment_bytes)
            newest = [np.zeros((shape.lanes, shape.envs, *x.shape[2:]), x.dtype) for x in shapes.pool]
            self.pool = tuple(Waiting(Column(self.places, i), x, pool.entries(shape)) for i, x in enumerate(newest))

    def put(self, which: np.ndarray, cursor: np.ndarray, start: np.ndarray, chunk: Chunk) -> None:
        """Write a chunk where ``layout.put`` would."""
        shape = self.form.ring
        for k, lane in enumerate(which.tolist()):
            columns = slice(k * shape.envs, (k + 1) * shape.envs)
            rows = [x[:, columns].reshape((-1, *x.shape[2:])) for x in (chunk.words, *chunk.wide)]
            self.rows.write(lane, int(cursor[k]) * shape.envs, rows)
            if self.pool:
                # what stands behind the ends is no end: it need not be written
                ends = int(chunk.num_ends[k])
                self.places.write(lane, int(start[k]), [np.concatenate([obs[k], end[k, :ends]])
                                                        for obs, end in zip(chunk.obs, chunk.ends, strict=True)])
                for field, newest in zip(self.pool, chunk.newest, strict=True):
                    field.newest[lane] = newest[k]

    def rewrite(self, lane: int, slot: int, words: np.ndarray, place: np.ndarray) -> None:
        """Replace the words [b, words] of the newest slot, and put waiting successors in order behind the newest block."""
        shape = self.form.ring
        rows = (lane * shape.slots + slot) * shape.envs + np.arange(shape.envs)
        self.rows.rewrite(lane, slot * shape.envs, [words, *(column.read(rows) for column in self.wide)])
        moved = place < pool.entries(shape)
        if self.pool and moved.any():
            self.places.rewrite(lane, int(place[moved][0]), [field.newest[lane][moved] for field in self.pool])

    def _groups(self) -> dict[str, Segments]:
        return {"rows": self.rows, **({"places": self.places} if self.pool else {})}

    def save(self, folder: Path) -> dict[str, str]:
        """Leave in ``folder``, which must be there, all that ``load`` needs: sealed segments linked, open ones copied. SHA-256 by name."""
        names: dict[str, Any] = {}
        digests: dict[str, str] = {}
        for name, segments in self._groups().items():
            names[name], more = segments.save(folder)
            digests |= more
        for name, data in ((_NEWEST, b"".join(field.newest.tobytes() for field in self.pool)), (_NAMES, json.dumps(names).encode())):
            disk.write(folder / name, data)
            digests[name] = hashlib.sha256(data).hexdigest()
        return digests

    def load(self, folder: Path) -> None:
        """Take over what ``save`` left in ``folder``, which stays as it is."""
        try:
            names: dict[str, Any] = json.loads((folder / _NAMES).read_bytes())
            newest = (folder / _NEWEST).read_bytes()
            for name, segments in self._groups().items():
                segments.load(folder, names[name])
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{folder}: replay cannot be read: {error}") from error
        except OSError as error:
            raise StoreError(f"{self.folder}: replay cannot be brought back from {folder}: {disk.cause(error)}") from error
        if len(newest) != sum(field.newest.nbytes for field in self.pool):
            raise DamagedError(f"{folder / _NEWEST}: {len(newest)} bytes, expected {sum(field.newest.nbytes for field in self.pool)}")
        for field in self.pool:
            field.newest[...] = np.frombuffer(newest[:field.newest.nbytes], field.newest.dtype).reshape(field.newest.shape)
            newest = newest[field.newest.nbytes:]


@pytree
class Mapped(Host):
    """A buffer over rows in files. Not for compiled code: its methods are called from Python."""

    folder: str = "replay"
    """Where the files go: a folder of its own."""
    segment_bytes: int = 2**26
    """Size of a file."""

    in_files: ClassVar[bool] = True

    def within(self, folder: Path) -> Mapped:
        """The same with its files in another folder."""
        return dataclasses.replace(self, folder=str(folder))

    def check(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> int:
        """The bytes of memory needed; refused where they, or those of the files, are more than there are."""
        needed = self.buffer.fit(lambda form: 0, spec, num_envs, lanes, num_steps, extras)
        files, room = self.buffer.nbytes(spec, num_envs, lanes, num_steps, extras), disk.room(Path(self.folder))
        if files > room:
            raise ConfigError(f"capacity = {self.buffer.capacity}: {files / 2**20:,.1f} MiB of files, more than the "
                              f"{room / 2**20:,.1f} MiB that are free on the disk")
        return needed

    def init(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> State:
        form = self.buffer.form(spec, num_envs, lanes, num_steps, extras)
        return self.buffer.empty(form, Files(Path(self.folder), form, self.segment_bytes))

    def put(self, form: Form, store: Files, which: np.ndarray, cursor: np.ndarray, start: np.ndarray, chunk: Chunk) -> None:
        store.put(which, cursor, start, chunk)

    def rewrite(self, form: Form, store: Files, lane: int, slot: int, words: np.ndarray, place: np.ndarray) -> None:
        store.rewrite(lane, slot, words, place)
