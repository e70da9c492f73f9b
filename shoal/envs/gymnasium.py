"""Gymnasium's environments as host environments. The true final observation is what ``step`` answers; nothing resets itself.

``step`` is on the path of every ported run, so it adds one Python call to the environment's own and no more: Gymnasium's
checker, order and time-limit wrappers are left out, and the limit is counted here. No JAX in this module.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.envs import gym_spaces
from shoal.errors import ConfigError, EnvError, MissingError, nearest
from shoal.specs import MASK, Discrete, EnvSpec, MultiDiscrete

_WORLDS = {"ALE": ("ale_py", "ale-py")}  # namespaces that register themselves only when their package is imported


def looks_like_id(name: str) -> bool:
    """Whether a name that nothing is registered under is meant for Gymnasium."""
    return name != name.lower() or ":" in name or bool(re.search(r"-v\d+$", name))


def ids() -> list[str]:
    """Every id Gymnasium knows."""
    return list(_package().registry)


def find_spec(name: str, known: list[str] | None = None) -> Any:
    """Gymnasium's record of an id; refused with the nearest of ``known`` and Gymnasium's own. Builds nothing."""
    if ":" in name:
        raise ConfigError(f"env = {name!r}: a name cannot import a module; register yours and name it with --plugin")
    registry, space = _package().registry, name.split("/")[0]
    if name not in registry and "/" in name and space in _WORLDS:
        module, package = _WORLDS[space]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingError(f"env {name!r} needs a package that is not installed: pip install {package}") from error
    if name not in registry:
        raise MissingError(f"unknown env {name!r}{nearest(name, [*(known or []), *registry])}")
    return registry[name]


class GymEnv:
    """One Gymnasium environment.

    Observations and rewards are answered as the environment gives them; whoever keeps them copies. Choices that do not start
    at 0 are shifted, a Dict or Tuple observation is a dict, a Dict or Tuple action is one vector: ``read_obs`` and
    ``write_action`` translate, or are None where there is nothing to do. ``info_mask`` makes the mask that some environments
    (Taxi) put into their info part of what they show: a dict of ``obs`` and ``action_mask``. If the environment has
    ``get_state`` and ``set_state``, so has this one. ``bare_step`` is ``step`` without its count: who uses it holds episodes to the
    limit, and says by ``count`` how long the running one is.
    """

    def __init__(self, id: str, max_episode_steps: int = 0, info_mask: bool = False, **options: Any):
        found = find_spec(id)
        self._env = env = _build(found, options)
        try:
            if info_mask:
                self._env = env = _Masked(id, env)
            obs, self.read_obs = gym_spaces.observed(f"observation space of {id!r}", env.observation_space)
            action, self.write_action = gym_spaces.acted(f"action space of {id!r}", env.action_space)
            gym_spaces.check_mask(f"observation space of {id!r}", obs, action)
        except ConfigError:
            env.close()
            raise
        limit = max_episode_steps or found.max_episode_steps or 0
        self.spec = EnvSpec(id, obs, action, max_episode_steps=limit)
        self._limit = limit or sys.maxsize
        self.count = 0
        self.bare_step = _translated(env.step, self.read_obs, self.write_action) if self.read_obs or self.write_action else env.step
        inner = env.unwrapped
        if hasattr(inner, "get_state") and hasattr(inner, "set_state"):
            self.get_state, self.set_state = self._get_state, self._set_state

    def reset(self, seed: int) -> Any:
        self.count = 0
        obs = self._env.reset(seed=seed)[0]
        return self.read_obs(obs) if self.read_obs else obs

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self.bare_step(action)
        self.count += 1
        return obs, reward, terminated, truncated or self.count >= self._limit, {}

    def close(self) -> None:
        self._env.close()

    def _get_state(self) -> Any:
        return {"env": self._env.unwrapped.get_state(), "count": np.int32(self.count)}

    def _set_state(self, state: Any) -> None:
        self._env.unwrapped.set_state(state["env"])
        self.count = int(state["count"])


def _package() -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ImportError as error:
        raise MissingError("Gymnasium is not installed: pip install gymnasium") from error


def _build(found: Any, options: dict[str, Any]) -> Any:
    gymnasium = _package()
    bare = dataclasses.replace(found, order_enforce=False, max_episode_steps=None)
    try:
        _check_options(found, options)
        return gymnasium.make(bare, disable_env_checker=True, **options)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingError(f"env {found.id!r} {_remedy(error)}") from error
    except (TypeError, ValueError, gymnasium.error.Error) as error:
        raise ConfigError(f"env {found.id!r} cannot be made: {_line(error)}") from error


def _check_options(found: Any, options: dict[str, Any]) -> None:
    if not options:
        return
    creator = found.entry_point
    if isinstance(creator, str):  # Gymnasium's own record of a registered id, not a name from a file
        module, attribute = creator.split(":")
        creator = getattr(importlib.import_module(module), attribute)
    parameters = inspect.signature(creator).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise ConfigError(f"env {found.id!r} has no option {name!r}{nearest(name, parameters)}")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _remedy(error: Exception) -> str:
    commands = re.findall(r"pip install [^`\n]+", str(error))
    if commands:
        command = re.sub(r"[\"']?gymnasium\[(box2d|mujoco)\][\"']?", r"'shoal[\1]'", commands[-1].strip())
        return f"needs a package that is not installed: {command}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"needs a package that is not installed: pip install {error.name.split('.')[0]}"
    return f"cannot be made: {_line(error)}"


class _Masked:
    """A Gymnasium environment that shows the mask from its info, beside or in its observation."""

    def __init__(self, id: str, env: Any):
        spaces = _package().spaces
        action, _ = gym_spaces.acted(f"action space of {id!r}", env.action_space)
        if not isinstance(action, Discrete | MultiDiscrete):
            raise ConfigError(f"info_mask: the actions of {id!r} are {type(action).__name__}; expected Discrete or MultiDiscrete")
        self._id, self._env, self._named = id, env, isinstance(env.observation_space, spaces.Dict)
        self._all = np.ones(gym_spaces.num_choices(action), np.int8)
        shown = dict(env.observation_space.spaces) if self._named else {"obs": env.observation_space}
        self.observation_space = spaces.Dict(shown | {MASK: spaces.MultiBinary(len(self._all))})
        self.action_space, self.unwrapped, self.close = env.action_space, env.unwrapped, env.close

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        obs, info = self._env.reset(seed=seed)
        return self._shown(obs, info, False), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._env.step(action)
        return self._shown(obs, info, terminated or truncated), reward, terminated, truncated, info

    def _shown(self, obs: Any, info: dict[str, Any], over: bool) -> dict[str, Any]:
        if MASK not in info and not over:  # after the end nobody chooses
            raise EnvError(f"{self._id}: its info has no {MASK!r}; leave info_mask out")
        return (dict(obs) if self._named else {"obs": obs}) | {MASK: info.get(MASK, self._all)}


def _translated(step_fn: Callable[[Any], Any], read_fn: Callable[[Any], Any] | None, write_fn: Callable[[Any], Any] | None
                ) -> Callable[[Any], Any]:
    """``step`` in our own spaces."""

    def step(action: Any) -> Any:
        obs, reward, terminated, truncated, info = step_fn(write_fn(action) if write_fn else action)
        return (read_fn(obs) if read_fn else obs), reward, terminated, truncated, info

    return step
