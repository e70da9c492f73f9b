"""Buffers of cpprb: one call after the other."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.workers import protocol, replay_protocol


def main() -> None:
    given = protocol.settings()
    prioritised = given.work == "prioritised"

    def make() -> Callable[[], None]:
        from cpprb import PrioritizedReplayBuffer, ReplayBuffer

        wide, size = {"shape": replay_protocol.SIZE}, replay_protocol.CAPACITY
        shapes: dict[str, dict] = {"obs": wide, "act": {}, "rew": {}, "next_obs": wide, "done": {}}
        buffer = PrioritizedReplayBuffer(size, shapes, alpha=replay_protocol.ALPHA) if prioritised else ReplayBuffer(size, shapes)
        for _ in range(replay_protocol.FILL // 1_000):
            buffer.add(**replay_protocol.rows(1_000))
        row = replay_protocol.rows(1)

        def cycle() -> None:
            buffer.add(**row)
            if not prioritised:
                buffer.sample(replay_protocol.BATCH)
                return
            drawn = buffer.sample(replay_protocol.BATCH, beta=replay_protocol.BETA)
            buffer.update_priorities(drawn["indexes"], 0.9 * drawn["weights"] + 0.1)

        return cycle

    replay_protocol.serve(given, ("cpprb", "numpy"), make, 1)


if __name__ == "__main__":
    main()
