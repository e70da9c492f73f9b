"""shoal's buffers on the device: with ``--path scan`` many cycles in one compiled call, else one; the buffer is donated to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.workers import protocol, replay_protocol


def main() -> None:
    given = protocol.settings()
    from shoal.runtime import device

    device.prepare("cpu", given.threads or 1)
    scanned = given.path == "scan"

    def make() -> Callable[[], None]:
        import jax
        import jax.numpy as jnp

        from shoal.buffers.prioritised import Prioritised
        from shoal.buffers.uniform import Uniform
        from shoal.specs import Box, EnvSpec
        from shoal.types import Transition

        sizes: dict[str, Any] = {"capacity": replay_protocol.CAPACITY, "batch_size": replay_protocol.BATCH}
        buffer = (Prioritised(alpha=replay_protocol.ALPHA, beta=replay_protocol.BETA, beta_updates=float("inf"), **sizes)
                  if given.work == "prioritised" else Uniform(**sizes))
        spec = EnvSpec("rows", Box((replay_protocol.SIZE,), 0.0, 1.0), Box((1,), 0.0, 4.0))
        x = {name: jnp.asarray(value)[None] for name, value in replay_protocol.rows(1).items()}
        row = Transition(x["obs"], x["act"], x["rew"][..., 0], 1.0 - x["done"][..., 0], x["next_obs"], x["done"][..., 0] > 0,
                         jnp.ones((1, 1)), ())

        def cycle(state: Any, key: Any) -> tuple[Any, Any]:
            state, drawn = buffer.sample(buffer.add(state, None, row), key)
            if given.work == "uniform":
                return state, drawn.batch
            return buffer.update(state, drawn.ticket, 0.9 * drawn.weight + 0.1), (drawn.batch, drawn.weight)

        def many(state: Any, key: Any) -> tuple[Any, Any]:
            def step(state: Any, key: Any) -> tuple[Any, Any]:
                state, drawn = cycle(state, key)
                return state, sum(x.mean() for x in jax.tree.leaves(drawn))  # all of it is read

            return jax.lax.scan(step, state, jax.random.split(key, replay_protocol.SCANNED))

        def filled(state: Any) -> Any:
            return jax.lax.fori_loop(0, replay_protocol.FILL, lambda _, state: buffer.add(state, None, row), state)

        state = jax.jit(filled, donate_argnums=0)(buffer.init(spec, 1))
        keys = list(jax.random.split(jax.random.key(0), 64))
        return replay_protocol.in_turn(jax.jit(many if scanned else cycle, donate_argnums=0), state, keys)

    replay_protocol.serve(given, ("jax",), make, replay_protocol.SCANNED if scanned else 1)


if __name__ == "__main__":
    main()
