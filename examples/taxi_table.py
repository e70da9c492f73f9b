"""Learn a taxi's table, and say how far the policy is from the best there is: by dynamic programming, not by playing.

    python examples/taxi_table.py --steps 2000000
"""

from __future__ import annotations

import argparse

import shoal
from shoal.tabular import gap, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2_000_000)
    given = parser.parse_args()
    agent = shoal.QLearning(discount=1.0, learning_rate=0.5, epsilon_end=0.1)
    run = shoal.train(agent, "Taxi-v4", steps=given.steps, num_envs=1, seed=1)
    taxi = model.of("Taxi-v4", {})
    assert taxi is not None
    found = gap.gap(taxi, run.policy(), discount=1.0)
    print(f"{run.result['steps']} steps at {run.result['steps_per_s']:.0f} a second")
    print(f"value {found['value']:.3f}, optimum {found['optimum']:.3f}")


if __name__ == "__main__":
    main()
