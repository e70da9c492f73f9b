"""The fused engine: environment and learner compiled into one program."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import flow, lane, loops, rng
from shoal.loops import Scores
from shoal.runtime.cut import ends, on_device, watch
from shoal.scoring import evaluate_compiled
from shoal.tensors import filled, named
from shoal.types import Algorithm, Env, Iteration, Limits, Params, Report

_CALL_S = 1.0  # how long one call should take
_CAPACITY = 1024  # iterations one call can report
_MOST = 2**31 - 1


_begin = jax.jit(loops.begin, static_argnums=(3, 4))


class Fused:
    """Environment and learner compiled into one program; about a second's worth of iterations per call."""

    path, workers = "fused", 1

    def __init__(self, algorithm: Algorithm, env: Env, *, num_envs: int, lane_envs: int, stream_episodes: bool = False):
        self.algorithm, self.env, self.spec = on_device(algorithm), env, env.spec
        self.num_lanes, self._lane_envs = num_envs // lane_envs, lane_envs
        self.steps_per_iteration = algorithm.num_steps * num_envs
        self._stream = stream_episodes
        self._capacity = max(1, min(_CAPACITY, 2**24 // self.steps_per_iteration)) if stream_episodes else _CAPACITY
        self._pace = 0.0  # seconds per iteration, as seen
        self._refused = 0
        self._run: Any = None
        ranks = np.repeat(np.arange(self.num_lanes) / self.num_lanes, lane_envs)
        self._role = lane.role(ranks, num_envs)

    def settle(self, folder: Path, warn_fn: Callable[[str], None], stop_fn: Callable[[], bool], trace: bool) -> None:
        """Nothing is waited for or mended, and one program has no timeline of its own: see ``jax.profiler``."""
        if trace:
            warn_fn("--trace shows processes, and a fused run is one program: nothing is written; try --path ported")

    def init(self, seed: int) -> None:
        self.root, self._refused = rng.root(seed), 0
        self._carry = _begin(self.algorithm, self.env, self.root, self.num_lanes, self._lane_envs)

    def run(self, limits: Limits) -> Report:
        bounds = self._bounds(limits)
        args = (self.algorithm, self.env, self.root, self._carry, self._role, bounds)
        compile_s = 0.0
        if self._run is None:
            begun = time.perf_counter()
            run = loops.fuse(self.num_lanes, self._capacity, self._stream)
            self._run = jax.jit(run, donate_argnums=3).lower(*args).compile()
            compile_s = time.perf_counter() - begun
        begun = time.perf_counter()
        first = int(self._carry.iteration)
        self._carry, record = self._run(*args)
        rows = jax.device_get(record)
        spent = time.perf_counter() - begun
        done = int(rows.done)
        if done:
            self._pace = spent / done
        return Report([self._iteration(rows, i, first + i) for i in range(done)], spent, compile_s)

    def _bounds(self, limits: Limits) -> loops.Bounds:
        """The first call is short, to learn the pace; timing decides only how iterations are grouped."""
        fit = int(_CALL_S / self._pace) if self._pace else 2
        most = max(1, min(limits.iterations, fit, self._capacity))
        return loops.Bounds(jnp.int32(most), jnp.int32(min(limits.episodes, _MOST)), jnp.float32(limits.target))

    def _iteration(self, rows: loops.Record, i: int, number: int) -> Iteration:
        metrics = {name: float(values[i]) for name, values in rows.metrics.items()}
        self._refused = watch(self._refused, metrics, number)
        ended = ends(*(x[i] for x in rows.episodes)) if rows.episodes is not None else []
        return Iteration(metrics, int(rows.counts.episodes[i]), float(rows.counts.return_sum[i]), int(rows.counts.length_sum[i]),
                         float(rows.counts.mean_return[i]), ended)

    def cut(self) -> dict[str, np.ndarray]:
        return named(self._carry, "run") | {"refused": np.asarray(self._refused)}

    def attach(self, folder: Path) -> dict[str, str]:
        """All of it is in the tensors."""
        return {}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool = False) -> list[str]:
        self._carry = filled(self._carry, tensors, "run")
        self._refused = int(tensors["refused"])
        return []

    def load_policy(self, tensors: dict[str, np.ndarray]) -> None:
        """Only the learner, for acting."""
        desk = self._carry.desk
        self._carry = self._carry._replace(desk=desk._replace(learner=filled(desk.learner, tensors, "run.desk.learner")))

    def learner(self) -> dict[str, np.ndarray]:
        return named(self._carry.desk.learner, "learner")

    def policy(self) -> Params:
        return self.algorithm.policy(self._carry.desk.learner)

    def evaluate(self, episodes: int, greedy: bool = True) -> Scores:
        return evaluate_compiled(self.algorithm, self.env, self.policy(), self.root, episodes, greedy)

    def timing(self) -> dict[str, Any]:
        return {}

    def staleness(self) -> dict[str, int]:
        return {}

    def ledger(self) -> dict[str, int]:
        """What became of chunks: all are learned from at once."""
        made = int(self._carry.iteration) * self.num_lanes
        return {"produced": made, "learned": made} | dict.fromkeys(flow.LEDGER[2:], 0)

    def rest(self) -> None:
        """Nothing runs between two calls."""

    def close(self) -> None:
        """Nothing is held open."""
