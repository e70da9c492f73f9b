"""How many workers there should be, and what every runtime with workers makes sure of first."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from shoal.envs.replay import random_action
from shoal.errors import ConfigError
from shoal.plan import Plan
from shoal.runtime.lanes import World, check
from shoal.types import Algorithm, Env, HostEnv

_CHEAP_S = 50e-6  # a step that takes less is done before another process has heard of it
_TRIED, _TRIAL_S = 64, 2.0  # steps that are timed, and how long that may take: longer, and they are not cheap
_WORKER_BYTES = 400 << 20  # what a worker takes before its environments do


def spread(algorithm: Algorithm, env: Env | HostEnv, make_fn: Callable[[], HostEnv], plan: Plan, stream_episodes: bool
           ) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """What an engine with workers is made of: its environment, compiled or as what makes one, and its sizes; what cannot be is refused."""
    if plan.path == "fused":
        raise ConfigError("path = 'fused' is one program in one process; use --path ported, or --runtime local")
    num_lanes = plan.num_envs // plan.lane_size
    check(algorithm, env.spec, plan.num_envs, num_lanes)
    if plan.workers != "auto" and int(plan.workers) > num_lanes:
        lanes = f"{num_lanes} lane{'s' if num_lanes > 1 else ''} of {plan.lane_size}"
        raise ConfigError(f"workers = {plan.workers}, but num_envs makes {lanes}; "
                          f"try --workers {num_lanes} or --num-envs {int(plan.workers) * plan.lane_size}")
    worlds = (None, make_fn) if isinstance(env, HostEnv) else (env, None)
    return worlds, {"num_envs": plan.num_envs, "lane_envs": plan.lane_size, "stream_episodes": stream_episodes}


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
