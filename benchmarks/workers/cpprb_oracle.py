"""cpprb's prioritised buffer in its own environment: does what it is told on its input, a line of JSON, and answers with another.

Told: size, alpha, epsilon, beta, batch, draws, and stages, each a list of operations: ``["add", n]`` or ``["update", rows, deltas]``.
Answered, for each stage: how often each row was drawn after it, and its weight, where the largest of all rows has 1.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

import numpy as np


def run(told: dict[str, Any]) -> list[dict[str, Any]]:
    from cpprb import PrioritizedReplayBuffer

    size = told["size"]
    buffer, added, answers = PrioritizedReplayBuffer(size, {"row": {}}, alpha=told["alpha"], eps=told["epsilon"]), 0, []
    for stage in told["stages"]:
        for name, *given in stage:
            if name == "add":
                for _ in range(given[0]):
                    buffer.add(row=added % size)
                    added += 1
            else:
                buffer.update_priorities(np.asarray(given[0]), np.asarray(given[1], np.float32))
        counts, weight = np.zeros(size, np.int64), np.zeros(size)
        for _ in range(told["draws"] // told["batch"]):
            drawn = buffer.sample(told["batch"], beta=told["beta"])
            counts += np.bincount(drawn["indexes"], minlength=size)
            weight[drawn["indexes"]] = drawn["weights"]
        answers.append({"counts": counts.tolist(), "weight": weight.tolist()})
    return answers


def main() -> None:
    answers = run(json.loads(sys.stdin.readline()))
    sys.stdout.write(json.dumps({"versions": f"cpprb {importlib.metadata.version('cpprb')}", "stages": answers}) + "\n")


if __name__ == "__main__":
    main()
