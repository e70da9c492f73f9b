"""RLlib's PPO: environments in two env runners, each a process, and the learner in this one."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from benchmarks.workers import protocol

_SAMPLED = "num_env_steps_sampled_lifetime"


def _algorithm(given: Any) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune import register_env

    if given.env:
        def make(_: Any) -> Any:
            import gymnasium

            import benchmarks.workers.burning  # noqa: F401 - registers it, in whatever process this is

            return gymnasium.make(given.env)

        register_env(given.env, make)
    size = given.num_envs * given.num_steps
    nets = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment(given.env or "CartPole-v1")
        .env_runners(num_env_runners=given.workers, num_envs_per_env_runner=given.num_envs // given.workers,
                     rollout_fragment_length=given.num_steps, num_cpus_per_env_runner=0.5, gym_env_vectorize_mode="sync")
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=size, minibatch_size=size // given.num_minibatches, num_epochs=given.num_epochs,
                  lr=2.5e-4, gamma=0.99, lambda_=0.95, clip_param=0.2, entropy_coeff=0.01, vf_loss_coeff=0.5, grad_clip=0.5,
                  use_kl_loss=False)
        .rl_module(model_config=nets)
        .debugging(seed=0)
    )
    return config.build_algo()


def main() -> None:
    given = protocol.settings()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # its processes import the environment from here; what it writes into the home folder goes with this one
        os.environ |= {"PYTHONPATH": os.getcwd(), "HOME": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        import ray

        ray.init(num_cpus=given.workers, include_dashboard=False, logging_level="ERROR", log_to_driver=False, _temp_dir=folder,
                 object_store_memory=200 << 20)
        try:
            algorithm = _algorithm(given)
            sampled = int(algorithm.train()[_SAMPLED])
            warm_s = time.perf_counter() - begun

            def sample(steps: int) -> dict[str, Any]:
                """Whole iterations, until so many steps have been learned from."""
                nonlocal sampled
                first, begun = sampled, time.perf_counter()
                while sampled - first < steps:
                    sampled = int(algorithm.train()[_SAMPLED])
                seconds = time.perf_counter() - begun
                return {"rate": (sampled - first) / seconds, "steps": sampled - first, "seconds": seconds}

            steps = protocol.calibrate(sample, given.num_envs * given.num_steps, given.seconds)
            about = {"versions": protocol.versions("ray", "torch", "gymnasium"), "warm_s": warm_s}
            protocol.serve(about, lambda: sample(steps))
            algorithm.stop()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
