"""A worker of shoal's that only fetches parameters and says so, over the channel of a run; and its driver.

Both are the real ones, with chunks left out: the driver writes a version and asks for work, the worker reads what is there and answers
with a line. ``python -m benchmarks.workers.fetching``, started by its driver.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import jax
import numpy as np

from shoal.runtime import worker
from shoal.runtime.hand import Hand
from shoal.runtime.stream import Stream


class _Fetcher(worker._Worker):
    """Without lanes, and at work only when it is told that there is room."""

    def _open(self, plan: dict[str, Any]) -> None:
        self.lanes: dict[int, Any] = {0: None}
        self._copies = plan["copies"]
        self._line.send({"is": "ready", "notes": [], "mode": ""}, self._deadline_s)

    def run(self) -> None:
        own = None
        while True:
            message = self._line.receive(worker.IDLE_S)
            if message is None or message["is"] == "end":
                return
            version = message["seq"]
            if self._copies:  # as workers do that wait for nobody
                version, _ = self._params.newest(self._deadline_s)
            else:  # in step they read it where it lies; here each number once
                _, leaves = self._params.latest(version, self._deadline_s)
                own = own if own is not None else [np.empty_like(x) for x in leaves]
                for mine, theirs in zip(own, leaves, strict=True):
                    np.copyto(mine, theirs)
            self._line.send({"is": "chunk", "version": version}, self._deadline_s)


class _Hand(Hand):
    module = "benchmarks.workers.fetching"


class Publisher(Stream):
    """A crew of one such worker."""

    def __init__(self, *args: Any, copies: bool, **settings: Any):
        super().__init__(*args, **settings)
        self.hands = [_Hand(0, (0,), None)]
        self._of, self._told = {0: self.hands[0]}, self._told | {"copies": copies}

    def _shape(self) -> Any:
        return jax.tree.structure(((), (), (), ()))

    def begin(self, deadline_s: float) -> None:
        """Start the worker, and wait until it hears."""
        until = time.monotonic() + deadline_s
        self._open()
        while not self.hands[0].ready:
            self._wait(0.2)
            if time.monotonic() > until:
                raise TimeoutError(f"the worker was not ready in {deadline_s:g} s")

    def exchange(self, version: int, leaves: list[np.ndarray], deadline_s: float) -> None:
        """Publish a version and wait until the worker has it."""
        self.publish(version, leaves, deadline_s)
        self.hands[0].ask(version, {0})
        message = self.hands[0].line.receive(deadline_s)
        if message is None or message.get("version") != version:
            raise RuntimeError(f"published version {version}, but the worker said {message}")


if __name__ == "__main__":
    worker._Worker = _Fetcher  # type: ignore[misc]
    code = worker.main(int(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)
