"""Hook into a run: watch its episodes, and stop it when an evaluation is good enough.

    python examples/callbacks.py --steps 20000
"""

from __future__ import annotations

import argparse
from typing import Any

import shoal
from shoal.types import EpisodeEnd


class Watch(shoal.Callback):
    """Keeps the longest episode, and stops at a score."""

    def __init__(self, good_enough: float):
        self.good_enough, self.longest, self.count = good_enough, 0, 0

    def on_episode_end(self, loop: Any, episode: EpisodeEnd) -> None:
        self.count += 1
        self.longest = max(self.longest, episode.length)

    def on_evaluation(self, loop: Any, scores: Any) -> bool:
        print(f"at {loop.step} steps: score {loop.eval_return:.1f}, longest episode so far {self.longest}")
        return loop.eval_return >= self.good_enough

    def on_stop(self, loop: Any, reason: str) -> None:
        print(f"stopped by {reason} after {self.count} episodes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()

    watch = Watch(good_enough=450.0)
    agent = shoal.PPO(num_steps=32, num_epochs=10, learning_rate=1e-3)
    run = shoal.train(agent, "cartpole", steps=args.steps, seed=1, eval_every=2_048, eval_episodes=20, callbacks=(watch,))
    assert watch.count == run.result["episodes"]


if __name__ == "__main__":
    main()
