"""What passes between a driver and its workers: lines of JSON through a socket, arrays through anonymous shared memory.

Nothing here can execute: a line is data, an array is its type, its shape and its bytes. Each channel has one writer.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import select
import socket
import tempfile
import time
from typing import Any

import numpy as np

from shoal.errors import DeadlineError, ShoalError

_ALIGN = 64
_LONGEST = 1 << 24  # bytes in a line


class Gone(ShoalError):
    """The other side has closed its end, or died."""


class Garbled(ShoalError):
    """What the other side sent is no message."""


class Line:
    """Messages to and from one peer, a line of JSON each."""

    def __init__(self, sock: socket.socket):
        self._socket, self._rest = sock, b""
        sock.setblocking(False)
        self._reads, self._writes = select.poll(), select.poll()
        self._reads.register(sock, select.POLLIN)
        self._writes.register(sock, select.POLLOUT)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any], deadline_s: float) -> None:
        data, until = json.dumps(message).encode() + b"\n", time.monotonic() + deadline_s
        while data:
            try:
                data = data[self._socket.send(data):]
            except BlockingIOError:
                if not self._writes.poll(max(0.0, until - time.monotonic()) * 1000):
                    raise DeadlineError("the other side does not read") from None
            except (BrokenPipeError, ConnectionError) as error:
                raise Gone("the other side is gone") from error

    def receive(self, deadline_s: float) -> dict[str, Any] | None:
        """The next message, or None where none has come in time."""
        until = time.monotonic() + deadline_s
        while b"\n" not in self._rest:
            if not self._reads.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                continue
            except ConnectionError as error:
                raise Gone("the other side is gone") from error
            if not data or len(self._rest) > _LONGEST:
                raise Gone("the other side is gone")
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        try:
            message = json.loads(line.decode())  # quicker than to have the encoding guessed
        except (ValueError, RecursionError) as error:
            raise Garbled(f"a line that is not JSON: {line[:60]!r}") from error
        if not isinstance(message, dict):
            raise Garbled(f"a line that is no message: {line[:60]!r}")
        return message

    @property
    def waiting(self) -> bool:
        """Whether a whole message has been read and not been asked for."""
        return b"\n" in self._rest

    def close(self) -> None:
        self._socket.close()


class Pages:
    """Shared memory without a name, passed on as a descriptor; it goes with the last process that has it. The writer may let it grow."""

    def __init__(self, size: int = 0, fd: int = -1):
        self.fd = fd if fd >= 0 else _anonymous()
        if fd < 0:
            os.ftruncate(self.fd, max(size, mmap.PAGESIZE))
        self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)

    @property
    def size(self) -> int:
        return len(self._map)

    def reach(self, size: int, *, grow: bool = False) -> None:
        """Have at least ``size`` bytes in view. Views of before stay valid, and see the same memory."""
        if size <= self.size:
            return
        if grow:
            os.ftruncate(self.fd, max(size, 2 * self.size))
        self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)
        if size > self.size:
            raise Garbled(f"shared memory ends at {self.size} bytes, before {size}")

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int) -> np.ndarray:
        """A view."""
        count = math.prod(shape)
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape) if count else np.zeros(shape, dtype)

    def close(self) -> None:
        """Let go of it; views that are left keep the memory."""
        os.close(self.fd)
        del self._map


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("shoal")
    with tempfile.TemporaryFile() as file:  # no name, either
        return os.dup(file.fileno())


class Layout:
    """Where each of a row of arrays lies in a slot."""

    def __init__(self, kinds: list[tuple[str, tuple[int, ...]]]):
        self.kinds, self.places, size = kinds, [], 0
        for dtype, shape in kinds:
            self.places.append(size)
            size += -(-math.prod(shape) * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN
        self.size = max(size, _ALIGN)

    @classmethod
    def of(cls, arrays: list[np.ndarray]) -> Layout:
        return cls([(x.dtype.name, x.shape) for x in arrays])

    @classmethod
    def read(cls, data: Any) -> Layout:
        """From a message."""
        try:
            kinds = [(np.dtype(str(dtype)), tuple(int(n) for n in shape)) for dtype, shape in data]
        except (TypeError, ValueError, OverflowError, SyntaxError) as error:
            raise Garbled(f"no layout of arrays: {str(data)[:60]}") from error
        for dtype, shape in kinds:
            if (dtype.kind not in "biufc" and dtype.name != "bfloat16") or min(shape, default=0) < 0:
                raise Garbled(f"an array that is not plain numbers: {dtype} {shape}")
        return cls([(dtype.name, shape) for dtype, shape in kinds])

    def views(self, pages: Pages, offset: int) -> list[np.ndarray]:
        pages.reach(offset + self.size)
        return [pages.array(dtype, shape, offset + place) for (dtype, shape), place in zip(self.kinds, self.places, strict=True)]

    def write(self, pages: Pages, offset: int, arrays: list[np.ndarray]) -> None:
        pages.reach(offset + self.size, grow=True)
        for view, array in zip(self.views(pages, offset), arrays, strict=True):
            np.copyto(view, array)


class Slots:
    """The writer's side of shared memory for rows of arrays: a few slots, each as large as what it last had to hold."""

    def __init__(self, pages: Pages, start: int = 0):
        self.pages, self._end, self._slots = pages, start, {}  # type: ignore[var-annotated]

    def write(self, name: Any, arrays: list[np.ndarray]) -> tuple[int, Layout]:
        """Put arrays into slot ``name``; where it begins. Whoever reads the slot must be done with what was in it."""
        kinds = [(x.dtype.name, x.shape) for x in arrays]
        offset, room, layout = self._slots.get(name, (0, 0, None))
        if layout is None or layout.kinds != kinds:
            layout = Layout(kinds)
            if layout.size > room:
                offset, room = self._end, layout.size + layout.size // 2 // _ALIGN * _ALIGN
                self._end += room
            self._slots[name] = offset, room, layout
        layout.write(self.pages, offset, arrays)
        return offset, layout


def tagged(value: Any) -> Any:
    """Plain data as JSON has it, with tuples marked."""
    if isinstance(value, tuple):
        return {"tuple": [tagged(x) for x in value]}
    if isinstance(value, list):
        return [tagged(x) for x in value]
    return {"dict": {str(k): tagged(x) for k, x in value.items()}} if isinstance(value, dict) else value


def untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [untagged(x) for x in value]
    if isinstance(value, dict):
        (kind, inner), = value.items()
        return tuple(untagged(x) for x in inner) if kind == "tuple" else {k: untagged(x) for k, x in inner.items()}
    return value
