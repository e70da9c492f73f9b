"""The process runtime: where lanes go, and how many workers there should be."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from shoal.buffers.rollout import Rollout
from shoal.errors import ConfigError
from shoal.plan import Plan
from shoal.runtime import place
from shoal.runtime.flowing import Flowing
from shoal.runtime.lanes import World
from shoal.runtime.ported import Here, Ported
from shoal.runtime.process import Crew
from shoal.runtime.serving import Pushes, Serving
from shoal.runtime.stream import Stream
from shoal.runtime.trace import FOLDER
from shoal.specs import EnvSpec
from shoal.types import Algorithm, Env, HostEnv, ParamSource

_CHEAP_S = 50e-6  # a step that takes less is done before another process has heard of it
_TRIED, _TRIAL_S = 64, 2.0  # steps that are timed, and how long that may take: longer, and they are not cheap
_WORKER_BYTES = 400 << 20  # what a worker takes before its environments do


class Processes:
    """Lanes spread over worker processes."""

    name = "processes"

    def __init__(self, workers: int | str = "auto"):
        self.workers = str(workers)

    def engine(self, algorithm: Algorithm, env: Env | HostEnv, make_fn: Callable[[], HostEnv], *, plan: Plan, stream_episodes: bool
               ) -> Ported:
        """The engine for a plan: lanes, chunks and ports, with the lanes in workers."""
        if place.in_worker():
            raise ConfigError("the script trains when it is imported, as workers do: put that under `if __name__ == \"__main__\":`")
        if plan.path == "fused":
            raise ConfigError("path = 'fused' is one program in one process; use --path ported, or --runtime local")
        num_lanes, host = plan.num_envs // plan.lane_size, isinstance(env, HostEnv)
        algorithm.buffer(env.spec).check(env.spec, plan.num_envs, num_lanes, algorithm.num_steps)
        told = place.describe(plan)
        if plan.workers != "auto":
            check_workers(int(plan.workers), num_lanes, plan.lane_size)

        free, serves = plan.mode == "async", plan.topology == "server"
        if free or serves:
            check_async(algorithm, env.spec, plan)

        def crew(world: World, params: ParamSource, lag: int) -> Any:
            workers = wanted(plan.workers, world, made.warn_fn, least=int(free))
            if not workers:
                return Here(world, params, lag)
            if plan.trace and made.logs is not None:
                told["trace"] = str(made.logs.with_name(FOLDER).absolute())
            return (Pushes if serves else Stream if free else Crew)(
                world, params, lag, told=told, workers=workers, step_timeout_s=plan.step_timeout_s, max_restarts=plan.max_restarts,
                logs=made.logs, warn_fn=made.warn_fn, stop_fn=made.stop_fn, trace=made.trace)

        sizes: dict[str, Any] = {"num_envs": plan.num_envs, "lane_envs": plan.lane_size, "stream_episodes": stream_episodes,
                                 "crew_fn": crew}
        worlds: tuple[Any, Any] = (None, make_fn) if host else (env, None)
        if free:
            made: Ported = (Serving if serves else Flowing)(algorithm, *worlds, max_staleness=plan.max_staleness, **sizes)
        else:
            made = Ported(algorithm, *worlds, lag=plan.lag, **sizes)
        return made


def check_async(algorithm: Any, spec: EnvSpec, plan: Plan) -> None:
    """Refuse what cannot be learned from one lane at a time."""
    if plan.topology == "server":
        if plan.mode != "async":
            raise ConfigError("topology = 'server': workers push without waiting; add --mode async")
        if not isinstance(algorithm.buffer(spec), Rollout):
            raise ConfigError(f"topology = 'server': {plan.algo} learns from memory, which workers do not have; use --topology learner")
        if getattr(algorithm, "normalise_obs", False) or getattr(algorithm, "normalise_reward", False):
            raise ConfigError("topology = 'server': several workers cannot keep one normalisation; leave normalise_obs and "
                              "normalise_reward off")
    if plan.lag:
        raise ConfigError("lag = 1 is for --mode sync; in async, nothing waits")
    parts, rows = getattr(algorithm, "num_minibatches", 1), algorithm.num_steps * plan.lane_size
    if getattr(algorithm, "memory_size", 0):
        rows = plan.lane_size  # minibatches of whole columns
    if rows % parts:
        raise ConfigError(f"mode = 'async' learns from one lane at a time: {rows} rows do not divide into num_minibatches = {parts}; "
                          "change --lane-envs or --num-minibatches")


def check_workers(workers: int, num_lanes: int, lane_envs: int) -> None:
    """Refuse more workers than lanes."""
    if workers > num_lanes:
        raise ConfigError(f"workers = {workers}, but num_envs makes {num_lanes} lane{'s' if num_lanes > 1 else ''} of {lane_envs}; "
                          f"try --workers {num_lanes} or --num-envs {workers * lane_envs}")


def wanted(wish: str, world: World, warn_fn: Callable[[str], None], least: int = 0) -> int:
    """How many workers to start; 0: none, lanes stay in this process. It changes no bit, so it may depend on the machine."""
    fitting = max(1, _free_bytes() // _WORKER_BYTES)
    if wish != "auto":
        if int(wish) > fitting:
            warn_fn(f"workers = {wish} do not fit into memory: {fitting} are used")
        return min(int(wish), fitting)
    step_s = 0.0 if world.env is not None else within(_TRIAL_S, lambda: step_cost(world), 1.0)
    workers = chosen(world.num_lanes, num_cores(), fitting, step_s)
    if least and not workers:
        return max(least, min(world.num_lanes, num_cores(), fitting))
    if not workers:
        what = "its environment is compiled" if world.env is not None else f"a step takes {step_s * 1e6:.0f} µs"
        warn_fn(f"workers = auto: none, {what}; --workers N starts them all the same")
    return workers


def chosen(num_lanes: int, cores: int, fitting: int, step_s: float) -> int:
    """One worker a core, no more than lanes or than fit; none where handing a step over costs more than taking it, or there is one lane."""
    workers = min(num_lanes, cores, fitting)
    return workers if workers > 1 and step_s >= _CHEAP_S else 0


def within(deadline_s: float, call_fn: Callable[[], float], otherwise: float) -> float:
    """What a call answers in time, else ``otherwise``: it may never come back, or raise, and others will find out how."""
    answer = [otherwise]

    def call() -> None:
        with suppress(Exception):
            answer[0] = call_fn()

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(deadline_s)
    return answer[0]


def step_cost(world: World) -> float:
    """Seconds that a step of the environment takes, by a short trial."""
    from shoal.envs.replay import random_action

    assert world.make_fn is not None
    with closing(world.make_fn()) as env:
        draw, times = np.random.default_rng(0), []
        env.reset(0)
        for seed in range(_TRIED):
            action = random_action(world.spec, draw)
            begun = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            times.append(time.perf_counter() - begun)
            if np.all(np.logical_or(terminated, truncated)):
                env.reset(seed)
    return float(np.median(times))


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_bytes() -> int:
    """Memory that is free, as far as it can be known."""
    free = 1 << 62
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            free = min(free, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, KeyError, ValueError):
        pass
    return max(0, free)
