"""Flat buffers of flashbax: with ``--path scan`` many cycles in one compiled call, else one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.workers import protocol, replay_protocol


def main() -> None:
    given = protocol.settings()
    scanned = given.path == "scan"

    def make() -> Callable[[], None]:
        import flashbax
        import jax
        import jax.numpy as jnp

        sizes: dict[str, Any] = {"max_length": replay_protocol.CAPACITY, "min_length": 1_000, "add_batch_size": 1,
                                 "sample_batch_size": replay_protocol.BATCH}
        buffer: Any = (flashbax.make_prioritised_flat_buffer(priority_exponent=replay_protocol.ALPHA, **sizes)
                       if given.work == "prioritised" else flashbax.make_flat_buffer(**sizes))
        row = {name: jnp.asarray(x) for name, x in replay_protocol.rows(1).items()}
        state = buffer.init({name: x[0] for name, x in row.items()})

        def cycle(state: Any, key: Any) -> tuple[Any, Any]:
            state = buffer.add(state, row)
            drawn = buffer.sample(state, key)
            if given.work == "uniform":
                return state, drawn.experience
            likely = drawn.probabilities
            weight = (likely * replay_protocol.FILL) ** -replay_protocol.BETA  # the buffer leaves weights to its user
            weight = weight / weight.max()
            return buffer.set_priorities(state, drawn.indices, 0.9 * weight + 0.1), (drawn.experience, weight)

        def many(state: Any, key: Any) -> tuple[Any, Any]:
            def step(state: Any, key: Any) -> tuple[Any, Any]:
                state, drawn = cycle(state, key)
                return state, sum(x.mean() for x in jax.tree.leaves(drawn))  # all of it is read

            return jax.lax.scan(step, state, jax.random.split(key, replay_protocol.SCANNED))

        add = jax.jit(buffer.add, donate_argnums=0)
        for _ in range(replay_protocol.FILL):
            state = add(state, row)
        keys = list(jax.random.split(jax.random.key(0), 64))
        return replay_protocol.in_turn(jax.jit(many if scanned else cycle, donate_argnums=0), state, keys)

    replay_protocol.serve(given, ("flashbax", "jax"), make, replay_protocol.SCANNED if scanned else 1)


if __name__ == "__main__":
    main()
