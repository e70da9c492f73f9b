"""A limit for SAC with 256×256 networks and batches of 256: the 16 products of 256³ of an update, four at a time that wait for nobody, and
nothing else. Critics take 9 of them (target values 3, forwards 2, back 4), the policy 7 (forwards 3, back 4). A step is an update."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

from benchmarks.workers import protocol

SIZE, AT_ONCE, ROUNDS = 256, 4, 4


@jax.jit
def products(blocks: list[jax.Array]) -> list[jax.Array]:
    for _ in range(ROUNDS):
        blocks = [(blocks[(i + 1) % AT_ONCE] @ block) / SIZE**0.5 for i, block in enumerate(blocks)]  # sizes stay as they are
    return blocks


def main() -> None:
    given = protocol.settings()
    begun = time.perf_counter()
    blocks = [jax.random.normal(jax.random.key(i), (SIZE, SIZE), jnp.float32) for i in range(AT_ONCE)]

    def train(steps: int) -> None:
        found = blocks
        for _ in range(steps):
            found = products(found)
        jax.block_until_ready(found)

    train(10)
    warm_s = time.perf_counter() - begun
    steps = protocol.calibrate(lambda count: protocol.timed(train, count), 100, given.seconds)
    protocol.serve({"versions": protocol.versions("jax"), "warm_s": warm_s}, lambda: protocol.timed(train, steps))


if __name__ == "__main__":
    main()
