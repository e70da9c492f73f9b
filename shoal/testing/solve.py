"""Train an algorithm on the probe environments and ask it what it learned; the same for every algorithm and path.

Fused, all probes and seeds are one compiled program: the iterations are scanned, kinds and seeds vmapped, or in turn where there is
replay. Ported, the engine of that name runs them one after the other; which probe it is, is data, so they share its compiled calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import lane, loops, rng
from shoal.errors import ConfigError
from shoal.runtime.cut import on_device
from shoal.runtime.fused import Fused
from shoal.runtime.ported import Ported
from shoal.tensors import filled
from shoal.testing.probes import Probe, expected
from shoal.types import Algorithm, Array, Env, Key, Limits, Tree

ValueFn = Callable[[Tree, Array], Array]  # learner state, observations [K, ...] → values [K]
EnvFn = Callable[[Array], Env]  # kind → probe
_WIDTH = 2  # the most observations any probe asks about


class Solved(NamedTuple):
    """What was learned, for every kind and seed; as many of the K answers count as ``expected(kind, ...)`` has rows."""

    value: np.ndarray  # [kinds, seeds, K]
    action: np.ndarray  # greedy, [kinds, seeds, K] or [kinds, seeds, K, D]


def solve_probes(algorithm: Algorithm, path: str, kinds: Sequence[int], seeds: Sequence[int], iterations: int, *,
                 value_fn: ValueFn, env_fn: EnvFn = Probe, num_envs: int = 8, lane_envs: int = 4) -> Solved:
    """Train ``algorithm`` for ``iterations`` on every kind of probe with every seed, along ``path`` (fused or ported).

    ``value_fn`` reads a state's value of observations; ``env_fn`` makes a probe of a kind: ``Probe`` or ``ContinuousProbe``.
    """
    queries = np.stack([np.resize(expected(kind, 0.5).obs, (_WIDTH, 2)) for kind in kinds])
    paths = {"fused": _solve_fused, "ported": _solve_ported}
    if path not in paths:
        raise ConfigError(f"path = {path!r}: expected fused or ported")
    return paths[path](_Task(on_device(algorithm), np.asarray(kinds, np.int32), queries, list(seeds), iterations, value_fn,
                             env_fn, num_envs, lane_envs))


def solve_score(algorithm: Algorithm, env: Env, path: str, seeds: Sequence[int], iterations: int, *, num_envs: int = 8, lane_envs: int = 4,
                episodes: int = 64) -> list[float]:
    """The mean return of greedy episodes after ``iterations``, for every seed: for worlds where memory or images decide."""
    makers: dict[str, Any] = {"fused": lambda: Fused(algorithm, env, num_envs=num_envs, lane_envs=lane_envs),
                              "ported": lambda: Ported(algorithm, env, None, num_envs=num_envs, lane_envs=lane_envs)}
    if path not in makers:
        raise ConfigError(f"path = {path!r}: expected fused or ported")
    engine, scores = makers[path](), []
    for seed in seeds:
        engine.init(seed)
        done = 0
        while done < iterations:
            done += len(engine.run(Limits(iterations - done, 2**31 - 1, float("inf"))).iterations)
        scores.append(float(np.mean(engine.evaluate(episodes, True).returns)))
    engine.close()
    return scores


class _Task(NamedTuple):
    algorithm: Algorithm
    kinds: np.ndarray
    queries: np.ndarray  # observations to ask about, [kinds, K, 2]
    seeds: list[int]
    iterations: int
    value_fn: ValueFn
    env_fn: EnvFn
    num_envs: int
    lane_envs: int


def _ask(algorithm: Algorithm, env: Env, state: Tree, obs: Array, value_fn: ValueFn) -> Solved:
    size = obs.shape[0]
    noise = jax.tree.map(lambda x: x[0], algorithm.draw(env.spec, jax.random.key(0), (1, size)))  # greedy: not used
    role, memory = lane.role(0.0, size, greedy=True), algorithm.memory(env.spec, size)
    acted = algorithm.act(algorithm.policy(state), memory, obs, role, noise)
    return Solved(value_fn(state, obs), acted.action)


def _solve_fused(task: _Task) -> Solved:
    num_lanes = task.num_envs // task.lane_envs
    role = lane.role(np.repeat(np.arange(num_lanes) / num_lanes, task.lane_envs), task.num_envs)

    def one(algorithm: Algorithm, kind: Array, obs: Array, root: Key) -> Solved:
        env = task.env_fn(kind)

        def iterate(_: Array, carry: loops.Carry) -> loops.Carry:
            return loops.iterate(algorithm, env, root, carry, role, num_lanes)[0]

        start = loops.begin(algorithm, env, root, num_lanes, task.lane_envs)
        end = jax.lax.fori_loop(0, task.iterations, iterate, start)
        return _ask(algorithm, env, end.desk.learner, obs, task.value_fn)

    def side_by_side(algorithm: Algorithm, kinds: Array, queries: Array, roots: Array) -> Solved:
        over_seeds = jax.vmap(one, in_axes=(None, None, None, 0))
        return jax.vmap(over_seeds, in_axes=(None, 0, 0, None))(algorithm, kinds, queries, roots)

    def in_turn(algorithm: Algorithm, kinds: Array, queries: Array, roots: Array) -> Solved:
        return jax.lax.map(lambda of: jax.lax.map(lambda root: one(algorithm, of[0], of[1], root), roots), (kinds, queries))

    # side by side, every update would copy the replay buffers of all runs, since any of them might have none due
    spec = task.env_fn(task.kinds[0]).spec
    held = jax.eval_shape(lambda: task.algorithm.buffer(spec).init(spec, task.num_envs, num_lanes, task.algorithm.num_steps))
    solve = jax.jit(in_turn if jax.tree.leaves(held) else side_by_side)
    return jax.device_get(solve(task.algorithm, task.kinds, task.queries, jnp.stack([rng.root(seed) for seed in task.seeds])))


def _solve_ported(task: _Task) -> Solved:
    ask = jax.jit(partial(_ask, value_fn=task.value_fn))

    def one(kind: np.ndarray, obs: np.ndarray, seed: int) -> Any:
        env = task.env_fn(kind)
        engine = Ported(task.algorithm, env, None, num_envs=task.num_envs, lane_envs=task.lane_envs)
        engine.init(seed)
        for _ in range(task.iterations):
            engine.run(Limits(1, 2**31 - 1, float("inf")))
        like = jax.eval_shape(lambda: task.algorithm.init(env.spec, engine.root))
        state = filled(like, engine.learner(), "learner")
        engine.close()
        return ask(task.algorithm, env, state, obs)

    def stack(answers: list[Any]) -> Any:
        return jax.tree.map(lambda *rows: np.stack(rows), *answers)

    pairs = zip(task.kinds, task.queries, strict=True)
    return stack([stack([one(kind, obs, seed) for seed in task.seeds]) for kind, obs in pairs])
