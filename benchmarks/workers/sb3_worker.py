"""PPO, DQN or SAC of Stable-Baselines3, or with ``--path sbx`` of SBX, on Gymnasium's tasks: one process, environments in it, or with
``--path subproc`` in a process each."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.workers import protocol


def _model(given: Any) -> Any:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if given.path == "sbx":
        import sbx as library
        from flax.linen import relu, tanh
    else:
        import stable_baselines3 as library
        import torch
        from torch.nn import ReLU as relu
        from torch.nn import Tanh as tanh

        torch.set_num_threads(given.threads or torch.get_num_threads())
    if given.env:
        from benchmarks.workers.burning import Burning as name  # its processes make it by its class
    else:
        name = "Pendulum-v1" if given.work == "sac" else "CartPole-v1"
    env = make_vec_env(name, given.num_envs, seed=0, vec_env_cls=SubprocVecEnv if given.path == "subproc" else DummyVecEnv)
    same: dict[str, Any] = {"gamma": 0.99, "seed": 0, "device": "cpu"}
    if given.work == "dqn":  # an update for every 10 steps of all environments together; both sides act alike, by a fixed epsilon
        return library.DQN("MlpPolicy", env, learning_rate=2.5e-4, buffer_size=10_000, learning_starts=1_000, batch_size=128, tau=1.0,
                           train_freq=10, gradient_steps=given.num_envs, target_update_interval=500, exploration_initial_eps=0.05,
                           exploration_final_eps=0.05, policy_kwargs={"net_arch": [120, 84], "activation_fn": relu}, **same)
    if given.work == "sac":
        return library.SAC("MlpPolicy", env, learning_rate=3e-4, buffer_size=100_000, learning_starts=300, batch_size=256, tau=0.005,
                           train_freq=1, gradient_steps=1, policy_kwargs={"net_arch": [256, 256]}, **same)
    nets = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": tanh}
    return library.PPO("MlpPolicy", env, learning_rate=lambda left: 2.5e-4 * left, n_steps=given.num_steps,
                       batch_size=given.num_envs * given.num_steps // given.num_minibatches, n_epochs=given.num_epochs,
                       gae_lambda=0.95, clip_range=0.2, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, policy_kwargs=nets, **same)


_FIRST = {"dqn": 1_500, "sac": 400}  # steps after which updates are under way


def main() -> None:
    given = protocol.settings()
    begun = time.perf_counter()
    model = _model(given)
    size = given.num_envs * given.num_steps
    model.learn(_FIRST.get(given.work, size))
    warm_s = time.perf_counter() - begun

    def train(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    steps = protocol.calibrate(lambda count: protocol.timed(train, count), max(size, 80), given.seconds)
    names = ("sbx-rl", "jax") if given.path == "sbx" else ("stable-baselines3", "torch")
    protocol.serve({"versions": protocol.versions(*names, "gymnasium"), "warm_s": warm_s}, lambda: protocol.timed(train, steps))


if __name__ == "__main__":
    main()
