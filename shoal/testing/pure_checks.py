"""Conformance of compiled environments: their programs are traced twice, run twice, and their answers examined.

Everything is learned from one compiled program per environment, many episodes side by side.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.specs import EnvSpec
from shoal.testing.findings import Entry, Log, say_limit
from shoal.testing.leaf import Leaf, Misfit, digest, faults, global_draws, looks_reset, of_spec, pick
from shoal.types import Array, Env, Key, Step, Tree

TABLE = {
    "spec": Entry("an EnvSpec that can be hashed, with valid spaces", "shoal refuses the environment"),
    "pytree": Entry("the environment is a pytree", "shoal refuses the environment: decorate its class with shoal.types.pytree"),
    "reset": Entry("reset answers (state, observation)", "the run stops before its first step"),
    "step": Entry("step answers (state, Step)", "the run stops before its first step"),
    "jit": Entry("reset and step compile, parameters as data", "the run stops before its first step"),
    "shape": Entry("observations have the declared shape", "the network is built for another shape: the run stops"),
    "dtype": Entry("observations have the declared type", "fused and ported runs would see different numbers"),
    "bounds": Entry("observations lie within the declared bounds", "shoal does not clip: the network sees them as they are"),
    "finite": Entry("observations and rewards are finite", "updates are refused until the run stops with a DivergedError"),
    "reward": Entry("rewards are real numbers", "shoal converts them to float32"),
    "flags": Entry("terminated and truncated are booleans", "the run stops: ends are combined as booleans"),
    "info": Entry("info has exactly the declared keys", "evaluation stops where it needs the key; others are left out"),
    "agents": Entry("rewards and flags have one entry per agent", "the run stops, or one agent gets another's reward"),
    "scan": Entry("step leaves the state's structure and types as they are", "a scan needs them equal: the run stops at once"),
    "pure": Entry("the same state, action and key give the same answer", "what was compiled is kept: later changes are not seen, "
                  "and runs do not repeat"),
    "global_random": Entry("no process-wide generator is used", "its numbers are drawn once, when compiled, and never again"),
    "seeding": Entry("different keys give different starts", "every episode starts alike"),
    "final_observation": Entry("the last observation of an episode is its own",
                               "shoal would learn from another episode's start: do not reset inside step"),
    "truncation": Entry("a time limit is reported as truncated, not as terminated",
                        "shoal would value what lies beyond the limit at 0"),
    "limit": Entry("episodes end", "training runs on, evaluation cuts episodes at 100,000 steps: give --max-episode-steps"),
    "action_bounds": Entry("the lowest and highest actions are accepted", "updates are refused when a policy reaches them"),
}
_CAP, _RESETS, _LEAST = 2_000, 24, 4  # steps without a limit of its own; more resets; episodes side by side at least
_WIDE = 10.0  # how far actions without a bound are drawn


class Played(NamedTuple):
    """Episodes side by side, [T, B, ...]; what follows an end is not to be looked at."""

    starts: Tree  # first observations, [R, ...]
    obs: Tree
    other: Tree  # the same step with another key
    reward: Array
    terminated: Array
    truncated: Array


def check_pure(env: Any, log: Log, episodes: int, seed: int, by_name: bool) -> None:
    """Examine ``env`` and note in ``log`` what was found."""
    try:
        with global_draws() as used:
            leaves = _check_form(env, log)
        if not log.failed("global_random"):
            log.tried("global_random")
            if used:
                log.fault("global_random", f"{' and '.join(used)} changed while reset or step was traced")
        _check_played(env, env.spec, leaves, log, max(episodes, _LEAST) + 2, seed, by_name)
    except Misfit as misfit:
        log.fault(misfit.check, str(misfit))


def _check_form(env: Any, log: Log) -> list[Leaf]:
    """All that can be said without running anything."""
    log.tried("spec", "pytree", "reset", "step", "jit", "shape", "dtype", "reward", "flags", "info", "scan", "pure")
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        raise Misfit("spec", f"spec is {type(spec).__name__}: expected a shoal.specs.EnvSpec")
    try:
        hash(spec)
    except TypeError as error:
        raise Misfit("spec", f"spec cannot be hashed ({error}): give it tuples instead of lists or arrays") from error
    leaves = of_spec(spec.obs, spec.agent_shape)
    of_spec(spec.action)
    if any(leaf is env for leaf in jax.tree.leaves(env)):
        raise Misfit("pytree", f"{type(env).__name__} is not a pytree")
    if spec.agent_shape:
        log.tried("agents")
    key, action = jax.random.key(0), jnp.zeros((*spec.agent_shape, *spec.action.shape), spec.action.dtype)
    first = trace(lambda env, key: env.reset(key), env, key, what="reset")
    if not (isinstance(first.out, tuple) and len(first.out) == 2):
        raise Misfit("reset", f"reset answers a {type(first.out).__name__}: expected (state, observation)")
    state, obs = first.out
    then = trace(lambda env, state, action, key: env.step(state, action, key), env, state, action, key, what="step")
    if not (isinstance(then.out, tuple) and len(then.out) == 2 and isinstance(then.out[1], Step)):
        raise Misfit("step", f"step answers a {type(then.out).__name__}: expected (state, Step)")
    after, step = then.out
    _check_step(spec, leaves, log, obs, step)
    if difference := differ(state, after):
        raise Misfit("scan", f"the state after step has {difference}")
    if difference := differ(obs, step.obs):
        raise Misfit("scan", f"the observation after step has {difference}")
    for what, traced, fn, args in (("reset", first, lambda env, key: env.reset(key), (env, key)),
                                   ("step", then, lambda env, *rest: env.step(*rest), (env, state, action, key))):
        if trace(fn, *args, what=what).program != traced.program:
            log.fault("pure", f"{what} was traced twice and gave two different programs: it reads something that changes")
    for check in ("flags", "agents", "reward"):
        if log.failed(check):
            raise Misfit(check, "seen before")
    return leaves


class Traced(NamedTuple):
    out: Any  # shapes and types of the answer
    program: Any  # to be compared


def trace(fn: Any, *args: Any, what: str, check: str = "jit") -> Traced:
    """What ``fn`` computes, without computing it; arguments are data, the environment's parameters included."""
    try:
        traced, out = jax.make_jaxpr(lambda *args: fn(*args), return_shape=True)(*args)  # a new function: nothing is remembered
    except Exception as error:  # the environment is someone else's code and may raise anything
        raise Misfit(check, f"{what} raised {type(error).__name__}: {line(error)}") from error
    consts = [np.asarray(_plain(const)) for const in traced.consts]
    return Traced(out, (re.sub(r"0x[0-9a-f]+", "", str(traced)), digest(consts)))  # without addresses in memory


