"""Conformance of algorithms: first their functions one by one, on one chunk of a probe; then the probes, on every path."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import lane, loops, rng
from shoal.errors import ShoalError
from shoal.runtime.cut import on_device
from shoal.runtime.device import Compilations
from shoal.specs import EnvSpec
from shoal.testing.findings import Entry, Finding, Log
from shoal.testing.leaf import Misfit, digest, faults, global_draws, of_spec
from shoal.testing.probes import Kind, Probe, expected
from shoal.testing.pure_checks import differ, line, trace
from shoal.testing.solve import solve_probes
from shoal.types import Algorithm, Array, Batch, Env, Key, Params, Role, Tree

_STOPS = "the run stops before its first step"
TABLE = {
    "pytree": Entry("the algorithm is a pytree", f"{_STOPS}: decorate its class with shoal.types.pytree"),
    "init": Entry("init answers arrays, all finite", _STOPS),
    "act": Entry("act answers one action per environment and leaves the memory's form as it is", _STOPS),
    "action_space": Entry("actions are in the action space", "the environment gets actions it did not declare"),
    "greedy": Entry("greedy actions do not depend on noise", "scores are those of a policy that explores"),
    "update": Entry("update leaves the state's structure and types as they are, and its metrics are single numbers", _STOPS),
    "learns": Entry("update changes what act uses", "nothing is learned"),
    "pure": Entry("the same key gives the same bits, and nothing else decides",
                  "runs do not repeat, and a resume is no continuation"),
    "non_finite": Entry("a reward that is not a number leaves no such number in the state",
                        "the run goes on with a damaged learner"),
    "recompile": Entry("a new value of a float field compiles nothing", "every value of a sweep or population compiles anew"),
}
KNOWN = (Kind.CONSTANT, Kind.OBSERVATION, Kind.DELAYED, Kind.ACTION, Kind.BOTH, Kind.TRUNCATION)
_ABOUT = {Kind.CONSTANT: "the value of a constant reward", Kind.OBSERVATION: "values that depend on the observation",
          Kind.DELAYED: "a later reward, discounted", Kind.ACTION: "the right action",
          Kind.BOTH: "the right action for each observation", Kind.TRUNCATION: "a value that does not collapse at a time limit"}
_fresh = itertools.count()  # a value tried before may be compiled already
_VALUE_RTOL, _VALUE_ATOL, _LEVEL_ATOL = 0.05, 0.1, 0.15


class Task(NamedTuple):
    algorithm: Any
    value_fn: Callable[[Tree, Array], Array] | None
    env_fn: Callable[[Any], Env] | None
    kinds: tuple[int, ...] | None
    paths: tuple[str, ...]
    seeds: tuple[int, ...]
    iterations: int
    num_envs: int
    lane_envs: int
    discount: float


def check(task: Task) -> list[Finding]:
    """Everything, in order; where the functions are wrong, the probes are left out."""
    kinds = tuple(Kind(kind) for kind in (KNOWN if task.kinds is None else task.kinds))
    judged = [kind for kind in kinds if task.value_fn is not None or (expected(kind, 0.5).action >= 0).any()]
    probes = {f"{kind.name.lower()} ({path})": Entry(f"solved: {_ABOUT[kind]}", "it will learn something else, or nothing")
              for path in task.paths for kind in judged}
    log = Log(TABLE | probes)
    task = task._replace(kinds=tuple(judged), env_fn=task.env_fn or Probe)
    try:
        with global_draws() as used:
            _check_functions(task, log)
        if used:
            log.fault("pure", f"{' and '.join(used)} changed: a process-wide generator was used")
    except Misfit as misfit:
        log.fault(misfit.check, str(misfit))
    if not log.faulty and judged:
        for path in task.paths:
            _check_probes(task, path, log)
    return log.findings()


# the functions, one by one -------------------------------------------------------------------------------------------


@jax.jit
def _collect(algorithm: Algorithm, env: Env, state: Tree, root: Key, role: Role) -> tuple[Batch, Tree]:
    """One chunk of ``role``'s environments, as the batch to learn from that its buffer makes of it, and the memory after it."""
    size = role.rank.shape[0]
    start = lane.start(algorithm, env, root, 0, size)
    params = algorithm.policy(state)
    after, data, _ = lane.rollout(algorithm, env, params, start, lane.draw(algorithm, env, root, 0, 0, size), role)
    buffer = algorithm.buffer(env.spec)
    held = buffer.add(buffer.init(env.spec, size, 1, algorithm.num_steps), None, data)
    _, sample = buffer.sample(held, rng.key(root, rng.Stream.SAMPLE))
    return Batch(sample.batch, start.memory, params, algorithm.num_steps * size, sample.weight), after.memory


