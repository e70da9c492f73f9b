"""A timeline of a run: who did what, from when to when. Every process writes its own file, a line of JSON for each span."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = "trace"
_LINES = 64  # that are written together


class Trace:
    """Notes spans; without a folder, nothing."""

    def __init__(self, folder: Path | str | None = None, role: str = "driver", index: int = 0, life: int = 1):
        self._file, self._kept = None, []  # type: ignore[var-annotated]
        if folder is not None:
            with suppress(OSError):  # a run does not end for want of a timeline
                Path(folder).mkdir(exist_ok=True)
                self._file = (Path(folder) / f"{role}-{index}-{os.getpid()}.jsonl").open("a")
        self._who = {"role": role, "index": index, "life": life, "pid": os.getpid()}

    @contextmanager
    def span(self, name: str, **about: int) -> Iterator[None]:
        """What happens inside is one span of the timeline."""
        if self._file is None:
            yield
            return
        begun = time.monotonic_ns()
        try:
            yield
        finally:
            self._kept.append({"name": name, "at": begun, "ns": time.monotonic_ns() - begun} | self._who | about)
            if len(self._kept) >= _LINES:
                self.flush()

    def flush(self) -> None:
        lines, self._kept = self._kept, []
        if self._file is not None and lines:
            with suppress(OSError):
                self._file.write("".join(json.dumps(line) + "\n" for line in lines))
                self._file.flush()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


OFF = Trace()