def line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _plain(const: Any) -> Any:
    return jax.random.key_data(const) if jnp.issubdtype(jnp.result_type(const), jax.dtypes.prng_key) else const


def differ(one: Tree, other: Tree) -> str:
    """How two trees of shapes differ, in words; empty where they do not."""
    before, after = str(jax.tree.structure(one)), str(jax.tree.structure(other))
    if before != after:
        return f"another structure: {after} after {before}"
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            where = jax.tree_util.keystr(path)
            return f"{b.dtype}{list(b.shape)}{' at ' + where if where else ''} after {a.dtype}{list(a.shape)} from reset"
    return ""


def _check_step(spec: EnvSpec, leaves: list[Leaf], log: Log, obs: Tree, step: Step) -> None:
    for where, shown in (("reset", obs), ("step", step.obs)):
        for leaf in leaves:
            got = pick(leaf, shown)
            if getattr(got, "shape", None) != leaf.shape:
                shape = list(getattr(got, "shape", ()))
                raise Misfit("shape", f"{leaf} from {where} has shape {shape}: its space says {list(leaf.shape)}")
            if got.dtype != leaf.dtype:
                log.fault("dtype", f"{leaf} from {where} has dtype {got.dtype}: its space says {leaf.dtype}")
    for name, got in (("reward", step.reward), ("terminated", step.terminated), ("truncated", step.truncated)):
        check = "reward" if name == "reward" else "flags"
        form, dtype = getattr(got, "shape", ()), np.dtype(getattr(got, "dtype", type(got)))
        if form != spec.agent_shape:
            log.fault("agents" if spec.num_agents else check, f"{name} has shape {list(form)}: expected {[*spec.agent_shape]}")
        if name == "reward" and dtype.kind not in "fiu":
            log.fault(check, f"reward has dtype {dtype}")
        if name != "reward" and dtype.kind != "b":
            log.fault(check, f"{name} has dtype {dtype}: expected bool")
    if not isinstance(step.info, dict):
        log.fault("info", f"info is a {type(step.info).__name__}")
    elif set(step.info) != set(spec.info):
        log.fault("info", f"info has {sorted(step.info)}: the spec declares {sorted(spec.info)}")