@jax.jit
def _learn(algorithm: Algorithm, state: Tree, batch: Batch, key: Key) -> Any:
    learner, metrics, _ = loops.learn(algorithm, state, batch, key)
    return learner, algorithm.policy(learner), metrics


def _act(spec: EnvSpec, algorithm: Algorithm, params: Params, obs: Array, role: Role, key: Key) -> Any:
    size = role.rank.shape[0]
    noise = jax.tree.map(lambda x: x[0], algorithm.draw(spec, key, (1, size)))
    return algorithm.act(params, algorithm.memory(spec, size), obs, role, noise)


_act_compiled = jax.jit(_act, static_argnums=0)
_init = jax.jit(lambda algorithm, spec, key: algorithm.init(spec, key), static_argnums=1)


def _call(check: str, fn: Callable[..., Any], *args: Any) -> Any:
    """A call of the algorithm; whatever it raises is a finding."""
    try:
        return fn(*args)
    except (Misfit, ShoalError):
        raise
    except Exception as error:  # the algorithm is someone else's code and may raise anything
        raise Misfit(check, f"{type(error).__name__}: {line(error)}") from error


def _check_functions(task: Task, log: Log) -> None:
    given, size = task.algorithm, task.num_envs
    log.tried("pytree")
    if any(leaf is given for leaf in jax.tree.leaves(given)):
        raise Misfit("pytree", f"{type(given).__name__} is not a pytree")
    algorithm = on_device(given)
    assert task.env_fn is not None
    env = task.env_fn(jnp.int32(Kind.BOTH))
    spec, root = env.spec, rng.root(0)
    log.tried("init", "pure")
    state = _call("init", _init, algorithm, spec, root)
    numbers = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.inexact)]
    if not all(bool(jnp.isfinite(x).all()) for x in numbers):
        log.fault("init", "the fresh state holds a number that is not finite")
        return
    _check_acting(algorithm, spec, _call("init", algorithm.policy, state), size, log)
    if log.faulty:  # what comes next builds on what failed
        return
    batch, memory = _call("act", _collect, algorithm, env, state, root, lane.role(0.0, size))
    if difference := differ(jax.eval_shape(lambda: batch.memory), jax.eval_shape(lambda: memory)):
        log.fault("act", f"the memory after a chunk has {difference}")
    _check_actions(spec, np.asarray(batch.data.action), log)
    if not log.faulty:
        _check_learning(task, algorithm, spec, state, batch, log)


def _check_acting(algorithm: Algorithm, spec: EnvSpec, params: Params, size: int, log: Log) -> None:
    """The form of an answer, that tracing repeats, and that greedy means greedy."""
    log.tried("act", "greedy")
    obs = np.random.default_rng(0).uniform(-1, 1, (size, *spec.obs.shape)).astype(np.float32)  # type: ignore[union-attr]
    args = algorithm, params, obs, lane.role(0.0, size, greedy=True), rng.root(1)
    traced, again = (trace(partial(_act, spec), *args, what="act", check="act") for _ in range(2))
    wanted = (size, *spec.action.shape)
    if getattr(getattr(traced.out, "action", None), "shape", None) != wanted:
        got = getattr(getattr(traced.out, "action", None), "shape", None)
        raise Misfit("act", f"action has shape {got}: expected {wanted}")
    starts = [trace(lambda a, key: a.init(spec, key), algorithm, rng.root(0), what="init", check="init") for _ in range(2)]
    if traced.program != again.program or starts[0].program != starts[1].program:
        log.fault("pure", "init or act was traced twice and gave two different programs: it reads something that changes")
    answers = [_act_compiled(spec, algorithm, params, obs, lane.role(0.0, size, greedy), rng.root(seed))
               for seed, greedy in ((1, True), (2, True), (3, False))]
    one, other, explored = (np.asarray(answer.action) for answer in answers)
    _check_actions(spec, np.stack([one, other, explored]), log)
    if digest(one) != digest(other):
        log.fault("greedy", f"two draws of noise gave {one.ravel()[:4]} and {other.ravel()[:4]}")


def _check_actions(spec: EnvSpec, actions: np.ndarray, log: Log) -> None:
    """``actions`` [..., actions]. A policy without bounds of its own may answer any finite number: maps and environments clip."""
    log.tried("action_space")
    (leaf,) = of_spec(spec.action, actions.shape[: actions.ndim - len(spec.action.shape)])
    for check, detail in faults(leaf, actions):
        if leaf.choice or check in ("shape", "finite"):
            log.fault("action_space", detail.replace("observation", "action"))


