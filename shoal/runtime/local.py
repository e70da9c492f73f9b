"""Everything in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.errors import ConfigError
from shoal.plan import Plan
from shoal.runtime import lanes
from shoal.runtime.fused import Fused
from shoal.runtime.ported import Ported
from shoal.tabular.engine import Tables
from shoal.tabular.setup import open_setup
from shoal.types import Algorithm, Env, HostEnv


class Local:
    """This process."""

    name = "local"
    workers = "auto"  # none are needed

    def engine(self, algorithm: Algorithm, env: Env | HostEnv, make_fn: Callable[[], HostEnv], *, plan: Plan, stream_episodes: bool
               ) -> Fused | Ported:
        """The engine for a plan; ``path`` auto fuses what can be compiled."""
        path, num_envs, lane_envs = plan.path, plan.num_envs, plan.lane_size
        if plan.mode != "sync" or plan.topology != "learner":
            what = "mode = 'async'" if plan.mode != "sync" else "topology = 'server'"
            raise ConfigError(f"{what} needs workers that do not wait: use --runtime processes")
        if path == "fused" and plan.lag:
            raise ConfigError("lag = 1: a fused program learns from what it has just collected; use --path ported")
        if isinstance(env, HostEnv) and path == "fused":
            raise ConfigError(f"path = 'fused': {env.spec.name!r} lives in Python and cannot be compiled; use --path ported")
        buffer = lanes.check(algorithm, env.spec, num_envs, num_envs // lane_envs)
        if buffer.apart and path == "fused":
            raise ConfigError("path = 'fused': replay that does not lie on the device cannot be compiled in; use --path ported")
        sizes: dict[str, Any] = {"num_envs": num_envs, "lane_envs": lane_envs, "stream_episodes": stream_episodes}
        if isinstance(env, HostEnv):
            return Ported(algorithm, None, make_fn, lag=plan.lag, **sizes)
        if path == "ported" or buffer.apart or plan.lag:
            return Ported(algorithm, env, None, lag=plan.lag, **sizes)
        return Fused(algorithm, env, **sizes)

    def tables(self, learner: Any, env: Any, make_fn: Callable[[], Any], *, plan: Plan, stream_episodes: bool) -> Tables:
        """The engine for learning in tables, here."""
        if plan.mode != "sync" or plan.topology != "learner":
            raise ConfigError("mode = 'async' needs workers that do not wait: use --runtime processes")
        return Tables(open_setup(learner, plan, make_fn), plan, stream_episodes=stream_episodes)
