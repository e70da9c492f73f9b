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

from shoal.errors import ConfigError, MissingError, nearest
from shoal.specs import Box, Discrete, EnvSpec

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
    """One Gymnasium environment with Box or Discrete spaces.

    Observations and rewards are answered as the environment gives them; whoever keeps them copies. Choices that do not start
    at 0 are shifted. If the environment has ``get_state`` and ``set_state``, so has this one.
    """

    def __init__(self, id: str, max_episode_steps: int = 0, **options: Any):
        found = find_spec(id)
        self._env = env = _build(found, options)
        try:
            obs, action = _space(id, "observation", env.observation_space), _space(id, "action", env.action_space)
        except ConfigError:
            env.close()
            raise
        limit = max_episode_steps or found.max_episode_steps or 0
        self.spec = EnvSpec(id, obs, action, max_episode_steps=limit)
        self._limit = limit or sys.maxsize
        self._count = 0
        self._shift = int(getattr(env.observation_space, "start", 0))
        self.action_start = int(getattr(env.action_space, "start", 0))
        self._step = _shifted(env, self._shift)
        inner = env.unwrapped
        if hasattr(inner, "get_state") and hasattr(inner, "set_state"):
            self.get_state, self.set_state = self._get_state, self._set_state

    def reset(self, seed: int) -> Any:
        self._count = 0
        obs = self._env.reset(seed=seed)[0]
        return obs - self._shift if self._shift else obs

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self._step(action)
        self._count += 1
        return obs, reward, terminated, truncated or self._count >= self._limit, {}

    def close(self) -> None:
        self._env.close()

    def _get_state(self) -> Any:
        return {"env": self._env.unwrapped.get_state(), "count": np.int32(self._count)}

    def _set_state(self, state: Any) -> None:
        self._env.unwrapped.set_state(state["env"])
        self._count = int(state["count"])


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
        return f"needs a package that is not installed: {commands[-1].strip()}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"needs a package that is not installed: pip install {error.name.split('.')[0]}"
    return f"cannot be made: {_line(error)}"


def _space(id: str, role: str, space: Any) -> Box | Discrete:
    spaces = _package().spaces
    if type(space) is spaces.Discrete:
        return Discrete(int(space.n))
    kind = space.dtype.kind if isinstance(space, spaces.Box) else ""
    if kind == "f" or (kind in "iu" and kind and role == "observation"):
        with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
            low, high = (_bound(b.astype(np.float32) if kind == "f" else b) for b in (space.low, space.high))
        return Box(tuple(space.shape), low, high, "float32" if kind == "f" else str(space.dtype))
    raise ConfigError(f"{role} space of {id!r} is {str(space)[:80]}: expected a Box or Discrete space")


def _bound(values: np.ndarray) -> float | tuple[float, ...]:
    flat = values.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    return tuple(float(v) for v in flat)


def _shifted(env: Any, shift: int) -> Callable[[Any], Any]:
    """The environment's own ``step`` itself, or the thinnest cover where numbers must be moved."""
    step, space = env.step, env.action_space
    start = int(getattr(space, "start", 0))
    wide = getattr(space, "low", None) is not None and space.dtype == np.float64

    def moved(action: Any) -> Any:
        # float32 bounds may lie a rounding outside float64 ones, and environments assert
        action = np.clip(np.asarray(action, np.float64), space.low, space.high) if wide else action + start
        obs, *rest = step(action)
        return (obs - shift if shift else obs), *rest

    return moved if start or shift or wide else step
