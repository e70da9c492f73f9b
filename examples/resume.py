"""Resume is continuation: a run interrupted half-way and resumed ends with the same bits as one that was never stopped.

    python examples/resume.py --steps 10000
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import shoal


class Interrupt(shoal.Callback):
    """Presses Ctrl-C at an iteration."""

    def __init__(self, iteration: int):
        self.iteration = iteration

    def on_iteration_end(self, loop: Any, iteration: int, result: Any) -> None:
        if iteration == self.iteration:
            os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()

    agent = shoal.PPO(num_steps=32, num_epochs=10, learning_rate=1e-3)
    half = args.steps // (2 * 32 * 8)
    with tempfile.TemporaryDirectory() as folder:
        whole = shoal.train(agent, "cartpole", steps=args.steps, seed=1, out=f"{folder}/whole")
        stopped = shoal.train(agent, "cartpole", steps=args.steps, seed=1, out=f"{folder}/parts", callbacks=(Interrupt(half),))
        print(f"stopped by {stopped.result['stopped_by']} at {stopped.result['steps']} of {whole.result['steps']} steps")
        resumed = shoal.resume(f"{folder}/parts")
        rows = [Path(folder, name, "metrics.jsonl").read_bytes() for name in ("whole", "parts")]
    print(f"never stopped  {whole.result['params_sha256'][:16]}")
    print(f"resumed        {resumed.result['params_sha256'][:16]}")
    print(f"same learner: {whole.result['params_sha256'] == resumed.result['params_sha256']}, same metrics: {rows[0] == rows[1]}")


if __name__ == "__main__":
    main()
