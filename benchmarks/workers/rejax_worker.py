"""PPO of rejax on gymnax's CartPole-v1, compiled with its learner; nothing is evaluated."""

from __future__ import annotations

import time

from benchmarks.workers import protocol

_CALL_STEPS = 250_000  # of one compiled call: about two seconds on a CPU, so that dispatch counts for nothing


def main() -> None:
    given = protocol.settings()
    import jax
    from rejax import get_algo

    begun = time.perf_counter()
    size = given.num_envs * given.num_steps
    total = max(1, round(_CALL_STEPS / size)) * size
    algorithm = get_algo("ppo").create(
        env="CartPole-v1", agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)}, num_envs=given.num_envs,
        num_steps=given.num_steps, num_epochs=given.num_epochs, num_minibatches=given.num_minibatches, learning_rate=2.5e-4,
        max_grad_norm=0.5, gamma=0.99, gae_lambda=0.95, clip_eps=0.2, ent_coef=0.01, vf_coef=0.5, total_timesteps=total,
        eval_freq=total, skip_initial_evaluation=True).replace(eval_callback=lambda *_: ())
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
