"""CartPole-v1, only stepped, by actions drawn beforehand: ``--path sync`` or ``async`` (Gymnasium) or ``envpool``."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.workers import protocol

_DRAWN = 64  # rows of actions, used again and again


def _vector(given: Any) -> Any:
    if given.path == "envpool":
        import envpool

        return envpool.make_gymnasium("CartPole-v1", num_envs=given.num_envs, num_threads=given.workers, seed=0)
    import gymnasium

    kind = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}[given.path]
    return kind([lambda: gymnasium.make("CartPole-v1")] * given.num_envs)


def main() -> None:
    given = protocol.settings()
    begun = time.perf_counter()
    vector = _vector(given)
    vector.reset() if given.path == "envpool" else vector.reset(seed=0)
    draws = np.random.default_rng(0).integers(0, 2, (_DRAWN, given.num_envs))
    actions = list(draws.astype(np.int32 if given.path == "envpool" else np.int64))

    def run(steps: int) -> None:
        for t in range(steps // given.num_envs):
            vector.step(actions[t % _DRAWN])

    size = given.num_envs * given.num_steps
    run(size)
    warm_s = time.perf_counter() - begun
    steps = protocol.calibrate(lambda count: protocol.timed(run, count), size, given.seconds)
    names = ("envpool", "gymnasium") if given.path == "envpool" else ("gymnasium",)
    protocol.serve({"versions": protocol.versions(*names, "numpy"), "warm_s": warm_s}, lambda: protocol.timed(run, steps))
    vector.close()


if __name__ == "__main__":
    main()
