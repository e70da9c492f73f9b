"""PPO of Stable-Baselines3, or with ``--path sbx`` of SBX, on Gymnasium's CartPole-v1: one process, environments in it."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.workers import protocol


def _model(given: Any) -> Any:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv

    if given.path == "sbx":
        from flax.linen import tanh
        from sbx import PPO
    else:
        import torch
        from stable_baselines3 import PPO
        from torch.nn import Tanh as tanh

        torch.set_num_threads(given.threads or torch.get_num_threads())
    env = make_vec_env("CartPole-v1", given.num_envs, seed=0, vec_env_cls=DummyVecEnv)
    nets = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": tanh}
    return PPO("MlpPolicy", env, learning_rate=lambda left: 2.5e-4 * left, n_steps=given.num_steps,
               batch_size=given.num_envs * given.num_steps // given.num_minibatches, n_epochs=given.num_epochs, gamma=0.99,
               gae_lambda=0.95, clip_range=0.2, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, seed=0, device="cpu",
               policy_kwargs=nets)


def main() -> None:
    given = protocol.settings()
    begun = time.perf_counter()
    model = _model(given)
    size = given.num_envs * given.num_steps
    model.learn(size)
    warm_s = time.perf_counter() - begun

    def train(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    steps = protocol.calibrate(lambda count: protocol.timed(train, count), size, given.seconds)
    names = ("sbx-rl", "jax") if given.path == "sbx" else ("stable-baselines3", "torch")
    protocol.serve({"versions": protocol.versions(*names, "gymnasium"), "warm_s": warm_s}, lambda: protocol.timed(train, steps))


if __name__ == "__main__":
    main()