# what running shows --------------------------------------------------------------------------------------------------


def _actions(spec: EnvSpec, draw: np.random.Generator, num_steps: int, size: int) -> np.ndarray:
    """Actions [T, B, ...]: at random, held for a while in every other column; in the last two all lowest and all highest."""
    (leaf,) = of_spec(spec.action, spec.agent_shape)
    low, high = (np.clip(np.asarray(bound, np.float64), -_WIDE, _WIDE) for bound in (leaf.low, leaf.high))
    shape = (num_steps, size, *leaf.shape)
    actions = draw.integers(low.astype(int), high.astype(int) + 1, shape) if leaf.choice else draw.uniform(low, high, shape)
    anew = np.where(np.arange(size) % 2, draw.random((num_steps, size)) < 0.15, True)
    since = np.maximum.accumulate(np.where(anew, np.arange(num_steps)[:, None], 0), axis=0)
    actions = actions[since, np.arange(size)]
    actions[:, -2:] = np.stack([np.broadcast_to(bound, leaf.shape) for bound in (low, high)])
    return actions.astype(leaf.dtype)


def _keys(draw: np.random.Generator, *shape: int) -> Key:
    words = jax.random.key_data(jax.random.key(0)).shape
    return jax.random.wrap_key_data(jnp.asarray(draw.integers(0, 2**32, (*shape, *words), dtype=np.uint32)))


@jax.jit
def _play(env: Env, reset_keys: Key, actions: Array, step_keys: Key) -> Played:
    """Episodes side by side; drawing is done outside, which halves what there is to compile."""
    state, starts = jax.vmap(env.reset)(reset_keys)
    size = actions.shape[1]

    def twice(state: Tree, action: Array, keys: Key) -> tuple[Tree, Step, Tree]:
        after, step = jax.vmap(env.step, in_axes=(None, None, 0))(state, action, keys)
        return *jax.tree.map(lambda x: x[0], (after, step)), jax.tree.map(lambda x: x[1], step.obs)

    def one(state: Tree, drawn: Any) -> tuple[Tree, Any]:
        after, step, other = jax.vmap(twice)(state, *drawn)
        return after, (step.obs, other, step.reward, step.terminated, step.truncated)

    _, rows = jax.lax.scan(one, jax.tree.map(lambda x: x[:size], state), (actions, step_keys))
    return Played(starts, *rows)


def _check_played(env: Env, spec: EnvSpec, leaves: list[Leaf], log: Log, size: int, seed: int,
                  by_name: bool) -> None:
    num_steps = min(spec.max_episode_steps + 1, 5 * _CAP) if spec.max_episode_steps else _CAP
    try:
        draw = np.random.default_rng(seed)
        drawn = _keys(draw, size + _RESETS), _actions(spec, draw, num_steps, size), _keys(draw, num_steps, size, 2)
        runs = [jax.device_get(_play(env, *drawn)) for _ in range(2)]
    except Exception as error:  # the environment is someone else's code and may raise anything
        raise Misfit("jit", f"running it raised {type(error).__name__}: {line(error)}") from error
    if digest(runs[0]) != digest(runs[1]):
        log.fault("pure", "the compiled program was run twice and gave two different answers")
    played: Played = runs[0]
    over = np.asarray(played.terminated) | np.asarray(played.truncated)
    left = np.logical_or.accumulate(over, axis=0).reshape(num_steps, size, -1)
    gone = np.asarray(left.all(axis=2))  # all agents have left
    ended, lengths = gone[-1], np.where(gone[-1], gone.argmax(0) + 1, num_steps)
    alive = np.arange(num_steps)[:, None] < lengths  # rows that belong to the episode
    log.tried("bounds", "finite", "seeding", "final_observation", "truncation", "limit", "action_bounds")
    _check_values(log, leaves, played, alive)
    starts = _rows(leaves, played.starts)
    if (starts == starts[0]).all():
        log.note("seeding", f"{len(starts)} keys gave the same first observation", "fine if the start is fixed by nature")
    _check_final(log, leaves, played, starts, alive, np.flatnonzero(ended), lengths)
    _check_limit(log, spec, played, np.flatnonzero(ended), lengths, by_name)


