"""What one would write by hand: Q-learning on FrozenLake compiled by numba with nothing around it, and on Gymnasium's environments with a
compiled update, or in NumPy as textbooks have it. ``--path compiled``, ``update`` or ``textbook``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numba
import numpy as np

from benchmarks.workers import protocol

EPSILON, RATE, DISCOUNT = 0.1, 0.1, 0.99


@numba.njit(fastmath=True)
def lake(after, reward, over, q, steps, seed, limit):
    """Q-learning where every pair has three outcomes that are as likely; one xorshift word a step."""
    word, state, length, ended, total = np.uint64(seed), 0, 0, 0, 0.0
    for _ in range(steps):
        word ^= word << np.uint64(13)
        word ^= word >> np.uint64(7)
        word ^= word << np.uint64(17)
        if np.float64(word & np.uint64(0xFFFF)) < EPSILON * 65536.0:
            action = np.int64(word >> np.uint64(16) & np.uint64(3))
        else:
            action, top = 0, q[state, 0]
            for a in range(1, 4):
                if q[state, a] > top:
                    action, top = a, q[state, a]
        k = np.int64((word >> np.uint64(20) & np.uint64(0xFFFFFFFF)) * np.uint64(3) >> np.uint64(32))
        new, gain, end = after[state, action, k], reward[state, action, k], over[state, action, k]
        best = q[new, 0]
        for a in range(1, 4):
            if q[new, a] > best:
                best = q[new, a]
        q[state, action] += RATE * (gain + (0.0 if end else DISCOUNT * best) - q[state, action])
        total, length, state = total + gain, length + 1, new
        if end or length >= limit:
            state, length, ended = 0, 0, ended + 1
    return ended, total


@numba.njit
def update(q, state, action, reward, new, over, u):
    """Learn from a step, and choose the next action."""
    q[state, action] += RATE * (reward + (0.0 if over else DISCOUNT * q[new].max()) - q[state, action])
    return np.int64(u / EPSILON * q.shape[1]) if u < EPSILON else np.argmax(q[new])


def compiled_lake() -> Callable[[int], None]:
    env: Any = gymnasium.make("FrozenLake-v1", map_name="8x8").unwrapped
    parts: list[Any] = [np.zeros((64, 4, 3), np.int32), np.zeros((64, 4, 3)), np.zeros((64, 4, 3), np.uint8)]
    for state in range(64):
        for action in range(4):
            outcomes = env.P[state][action]
            for k in range(3):
                for part, value in zip(parts, outcomes[k % len(outcomes)][1:], strict=True):
                    part[state, action, k] = value
    return lambda steps: lake(*parts, np.zeros((64, 4)), steps, 88172645463325252, 100)


def on_gymnasium(name: str, by_update: bool) -> Callable[[int], None]:
    env = gymnasium.make(name, **({"map_name": "8x8"} if name.startswith("FrozenLake") else {}))
    num: Any = env.action_space
    rows: Any = env.observation_space
    draw, q = np.random.default_rng(0), np.zeros((int(rows.n), int(num.n)))

    def with_update(steps: int) -> None:
        q[:] = 0.0
        state, action, numbers = env.reset(seed=0)[0], 0, draw.random(steps)
        for i in range(steps):
            new, reward, over, cut, _ = env.step(action)
            action = int(update(q, state, action, float(reward), new, over, numbers[i]))
            state = env.reset()[0] if over or cut else new

    def textbook(steps: int) -> None:
        q[:] = 0.0
        state = env.reset(seed=0)[0]
        for _ in range(steps):
            action = int(draw.integers(q.shape[1])) if draw.random() < EPSILON else int(q[state].argmax())
            new, reward, over, cut, _ = env.step(action)
            q[state, action] += RATE * (reward + DISCOUNT * (0 if over else q[new].max()) - q[state, action])
            state = env.reset()[0] if over or cut else new

    def anew(steps: int) -> None:
        for first in range(0, steps, protocol.ANEW):
            (with_update if by_update else textbook)(min(protocol.ANEW, steps - first))

    return anew


def main() -> None:
    given = protocol.settings()
    begun = time.perf_counter()
    train = compiled_lake() if given.path == "compiled" else on_gymnasium(given.env, given.path == "update")
    train(10)
    warm = time.perf_counter() - begun
    steps = protocol.calibrate(lambda count: protocol.timed(train, count), 1000, given.seconds)
    protocol.serve({"versions": protocol.versions("numba", "numpy", "gymnasium"), "warm_s": warm}, lambda: protocol.timed(train, steps))


if __name__ == "__main__":
    main()
