"""Lanes spread over threads of this process: for environments that leave Python's lock alone while they work. The same bits again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any

import numpy as np

from shoal import flow
from shoal.errors import ConfigError, EnvError
from shoal.plan import Plan
from shoal.runtime.lanes import World
from shoal.runtime.ported import Here, Ported
from shoal.runtime.workers import num_cores, spread
from shoal.types import Algorithm, Chunk, Env, HostEnv, ParamSource


class Threads:
    """Lanes spread over threads of this process, for environments that release Python's lock."""

    name = "threads"

    def __init__(self, workers: int | str = "auto"):
        self.workers = str(workers)

    def engine(self, algorithm: Algorithm, env: Env | HostEnv, make_fn: Callable[[], HostEnv], *, plan: Plan, stream_episodes: bool
               ) -> Ported:
        """The engine for a plan: lanes, chunks and ports, with the lanes in threads."""
        worlds, sizes = spread(algorithm, env, make_fn, plan, stream_episodes)
        if plan.mode != "sync" or plan.topology != "learner":
            raise ConfigError("runtime = 'threads' works in step, for one learner; use --runtime processes for async")
        workers = min(plan.num_envs // plan.lane_size, num_cores()) if plan.workers == "auto" else int(plan.workers)

        def crew(world: World, params: ParamSource, lag: int) -> Any:
            return Gang(world, params, lag, workers, plan.step_timeout_s * algorithm.num_steps)

        return Ported(algorithm, *worlds, lag=plan.lag, crew_fn=crew, **sizes)


class Gang(Here):
    """Lanes of this process, several at work at a time."""

    def __init__(self, world: World, params: ParamSource, lag: int, workers: int, timeout_s: float):
        super().__init__(world, params, lag)
        self._name = world.spec.name
        self.workers, self.overlaps, self._timeout_s = workers, lag > 0, timeout_s
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="shoal-lane")
        self._asked: deque[tuple[int, Future[Chunk]]] = deque()
        self._before: dict[str, np.ndarray] | None = None  # where lanes stood before what has not been learned from

    def ask(self, seq: int, deadline_s: float) -> None:
        if self.overlaps:
            self._before = super().tensors()
        version, params = self._params.latest(flow.version_for(seq, self._lag), deadline_s)
        self._asked += [(actor.lane, self._pool.submit(actor.make, params, version, seq)) for actor in self.lanes]

    def take(self, deadline_s: float) -> Chunk:
        index, future = self._asked.popleft()
        try:
            return future.result(self._timeout_s)
        except Late:
            raise EnvError(f"{self._name}: lane {index} has not come back for {self._timeout_s:g} s, and a thread cannot be ended; "
                           "--runtime processes can end and mend it") from None

    def tensors(self) -> dict[str, np.ndarray]:
        return self._before if self._asked and self._before is not None else super().tensors()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()