def _rows(leaves: list[Leaf], obs: Tree) -> np.ndarray:
    """Observations [K, ...] as numbers in rows [K, F]."""
    parts = [np.asarray(pick(leaf, obs), np.float64) for leaf in leaves]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _check_values(log: Log, leaves: list[Leaf], played: Played, alive: np.ndarray) -> None:
    ordinary, extreme = alive.copy(), alive.copy()
    ordinary[:, -2:], extreme[:, :-2] = False, False
    at_extremes: list[str] = []
    for where, rows in (("reset", None), ("step", ordinary), ("step at the lowest or highest action", extreme)):
        for leaf in leaves:
            values = pick(leaf, played.starts) if rows is None else pick(leaf, played.obs)[rows]
            for check, detail in faults(leaf._replace(shape=values.shape), values):
                if check == "finite" and rows is extreme:
                    at_extremes.append(detail)
                elif check in ("bounds", "finite"):
                    log.fault(check, f"{detail} (from {where})")
    for rows in (ordinary, extreme):
        reward = np.asarray(played.reward[rows], np.float64)
        wrong = reward[~np.isfinite(reward)]
        if wrong.size and rows is extreme:
            at_extremes.append(f"reward is {wrong.flat[0]}")
        elif wrong.size:
            log.fault("finite", f"reward is {wrong.flat[0]}")
    if at_extremes and not log.failed("finite"):  # otherwise it is no matter of the action
        log.fault("action_bounds", f"{at_extremes[0]} at the lowest or highest action")


def _check_final(log: Log, leaves: list[Leaf], played: Played, starts: np.ndarray, alive: np.ndarray, ended: np.ndarray,
                 lengths: np.ndarray) -> None:
    """A last observation that depends on the key although no other does, or that looks like a first one, was made by a reset."""
    num_steps, size = alive.shape
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), (played.obs, played.other))
    obs, other = (_rows(leaves, tree).reshape(num_steps, size, -1) for tree in flat)
    final = np.zeros_like(alive)
    final[lengths[ended] - 1, ended] = True
    middle = alive & ~final
    varies = (obs != other).any(2)
    by_key = len(ended) > 2 and middle.sum() > 9 and varies[final].all() and not varies[middle].any()
    if by_key or looks_reset(starts, obs[middle], obs[final]):
        log.fault("final_observation", f"all {len(ended)} episodes ended on an observation that looks like the first of the next")


def _check_limit(log: Log, spec: EnvSpec, played: Played, ended: np.ndarray, lengths: np.ndarray, by_name: bool) -> None:
    limit = spec.max_episode_steps
    terminated, truncated = (np.asarray([np.any(flags[lengths[i] - 1, i]) for i in ended], bool)
                             for flags in (played.terminated, played.truncated))
    at_limit = (lengths[ended] == limit) & (limit > 1)
    if at_limit.sum() > 1 and terminated[at_limit].all():
        both = " and truncated at once" if truncated[at_limit].all() else ""
        log.fault("truncation", f"{at_limit.sum()} episodes of {limit} steps, the limit, all were reported as terminated{both}")
    twice = terminated & truncated & ~at_limit
    if not spec.num_agents and twice.sum() > 1 and twice.sum() == truncated.sum():
        log.fault("truncation", f"{twice.sum()} episodes ended terminated and truncated at once, none truncated alone")
    if limit and (lengths > limit).any():
        say_limit(log, limit, by_name)
    elif not limit and not len(ended):
        log.fault("limit", f"no episode ended in {lengths.sum():,} steps, and no limit is declared")
