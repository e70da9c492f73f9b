"""From a name to an environment that is ready to run. Imports no JAX until an environment is made."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal import registry
from shoal.errors import ConfigError, MissingError, nearest
from shoal.specs import Box, EnvSpec

if TYPE_CHECKING:
    from shoal.plan import Plan
    from shoal.types import Env, HostEnv


def check_name(name: str) -> None:
    """Refuse a name that ``make`` would not know, without making anything or importing JAX."""
    from shoal.envs import gymnasium

    known = registry.names("env")
    if name in known:
        return
    if gymnasium.looks_like_id(name):
        gymnasium.find_spec(name, known)
        return
    raise MissingError(f"unknown env {name!r}{nearest(name, [*known, *gymnasium.ids()])}")


def make(name: str, max_episode_steps: int = 0, *, sticky_actions: float = 0.0, frame_stack: int = 1, flatten_obs: bool = False,
         **options: Any) -> Env | HostEnv:
    """The environment behind a registered name or a Gymnasium id, under its maps; bounded actions are in [-1, 1].

    ``max_episode_steps`` replaces the environment's own limit unless 0; ``options`` are the environment's own arguments.
    The maps, from the inside: ``sticky_actions``, the probability with which the environment's previous action is repeated;
    the time limit; ``frame_stack``, how many observations are shown together; ``flatten_obs``, into one vector; and actions.
    """
    return _make(name, max_episode_steps, Maps(sticky_actions, frame_stack, flatten_obs), options)


def from_plan(plan: Plan, given: Env | HostEnv | str = "") -> Env | HostEnv:
    """The environment that a plan names, or the object ``given`` in its place, under the plan's maps.

    An object keeps its own time limit and actions.
    """
    wanted = Maps(plan.sticky_actions, plan.frame_stack, plan.flatten_obs)
    if not isinstance(given, str):
        _check_maps(wanted)
        return _show(_stick(given, wanted), wanted)
    return _make(plan.env, plan.max_episode_steps, wanted, plan.env_options)


class Maps(NamedTuple):
    """The maps that can be asked for by name."""

    sticky_actions: float = 0.0
    frame_stack: int = 1
    flatten_obs: bool = False


def bare(name: str, max_episode_steps: int = 0, **options: Any) -> Env | HostEnv:
    """The environment behind a name with its time limit and nothing else: actions are in its own units."""
    return _make(name, max_episode_steps, Maps(), options, own_actions=True)


def _make(name: str, max_episode_steps: int, wanted: Maps, options: dict[str, Any], own_actions: bool = False) -> Env | HostEnv:
    from shoal.envs import gymnasium, maps
    from shoal.types import HostEnv

    if not isinstance(max_episode_steps, int) or isinstance(max_episode_steps, bool) or max_episode_steps < 0:
        raise ConfigError(f"max_episode_steps = {max_episode_steps!r}: expected a whole number of at least 0")
    _check_maps(wanted)
    check_name(name)
    env: Any
    if name in registry.names("env"):
        env = _stick(_construct(name, registry.find("env", name), options), wanted)
        limit = max_episode_steps or env.spec.max_episode_steps
        if limit:
            env = maps.HostTimeLimit(env, limit) if isinstance(env, HostEnv) else maps.TimeLimit(env, limit)
    else:
        env = _stick(gymnasium.GymEnv(name, max_episode_steps, **options), wanted)
    env = _show(env, wanted)
    return env if own_actions else _fit_actions(env)


def _check_maps(wanted: Maps) -> None:
    probability, num, flat = wanted
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability <= 1:
        raise ConfigError(f"sticky_actions = {probability!r}: expected a probability, from 0 to 1")
    if isinstance(num, bool) or not isinstance(num, int) or num < 1:
        raise ConfigError(f"frame_stack = {num!r}: expected a whole number of at least 1")
    if not isinstance(flat, bool):
        raise ConfigError(f"flatten_obs = {flat!r}: expected true or false")


def _stick(env: Any, wanted: Maps) -> Any:
    from shoal.envs.sticky import HostStickyActions, StickyActions
    from shoal.types import HostEnv

    if not wanted.sticky_actions:
        return env
    return (HostStickyActions if isinstance(env, HostEnv) else StickyActions)(env, float(wanted.sticky_actions))


def _show(env: Any, wanted: Maps) -> Any:
    """The environment under the maps of its observation."""
    from shoal.envs import stacking
    from shoal.types import HostEnv

    host = isinstance(env, HostEnv)
    if wanted.frame_stack > 1:
        env = (stacking.HostFrameStack if host else stacking.FrameStack)(env, wanted.frame_stack)
    if wanted.flatten_obs:
        env = (stacking.HostFlattenObs if host else stacking.FlattenObs)(env)
    return env


def _fit_actions(env: Any) -> Any:
    """Bounded actions in [-1, 1]; half-bounded ones clipped."""
    from shoal.envs import maps
    from shoal.types import HostEnv

    action, host = env.spec.action, isinstance(env, HostEnv)
    if isinstance(action, Box) and action.bounded:
        return maps.HostRescaleAction(env) if host else maps.RescaleAction(env)
    if isinstance(action, Box) and np.isfinite(action.bounds()).any():
        return maps.HostClipAction(env) if host else maps.ClipAction(env)
    return env


def _construct(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> Any:
    import jax

    from shoal.types import HostEnv

    parameters = inspect.signature(factory).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            if option not in parameters:
                raise ConfigError(f"env {name!r} has no option {option!r}{nearest(option, parameters)}")
    kinds = {f.name: str(f.type) for f in dataclasses.fields(factory)} if dataclasses.is_dataclass(factory) else {}
    options = {option: _convert(name, option, kinds.get(option, ""), value) for option, value in options.items()}
    _check_ranges(name, factory, options)
    env = factory(**options)
    if hasattr(env, "check"):  # before the spec, which may follow from what is refused here
        env.check()
    if not isinstance(getattr(env, "spec", None), EnvSpec) or not hasattr(env, "reset") or not hasattr(env, "step"):
        raise ConfigError(f"env {name!r}: expected an object with spec (an EnvSpec), reset and step, got {type(env).__name__}")
    if not isinstance(env, HostEnv) and any(leaf is env for leaf in jax.tree.leaves(env)):
        raise ConfigError(f"env {name!r}: a compiled environment must be a pytree; decorate {type(env).__name__} with "
                          "shoal.types.pytree, or give it a close method if it lives in Python")
    return env


def _convert(name: str, option: str, kind: str, value: Any) -> Any:
    """An option as its field wants it: whole numbers are floats too, lists are tuples; anything else is refused."""
    wanted = {"float": (int, float), "int": (int,), "bool": (bool,), "str": (str,)}.get(kind)
    if wanted is not None:
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):
            raise ConfigError(f"{option} = {value!r}: env {name!r} expects {kind}")
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{option} = {value!r}: env {name!r} expects a number")
        return float(value) if kind == "float" else value
    if kind.split("[")[0] == "tuple":
        return _tuples(value)
    if kind == "Array" and isinstance(value, (int, float)):
        return np.asarray(value, np.int32 if isinstance(value, int) else np.float32)
    return value


def _check_ranges(name: str, factory: Any, options: dict[str, Any]) -> None:
    for option, (low, high) in getattr(factory, "RANGES", {}).items():
        if option in options and not (np.ndim(options[option]) == 0 and low <= options[option] <= high):
            raise ConfigError(f"{option} = {options[option]}: env {name!r} expects a number from {low} to {high}")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value
