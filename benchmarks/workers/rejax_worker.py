"""PPO or DQN of rejax on gymnax's CartPole-v1, compiled with its learner; nothing is evaluated."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.workers import protocol

_CALL_STEPS = {"ppo": 250_000, "dqn": 50_000}  # of one compiled call: about two seconds on a CPU, so that dispatch counts for nothing


def _algorithm(given: Any, total: int) -> Any:
    from rejax import get_algo

    same: dict[str, Any] = {"env": "CartPole-v1", "num_envs": given.num_envs, "learning_rate": 2.5e-4, "gamma": 0.99,
                            "total_timesteps": total, "eval_freq": total, "skip_initial_evaluation": True}
    if given.work == "dqn":  # an update for every step of all environments: every 10 steps with 10 of them
        from flax.linen import relu
        from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

        algorithm = get_algo("dqn").create(buffer_size=10_000, fill_buffer=1_000, batch_size=128, num_epochs=1, target_update_freq=500,
                                           eps_start=0.05, eps_end=0.05, ddqn=False, **same)
        # layer sizes among its settings are refused as given twice
        return algorithm.replace(agent=EpsilonGreedyPolicy(DiscreteQNetwork)(hidden_layer_sizes=(120, 84), action_dim=2, activation=relu))
    return get_algo("ppo").create(
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)}, num_steps=given.num_steps, num_epochs=given.num_epochs,
        num_minibatches=given.num_minibatches, max_grad_norm=0.5, gae_lambda=0.95, clip_eps=0.2, ent_coef=0.01, vf_coef=0.5, **same)


def main() -> None:
    given = protocol.settings()
    import jax

    begun = time.perf_counter()
    size = given.num_envs * given.num_steps
    total = max(1, round(_CALL_STEPS[given.work] / size)) * size
    algorithm = _algorithm(given, total).replace(eval_callback=lambda *_: ())
    state = jax.block_until_ready(jax.jit(algorithm.init_state)(jax.random.PRNGKey(0)))
    compiled = jax.jit(lambda state: algorithm.train(train_state=state)[0]).lower(state).compile()
    warm_s = time.perf_counter() - begun

    def train(steps: int) -> None:
        nonlocal state
        for _ in range(steps // total):
            state = compiled(state)
        jax.block_until_ready(state)

    steps = protocol.calibrate(lambda count: protocol.timed(train, count), total, given.seconds)
    about = {"versions": protocol.versions("rejax", "gymnax", "jax"), "warm_s": warm_s}
    protocol.serve(about, lambda: protocol.timed(train, steps))


if __name__ == "__main__":
    main()
