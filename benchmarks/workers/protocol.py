"""What a worker says: ``READY {…}`` once, then one line of JSON for every line ``go``. It ends with its input."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

ANEW = 20_000  # steps after which tables are learned from nothing again, where an environment is in Python


def settings() -> argparse.Namespace:
    """The work to do, from the command line: the same flags for every worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="ppo", choices=("ppo", "dqn", "sac", "uniform", "prioritised", "stepping"))
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--num-steps", type=int, default=1)
    parser.add_argument("--num-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0, help="0: the library's own choice")
    parser.add_argument("--path", default="")
    parser.add_argument("--env", default="", help="instead of the work's own")
    parser.add_argument("--workers", type=int, default=0, help="processes that environments are spread over; 0: none")
    parser.add_argument("--lag", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a sample")
    return parser.parse_args()


def versions(*packages: str) -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def calibrate(sample_fn: Callable[[int], dict[str, Any]], start: int, seconds: float) -> int:
    """How many steps fill a sample, a multiple of ``start``: short ones grow until one takes half as long."""
    count = start
    while (spent := sample_fn(count)["seconds"]) < seconds / 2:
        count *= 2
    return max(start, round(count * seconds / spent / start) * start)


def answer(value: dict[str, Any], start: str = "") -> None:
    sys.stdout.write(start + json.dumps(value) + "\n")
    sys.stdout.flush()


def requests(about: dict[str, Any]) -> Iterator[str]:
    """Say that warm-up is over; then the requests for a sample, each as it comes."""
    answer(about, "READY ")
    return (line for line in iter(sys.stdin.readline, "") if line.strip() == "go")


def serve(about: dict[str, Any], sample_fn: Callable[[], dict[str, Any]]) -> None:
    """Say that warm-up is over and answer every request. A sample holds at least ``rate``, ``steps`` and ``seconds``."""
    for _ in requests(about):
        answer(sample_fn())


def timed(train_fn: Callable[[int], None], steps: int) -> dict[str, Any]:
    """A sample of ``train_fn(steps)``."""
    begun = time.perf_counter()
    train_fn(steps)
    seconds = time.perf_counter() - begun
    return {"rate": steps / seconds, "steps": steps, "seconds": seconds}
