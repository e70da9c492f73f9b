"""Train PPO on the compiled CartPole, score the policy, and act with it.

    python examples/train_cartpole.py --steps 20000
"""

from __future__ import annotations

import argparse

import jax

import shoal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()

    run = shoal.train(shoal.PPO(num_steps=32, num_epochs=10, learning_rate=1e-3), "cartpole", steps=args.steps, seed=1)
    scores = run.evaluate(episodes=20)
    score, episodes = scores["mean_return"], scores["episodes"]
    print(f"after {run.result['steps']} steps: {score:.1f} of at most 500, over {episodes} greedy episodes")

    policy = shoal.load(run.folder)
    env = shoal.make("cartpole")
    state, obs = env.reset(jax.random.key(0))
    print(f"first observation {obs}, action {policy.act(obs)}")
    print(f"the curve is in {run.folder}/learning_curve.svg")


if __name__ == "__main__":
    main()