def _check_learning(task: Task, algorithm: Algorithm, spec: EnvSpec, state: Tree, batch: Batch, log: Log) -> None:
    log.tried("update", "learns", "non_finite", "recompile")
    key = rng.root(3)

    def update(algorithm: Algorithm, state: Tree, batch: Batch, key: Key) -> Any:
        return algorithm.update(state, batch, key)

    traced, again = (trace(update, algorithm, state, batch, key, what="update", check="update") for _ in range(2))
    if traced.program != again.program:
        log.fault("pure", "update was traced twice and gave two different programs: it reads something that changes")
        return
    if difference := differ(jax.eval_shape(lambda: state), traced.out.state):
        raise Misfit("update", f"the state after update has {difference}")
    for name, metric in traced.out.metrics.items():
        if metric.shape != ():
            raise Misfit("update", f"metric {name!r} has shape {list(metric.shape)}: expected a single number")
    first, second = (jax.device_get(_call("update", _learn, algorithm, state, batch, key)) for _ in range(2))
    if digest(jax.tree.leaves(first)) != digest(jax.tree.leaves(second)):
        log.fault("pure", "update with the same state, batch and key gave other bits")
    if digest(jax.tree.leaves(first[1])) == digest(jax.tree.leaves(jax.device_get(algorithm.policy(state)))):
        log.fault("learns", "the policy after an update is the one before it")
    spoilt = batch._replace(data=batch.data._replace(reward=batch.data.reward * jnp.nan))
    learner, _, metrics = jax.device_get(_learn(algorithm, state, spoilt, key))
    whole = all(np.isfinite(x).all() for x in jax.tree.leaves(learner) if np.issubdtype(x.dtype, np.inexact))
    same = digest(jax.tree.leaves(learner)) == digest(jax.tree.leaves(jax.device_get(state)))
    if not whole or (float(metrics["refused"]) and not same):
        log.fault("non_finite", "an update from rewards that are not numbers left its mark")
    _check_recompile(task.algorithm, state, batch, key, log)


def _check_recompile(given: Any, state: Tree, batch: Batch, key: Key, log: Log) -> None:
    """Another value for every float field, one after the other."""
    fields = dataclasses.fields(given) if dataclasses.is_dataclass(given) else ()
    for field in fields:
        value = getattr(given, field.name)
        if not isinstance(value, float) or "Fixed" in str(field.type):
            continue
        factor = 0.99 - 1e-6 * next(_fresh)
        another = factor * value if math.isfinite(value) and value else factor
        changed = on_device(dataclasses.replace(given, **{field.name: another}))
        counted = Compilations()
        jax.block_until_ready(_learn(changed, state, batch, key))
        if counted.count:
            log.fault("recompile", f"another value of {field.name} was compiled anew: annotate it as float, not as {field.type}")


# the probes ----------------------------------------------------------------------------------------------------------


def _check_probes(task: Task, path: str, log: Log) -> None:
    value_fn = task.value_fn or (lambda state, obs: jnp.zeros(obs.shape[0]))
    assert task.kinds is not None and task.env_fn is not None
    kinds = [Kind(kind) for kind in task.kinds]
    names = [f"{kind.name.lower()} ({path})" for kind in kinds]
    log.tried(*names)
    try:
        solved = solve_probes(task.algorithm, path, kinds, task.seeds, task.iterations, value_fn=value_fn, env_fn=task.env_fn,
                              num_envs=task.num_envs, lane_envs=task.lane_envs)
    except Exception as error:  # the algorithm is someone else's code and may raise anything
        log.fault(names[0], f"{type(error).__name__}: {line(error)}")
        return
    for row, (kind, name) in enumerate(zip(kinds, names, strict=True)):
        wanted = expected(kind, task.discount)
        rows = len(wanted.value)
        value, action = np.asarray(solved.value[row, :, :rows], np.float64), np.asarray(solved.action[row, :, :rows])
        if task.value_fn is not None and not np.allclose(value, wanted.value, rtol=_VALUE_RTOL, atol=_VALUE_ATOL):
            worst = np.unravel_index(int(np.argmax(np.abs(value - wanted.value))), value.shape)
            seed = task.seeds[int(worst[0])]
            right, shown = wanted.value[worst[1]], wanted.obs[worst[1]].tolist()
            log.fault(name, f"seed {seed}: value {value[worst]:.3g} of {shown}: expected {right:.3g}")
        level = wanted.level if action.ndim == 3 else wanted.action
        action = action[..., 0] if action.ndim == 3 else action
        matters = ~np.isnan(wanted.level)
        off = np.abs(action[:, matters] - level[matters]) > (_LEVEL_ATOL if np.issubdtype(action.dtype, np.floating) else 0)
        if off.any():
            seed = task.seeds[int(np.argmax(off.any(1)))]
            log.fault(name, f"seed {seed}: greedy actions {action[:, matters].tolist()}: expected {level[matters].tolist()}")
