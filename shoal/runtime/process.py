"""The process runtime: which engine a plan calls for, and which crew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.buffers.rollout import Rollout
from shoal.errors import ConfigError
from shoal.plan import Plan
from shoal.runtime import place, tables, told
from shoal.runtime.crew import Crew
from shoal.runtime.flowing import Flowing
from shoal.runtime.lanes import World
from shoal.runtime.ported import Here, Ported
from shoal.runtime.serving import Pushes, Serving
from shoal.runtime.stream import Stream
from shoal.runtime.trace import FOLDER
from shoal.runtime.workers import spread, wanted
from shoal.specs import EnvSpec
from shoal.types import Algorithm, Env, HostEnv, ParamSource


class Processes:
    """Lanes spread over worker processes."""

    name = "processes"

    def __init__(self, workers: int | str = "auto"):
        self.workers = str(workers)

    def engine(self, algorithm: Algorithm, env: Env | HostEnv, make_fn: Callable[[], HostEnv], *, plan: Plan, stream_episodes: bool
               ) -> Ported:
        """The engine for a plan: lanes, chunks and ports, with the lanes in workers."""
        check_not_imported()
        worlds, sizes = spread(algorithm, env, make_fn, plan, stream_episodes)
        described, free, serves = place.describe(plan), plan.mode == "async", plan.topology == "server"
        if free or serves:
            check_async(algorithm, env.spec, plan)

        def crew(world: World, params: ParamSource, lag: int) -> Any:
            workers = wanted(plan.workers, world, made.warn_fn, least=int(free))
            if not workers:
                return Here(world, params, lag)
            if plan.trace and made.logs is not None:
                described["trace"] = str(made.logs.with_name(FOLDER).absolute())
            return (Pushes if serves else Stream if free else Crew)(
                world, params, lag, told=described, workers=workers, step_timeout_s=plan.step_timeout_s, max_restarts=plan.max_restarts,
                logs=made.logs, warn_fn=made.warn_fn, stop_fn=made.stop_fn, trace=made.trace)

        if free:
            made: Ported = (Serving if serves else Flowing)(algorithm, *worlds, max_staleness=plan.max_staleness, crew_fn=crew, **sizes)
        else:
            made = Ported(algorithm, *worlds, lag=plan.lag, crew_fn=crew, **sizes)
        return made

    def tables(self, learner: Any, env: Any, make_fn: Callable[[], Any], *, plan: Plan, stream_episodes: bool) -> Any:
        """The engine for learning in tables, with the lanes in workers."""
        check_not_imported()
        return tables.engine(learner, make_fn, plan, stream_episodes)


def check_not_imported() -> None:
    if told.in_worker():
        raise ConfigError("the script trains when it is imported, as workers do: put that under `if __name__ == \"__main__\":`")


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
