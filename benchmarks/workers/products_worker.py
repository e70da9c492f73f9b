"""A limit for SAC with 256×256 networks and batches of 256: the 16 products of 256³ of an update, and nothing else. Critics take 9 of them
(target values 3, forwards 2, back 4), the policy 7 (forwards 3, back 4); here each of two threads makes 8, none cut in two, and neither
waits for the other. A step is an update."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.workers import protocol

SIZE, THREADS, EACH = 256, 2, 8


def main() -> None:
    given = protocol.settings()
    os.environ["NPROC"] = "1"  # XLA's own thread; a call is made on the one that calls
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    begun = time.perf_counter()

    @jax.jit
    def products(block: jax.Array, other: jax.Array) -> jax.Array:
        for _ in range(EACH):
            block = (block @ other) / SIZE**0.5  # sizes stay as they are
        return block

    keys = jax.random.split(jax.random.key(0), 2 * THREADS)
    blocks = [jax.random.normal(key, (SIZE, SIZE), jnp.float32) for key in keys]

    def make(thread: int, steps: int) -> None:
        first, other = blocks[2 * thread : 2 * thread + 2]
        for _ in range(steps):
            products(first, other)

    with ThreadPoolExecutor(THREADS) as pool:

        def train(steps: int) -> None:
            list(pool.map(make, range(THREADS), [steps] * THREADS))

        train(10)
        warm_s = time.perf_counter() - begun
        steps = protocol.calibrate(lambda count: protocol.timed(train, count), 100, given.seconds)
        protocol.serve({"versions": protocol.versions("jax"), "warm_s": warm_s}, lambda: protocol.timed(train, steps))


if __name__ == "__main__":
    main()
