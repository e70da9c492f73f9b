"""SAC of Stable-Baselines3, trained once and scored: one line of JSON. Runs in the peers' environment, one process for each seed.

Settings are those of shoal's preset for HalfCheetah-v5; whatever is not named here is the library's own default, and is the same there.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.workers import protocol


def scores(model: Any, env: str, seeds: list[int]) -> list[float]:
    """The returns of greedy episodes, one from each seed."""
    import gymnasium

    world, returns = gymnasium.make(env), []
    for seed in seeds:
        obs, total, over = world.reset(seed=seed)[0], 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = world.step(model.predict(obs, deterministic=True)[0])
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    world.close()
    return returns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--start-size", type=int, required=True)
    parser.add_argument("--eval-seeds", type=int, nargs="+", required=True, help="one greedy episode each")
    given = parser.parse_args()
    import torch
    from stable_baselines3 import SAC

    begun = time.perf_counter()
    torch.set_num_threads(1)
    model = SAC("MlpPolicy", given.env, learning_rate=3e-4, batch_size=256, gamma=0.99, tau=0.005, train_freq=1, gradient_steps=1,
                learning_starts=given.start_size, policy_kwargs={"net_arch": [256, 256]}, seed=given.seed, device="cpu")
    model.learn(given.steps)
    returns = scores(model, given.env, given.eval_seeds)
    protocol.answer({"seed": given.seed, "steps": model.num_timesteps, "eval_return": sum(returns) / len(returns),
                     "wall_s": time.perf_counter() - begun,
                     "versions": protocol.versions("stable-baselines3", "torch", "gymnasium", "mujoco")})


if __name__ == "__main__":
    main()
