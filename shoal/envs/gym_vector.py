"""Gymnasium's ready-made vector environments as they are: all their environments step together, and reset as their mode says.

Whatever the mode, a step answers the true successor of every environment, what it shows afterwards, and which of them took part:
in next-step mode the step after an end is a reset, and the action given with it is ignored.
The vector's own generators decide how episodes start, so none can be named and brought back: a resumed run starts new ones.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from shoal.envs import gym_spaces, maps, rows
from shoal.errors import ConfigError, EnvError
from shoal.specs import Box, EnvSpec
from shoal.types import HostEnv, Tree

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"  # the values of Gymnasium's own AutoresetMode
# what only the vector's maker can give it, and the values that ask for nothing
_FIXED: dict[str, Any] = {"max_episode_steps": 0, "env_options": {}, "sticky_actions": 0, "frame_stack": 1, "flatten_obs": False}


class Moved(NamedTuple):
    """One step of all environments, [B, ...]."""

    obs: Tree  # the true successors
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    following: Tree  # what the environments show now: after an end, the next episode's first observation
    played: np.ndarray  # bool: False where the step was a reset, and no episode went on


class GymVector:
    """A vector environment in our own spaces; bounded actions are in [-1, 1]. It stays its maker's, who closes it."""

    def __init__(self, vector: Any):
        self._vector, self.num_envs = vector, int(vector.num_envs)
        known = getattr(vector, "spec", None)
        name = getattr(known, "id", None) or type(vector).__name__
        self.mode = _mode(name, vector.metadata.get("autoreset_mode"))
        obs, self._read = gym_spaces.observed(f"observation space of {name!r}", vector.single_observation_space)
        action, self._write = gym_spaces.acted(f"action space of {name!r}", vector.single_action_space)
        gym_spaces.check_mask(f"observation space of {name!r}", obs, action)
        spec = EnvSpec(name, obs, action, max_episode_steps=getattr(known, "max_episode_steps", None) or 0)
        self._bounds = action.bounds() if isinstance(action, Box) else None
        self._rescaled = isinstance(action, Box) and action.bounded
        self.spec = maps.rescaled_spec(spec) if self._rescaled else maps.clipped_spec(spec) if isinstance(action, Box) else spec
        self._over = np.zeros(self.num_envs, bool)  # whose next step is a reset

    def reset(self, seed: int) -> Tree:
        """New episodes everywhere; the first observations [B, ...]."""
        self._over[:] = False
        return self._shown(self._vector.reset(seed=seed)[0])

    def step(self, action: np.ndarray) -> Moved:
        """One step of every environment, with actions [B, ...]."""
        played = ~self._over
        answer, reward, terminated, truncated, info = self._vector.step(self._own(action))
        terminated, truncated = (np.array(x, bool) & played for x in (terminated, truncated))
        reward = np.where(played, reward, 0.0)
        over, following = terminated | truncated, self._shown(answer)
        if self.mode == NEXT_STEP:
            self._over = over
            return Moved(following, reward, terminated, truncated, following, played)
        if not over.any():
            return Moved(following, reward, terminated, truncated, following, played)
        if self.mode == SAME_STEP:
            obs = self._finals(following, over, info)
        else:
            obs = rows.each(np.array, following)  # the vector may reset in place
            following = self._shown(self._vector.reset(options={"reset_mask": over.copy()})[0])
            following = _where(over, following, obs)
        return Moved(obs, reward, terminated, truncated, following, played)

    def close(self) -> None:
        """Nothing: the vector is its maker's."""

    def _own(self, action: np.ndarray) -> Any:
        """Actions as the vector's own space wants them."""
        if self._bounds is not None:
            action = (maps.rescale if self._rescaled else maps.clip)(action, *self._bounds)
        return self._write(action) if self._write else action

    def _shown(self, obs: Any) -> Tree:
        return self._read(obs) if self._read else obs

    def _finals(self, following: Tree, over: np.ndarray, info: dict[str, Any]) -> Tree:
        """The observations with the true last ones of the episodes that ended."""
        finals = info.get("final_obs")
        if finals is None:
            raise EnvError(f"{self.spec.name}: episodes ended in same-step mode, and its info has no 'final_obs'")
        obs = rows.each(np.array, following)
        joined = isinstance(finals, dict | tuple)  # all rows in one, as some vectors give them
        for i in np.flatnonzero(over):
            rows.write(obs, i, rows.row(self._shown(finals), i) if joined else self._shown(finals[i]))
        return obs


def adopt(env: Any, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A vector environment that a user gives, made ours, and the settings that follow from it; anything else as it is."""
    if isinstance(env, type) or (callable(env) and not hasattr(env, "reset")):
        name = getattr(env, "__name__", "")
        what = name if name.isidentifier() else "…"
        raise ConfigError(f"env is {'a class' if isinstance(env, type) else 'a function'} that makes environments: register it, "
                          f'shoal.register(env={{"mine": {what}}}), and give its name, "mine"')
    gymnasium = sys.modules.get("gymnasium")  # whoever has one of its objects has imported it
    if gymnasium is not None and isinstance(env, gymnasium.vector.VectorEnv):
        env = GymVector(env)
    elif gymnasium is not None and isinstance(env, gymnasium.Env):
        known = f"its id ({env.spec.id!r}), " if env.spec else ""
        raise ConfigError(f"env is one {type(env.unwrapped).__name__} object, and a run needs copies: give {known}a vector made "
                          "by gymnasium.make_vec, or the name it is registered under")
    if not isinstance(env, GymVector):
        if isinstance(env, HostEnv):
            raise ConfigError(f"env is one {type(env).__name__} object, and a run needs copies: register it and give its name")
        return env, settings
    for name, neutral in _FIXED.items():
        if settings.get(name, neutral) != neutral:
            raise ConfigError(f"{name} = {settings[name]!r}: {env.spec.name!r} is a ready-made vector; give it when that is made")
    for name in ("num_envs", "lane_envs"):
        if settings.get(name, env.num_envs) != env.num_envs:
            raise ConfigError(f"{name} = {settings[name]!r}: {env.spec.name!r} is a vector of {env.num_envs}; leave {name} out")
    return env, settings | {"num_envs": env.num_envs, "lane_envs": env.num_envs}


def _mode(name: str, given: Any) -> str:
    value = getattr(given, "value", given)
    if value not in (NEXT_STEP, SAME_STEP, DISABLED):
        raise ConfigError(f"{name}: metadata['autoreset_mode'] is {value!r}: expected {NEXT_STEP!r}, {SAME_STEP!r} or "
                          f"{DISABLED!r}, which say when its environments reset")
    return value


def _where(flag: np.ndarray, a: Tree, b: Tree) -> Tree:
    """Row by row ``a`` where ``flag`` [B], else ``b``."""
    if isinstance(b, dict):
        return {name: _where(flag, a[name], x) for name, x in b.items()}
    return np.where(flag.reshape(flag.shape + (1,) * (b.ndim - 1)), a, b)
