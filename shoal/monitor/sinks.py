"""Files of rows. ``metrics.jsonl`` is the record, one JSON object per line; ``metrics.csv`` is derived from it.

A run resumes by truncating the JSON lines to the length its checkpoint noted. The CSV has no length to note: a column that
appears late changes its first line, so it is written again from the JSON lines, and appended to only while its columns last.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.errors import DamagedError, StoreError

Scalar = bool | int | float | str | None


class JsonlSink:
    """Appends rows to ``path``. The only writer of that file.

    Rows wait in memory until ``flush``; after one that failed (a full disk, say) they still wait, and the next tries again.
    """

    def __init__(self, path: str | os.PathLike[str], *, mend: bool = False) -> None:
        """``mend`` cuts off a row that a kill tore, for files that no checkpoint knows the length of; else it is refused."""
        self.path = Path(path)
        self._pending: list[bytes] = []
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be opened for appending: {error.strerror}") from error
        self._written = self._durable = os.fstat(self._file).st_size
        while mend and self._written and os.pread(self._file, 1, self._written - 1) != b"\n":
            self._written -= 1  # the next flush truncates to here
        self._durable = min(self._durable, self._written)
        if self._written and os.pread(self._file, 1, self._written - 1) != b"\n":
            os.close(self._file)
            raise DamagedError(f"{self.path}: ends in the middle of a row; expected a line end at byte {self._written}")

    def put(self, row: Mapping[str, Scalar]) -> None:
        """Add a row, keys in their order. Floats keep every bit; nan and infinities become null, for JSON has none."""
        for name, value in row.items():
            if not isinstance(name, str) or not (value is None or isinstance(value, bool | int | float | str)):
                raise StoreError(f"{self.path.name}: {name} = {value!r}: expected a number, text, true, false or null")
        plain = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        self._pending.append(json.dumps(plain, allow_nan=False).encode() + b"\n")

    def flush(self, sync: bool = False) -> None:
        """Write the rows that wait; with ``sync``, return only once they would survive a power cut."""
        data = memoryview(b"".join(self._pending))
        try:
            os.ftruncate(self._file, self._written)  # an earlier flush may have failed half-way through a row
            end = self._written + len(data)
            while data:
                data = data[os.write(self._file, data) :]
            self._written = end
            self._pending.clear()
            if sync:
                os.fsync(self._file)
                if not self._durable:
                    _sync_folder(self.path.parent)
                self._durable = end
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be written: {error.strerror}") from error

    def length(self) -> int:
        """Bytes that the last ``flush(sync=True)`` made durable: what a checkpoint may promise."""
        return self._durable

    def close(self) -> None:
        if self._file < 0:
            return
        try:
            self.flush()
        finally:
            os.close(self._file)
            self._file = -1


class CsvSink:
    """Keeps ``path`` equal to the rows of ``source``, as of the last ``flush``. Driven like a ``JsonlSink``, after it."""

    def __init__(self, path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
        self.path, self.source = Path(path), Path(source)
        self._columns: list[str] | None = None  # None: what the file holds is not known, write it all again
        self._read = 0

    def put(self, row: Mapping[str, Scalar]) -> None:
        """Nothing to do: the row arrives through ``source``."""

    def flush(self, sync: bool = False) -> None:
        """Take over what is new in ``source``. ``sync`` changes nothing: this file can always be derived again."""
        known = set(self._columns or ())
        text, end = io.StringIO(newline=""), self._read
        table = _table(text, self._columns or [])
        complete = self._columns is not None
        for end, row in _iter_rows(self.source, self._read):  # noqa: B007
            complete = complete and known.issuperset(row)
            if not complete:
                break
            table.writerow(_cells(row))
        if not complete:
            self._columns = None
            self._columns, self._read = _rewrite(self.source, self.path)
        elif end > self._read:
            columns, self._columns = self._columns, None
            try:
                with open(self.path, "a", encoding="utf-8", newline="") as file:
                    file.write(text.getvalue())
            except OSError as error:
                raise StoreError(f"{self.path}: cannot be written: {error.strerror}") from error
            self._columns, self._read = columns, end

    def length(self) -> int:
        """0: a checkpoint need keep nothing of it."""
        return 0

    def close(self) -> None:
        self.flush()


def write_csv(jsonl_path: str | os.PathLike[str], csv_path: str | os.PathLike[str]) -> None:
    """All rows as a table, atomically replaced: columns in order of first appearance, empty where a row has no such key."""
    _rewrite(Path(jsonl_path), Path(csv_path))


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The whole rows of a file of JSON lines; a last line that is still being written is left out."""
    return [row for _, row in _iter_rows(Path(path))]


def last_step(path: Path, start: int) -> int:
    """The step of the last whole row behind byte ``start``; 0 where there is none that can be read."""
    step = 0
    with suppress(StoreError):
        for _, row in _iter_rows(path, start):
            step = row.get("step", 0)
    return step if isinstance(step, int) else 0


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` in one go: a reader sees the old text or the new one. Not synced, so only for what can be made again."""
    with _replacing(path) as file:
        file.write(text)


class _replacing:
    """A text file that takes the place of ``path`` when the block ends well, and leaves nothing behind otherwise."""

    def __init__(self, path: Path) -> None:
        self._path, self._temporary = path, path.with_name(f".{path.name}.tmp")

    def __enter__(self) -> io.TextIOBase:
        try:
            self._stream = open(self._temporary, "w", encoding="utf-8", newline="")  # noqa: SIM115
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written: {error.strerror}") from error
        return self._stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._stream.close()
            if kind is None:
                os.replace(self._temporary, self._path)
        except OSError as problem:
            error = problem
        if error is not None:
            with suppress(OSError):
                os.unlink(self._temporary)
        if isinstance(error, OSError):
            raise StoreError(f"{self._path}: cannot be written: {error.strerror}") from error


def _rewrite(source: Path, path: Path) -> tuple[list[str], int]:
    """Write the table in two passes, so that memory does not grow with the run; its columns, and how far it read."""
    names: dict[str, None] = {}
    end = 0
    for end, row in _iter_rows(source):  # noqa: B007
        names.update(dict.fromkeys(row))
    columns = list(names)
    with _replacing(path) as file:
        table = _table(file, columns)
        if columns:
            table.writeheader()
        for at, row in _iter_rows(source):
            if at > end:
                break
            table.writerow(_cells(row))
    return columns, end


def _table(file: Any, columns: list[str]) -> csv.DictWriter[str]:
    return csv.DictWriter(file, columns, restval="", lineterminator="\n")


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Values as a table shows them: true and false as 1 and 0, so that a column of them is numbers."""
    return {name: int(value) if isinstance(value, bool) else value for name, value in row.items()}


def _iter_rows(path: Path, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each whole row from byte ``start``, with the byte behind it."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                row = _parse(path, start, line)
                start += len(line)
                yield start, row
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(path: Path, at: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict) or any(isinstance(value, list | dict) for value in row.values()):
        raise DamagedError(f"{path}: the line at byte {at} is not a row; expected one flat JSON object")
    return row


def _sync_folder(folder: Path) -> None:
    """A new file is durable only once the folder that names it is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
