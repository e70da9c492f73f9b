"""shoal's training as a user has it: one run of the main loop in a run folder, with its metrics and checkpoints.

The run pauses between samples, at calls of the engine; whatever the main loop does between calls is timed with them.
``--path fused`` trains the compiled cartpole, ``--path ported`` Gymnasium's CartPole-v1.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.workers import protocol

_BUDGET = {"ported": 1_000_000, "fused": 10_000_000}  # rows of metrics are as far apart as in a run of so many steps


class Stopwatch:
    """A timeline that only adds up: seconds by the name of a span, in the driver."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    @contextmanager
    def span(self, name: str, **about: int) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - begun

    def flush(self) -> None:
        """Nothing is kept."""

    close = flush


class Gate:
    """An engine that gives samples: before each call it looks whether one is complete, and if so waits for the next request."""

    def __init__(self, engine: Any, seconds: float, begun: float, packages: tuple[str, ...] = ("jax", "equinox", "optax")):
        self._engine, self._seconds, self._begun, self._packages = engine, seconds, begun, packages
        self._requests: Iterator[str] | None = None
        self._watch = Stopwatch()
        self.warm_s = 0.0
        self._reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def settle(self, *args: Any) -> None:
        self._engine.settle(*args)
        if hasattr(self._engine, "trace"):
            self._engine.trace = self._watch

    def _reset(self) -> None:
        self._steps, self._iterations, self._run_s, self._since = 0, 0, 0.0, time.perf_counter()
        self._watch.spent.clear()

    def run(self, limits: Any) -> Any:
        spent = time.perf_counter() - self._since
        if self.warm_s and spent >= self._seconds:
            self._exchange(spent)
        report = self._engine.run(limits)
        self._iterations += len(report.iterations)
        each = self._engine.steps_per_iteration
        self._steps += sum(each if iteration.steps is None else iteration.steps for iteration in report.iterations)
        self._run_s += report.run_s
        if not self.warm_s:
            self.warm_s = time.perf_counter() - self._begun
            self._reset()
        return report

    def _exchange(self, spent: float) -> None:
        """Answer the last request with what was done since, and wait; the first stretch only warms up."""
        if self._requests is None:
            about = {"versions": protocol.versions(*self._packages), "warm_s": self.warm_s}
            self._requests = protocol.requests(about)
        else:
            protocol.answer({"rate": self._steps / spent, "steps": self._steps, "seconds": spent,
                             "engine_rate": self._steps / self._run_s, "iteration_s": self._run_s / self._iterations,
                             "spans_s": {name: seconds / self._iterations for name, seconds in self._watch.spent.items()}})
        next(self._requests)  # at the end of the input this ends the run
        self._reset()


def _agent(given: Any) -> Any:
    import shoal

    horizon = 1e12  # longer than any measurement
    if given.work == "dqn":
        return shoal.DQN(num_steps=given.num_steps, capacity=10_000, start_size=1_000, batch_size=128, updates=1, update_every=10,
                         learning_rate=2.5e-4, horizon=horizon, discount=0.99, hidden=(120, 84), activation="relu", double=False,
                         epsilon_start=0.05, epsilon_schedule="constant", target_every=50, max_grad_norm=10.0)
    if given.work == "sac":
        return shoal.SAC(num_steps=given.num_steps, capacity=100_000, start_size=300, batch_size=256, updates=1, update_every=1,
                         learning_rate=3e-4, horizon=horizon, discount=0.99, hidden=(256, 256), activation="relu", tau=0.005)
    if given.work == "stepping":
        from benchmarks.workers.aimless import Aimless

        return Aimless(num_steps=given.num_steps)
    return shoal.PPO(num_steps=given.num_steps, num_epochs=given.num_epochs, num_minibatches=given.num_minibatches,
                     learning_rate=2.5e-4, learning_rate_schedule="linear", horizon=horizon, discount=0.99, gae_lambda=0.95,
                     clip=0.2, entropy_coef=0.01, value_coef=0.5, max_grad_norm=0.5, hidden=(64, 64), activation="tanh")


def main() -> None:
    given = protocol.settings()
    from shoal.runtime import device

    device.prepare("cpu", given.threads or 1)
    import shoal

    begun = time.perf_counter()

    runtime: Any = shoal.Processes(given.workers) if given.workers else shoal.Local()
    make_fn = runtime.engine
    runtime.engine = lambda *args, **settings: Gate(make_fn(*args, **settings), given.seconds, begun)
    env = given.env or ("Pendulum-v1" if given.work == "sac" else "cartpole" if given.path == "fused" else "CartPole-v1")
    log_every = max(given.num_envs * given.num_steps, _BUDGET[given.path] // 500)
    lane_envs = given.num_envs // max(1, given.workers)  # a lane for each worker, or lanes of the usual size
    lane_envs = lane_envs if given.work == "stepping" or given.num_envs % 8 else min(lane_envs, 8)
    plugins = [f"benchmarks.workers.{name}" for name, used in (("burning", given.env), ("aimless", given.work == "stepping")) if used]
    with tempfile.TemporaryDirectory() as folder:
        loop = shoal.MainLoop(env, _agent(given), runtime=runtime, path=given.path, num_envs=given.num_envs, lag=given.lag,
                              lane_envs=lane_envs, threads=given.threads or 1, device="cpu", log_every=log_every,
                              out=Path(folder) / "run", plugins=tuple(plugins))
        try:
            loop.run(steps=10**12)
        except StopIteration:
            loop.close()


if __name__ == "__main__":
    main()
