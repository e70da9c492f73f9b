"""Two agents learn to agree: each by itself (independent), or both with one policy (shared).

    python examples/two_agents.py --team shared --steps 20000
"""

from __future__ import annotations

import argparse

import numpy as np

import shoal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--team", choices=("independent", "shared"), default="independent")
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()

    team = {"independent": shoal.team.independent, "shared": shoal.team.shared}[args.team]
    run = shoal.train(team(shoal.PPO(num_steps=32, learning_rate=1e-3)), "matrix_game", steps=args.steps, seed=1)
    best = shoal.make("matrix_game").optimum
    first = run.act(np.zeros((2, 4), np.float32))  # one row per agent: nothing has been played yet
    print(f"{args.team}: score {run.result['eval_return']:.1f}, the best possible is {best:.1f}; they open with {first.tolist()}")


if __name__ == "__main__":
    main()
