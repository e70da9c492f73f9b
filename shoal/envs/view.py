"""Compiled environments as Gymnasium sees them: for its tools, for other libraries' agents, and to look at.

The environment stays compiled; a view holds its state and steps it. Randomness is by address below the seed, as everywhere.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymSpec

from shoal import rng
from shoal.envs import build, maps, render
from shoal.errors import ConfigError
from shoal.specs import Box, Discrete, Group, MultiBinary, MultiDiscrete, Space
from shoal.types import Env, HostEnv, Tree


@jax.jit
def _reset(env: Env, root: Any, episode: Any) -> tuple[Tree, Tree]:
    return env.reset(rng.key(root, rng.Stream.RESET, episode))


@jax.jit
def _step(env: Env, state: Tree, action: Any, root: Any, episode: Any, count: Any) -> tuple[Tree, Any]:
    return env.step(state, action, rng.key(root, rng.Stream.ENV, episode, count))


class GymView(gymnasium.Env):
    """A ``gymnasium.Env`` over a compiled environment with a single agent, given by name or as an object.

    A name gets its time limit, and takes ``max_episode_steps`` and the environment's own ``options``; actions are in the
    environment's own units. An object is taken with the maps it has, and its time limit if none of them counts it.
    ``reset(seed=…)`` starts the episodes of that seed from the first, ``reset()`` goes on to the next; ``seed`` is used until
    one is given.
    """

    metadata: dict[str, Any] = {"render_modes": list(render.MODES), "render_fps": 30}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(self, env: str | Env, *, seed: int = 0, render_mode: str | None = None, max_episode_steps: int = 0,
                 **options: Any):
        if render_mode is not None and render_mode not in render.MODES:
            raise ConfigError(f"render_mode = {render_mode!r}: expected one of {', '.join(render.MODES)}")
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise ConfigError(f"seed = {seed!r}: expected a whole number from 0, below 2**64")
        self.env = _compiled(env, max_episode_steps, options)
        spec = self.env.spec
        self.observation_space, self.action_space = gym_space(spec.obs), gym_space(spec.action)
        self.render_mode = render_mode
        name = re.sub(r"[^\w.-]+", "-", spec.name)
        given = {"env": env, "seed": seed, "max_episode_steps": max_episode_steps, **options}
        creator: Any = GymView
        self.spec = GymSpec(f"shoal/{name}-v0", entry_point=creator, kwargs=given, disable_env_checker=True)
        self._root, self._episode, self._count = rng.root(seed), -1, 0
        self._state: Tree = None
        self._obs: Tree = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation of the seed's first episode, or of the next one."""
        super().reset(seed=seed)
        if seed is not None:
            self._root, self._episode = rng.root(seed % 2**64), -1
        self._episode, self._count = self._episode + 1, 0
        self._state, self._obs = _reset(self.env, self._root, np.int32(self._episode))
        return _shown(self.observation_space, self._obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated, and the info that the environment declares."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        space = self.env.spec.action
        action = np.asarray(action, space.dtype)
        if not isinstance(space, Box) and action not in self.action_space:
            raise ConfigError(f"action = {action}: expected one of {self.action_space}")
        self._state, step = _step(self.env, self._state, action, self._root, np.int32(self._episode), np.int32(self._count))
        self._count, self._obs = self._count + 1, step.obs
        step = jax.device_get(step)
        info = {name: np.array(value)[()] for name, value in step.info.items()}
        return _shown(self.observation_space, step.obs), float(step.reward), bool(step.terminated), bool(step.truncated), info

    def render(self) -> Any:
        """Text or uint8 [H, W, 3], as ``render_mode`` says."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset before render")
        if self.render_mode is None:
            gymnasium.logger.warn("render was called without a render_mode; give GymView render_mode='ansi' or 'rgb_array'")
            return None
        draw = render.text if self.render_mode == "ansi" else render.rgb
        return draw(self.env, self._state, self._obs)

    def clone(self) -> GymView:
        """An independent copy that stands where this one does and goes on identically."""
        other = copy.copy(self)  # states are never changed in place, so the copies share none that could
        other.observation_space, other.action_space = copy.deepcopy((self.observation_space, self.action_space))
        other._np_random = copy.deepcopy(self._np_random)
        return other


def gym_view(env: str | Env, **settings: Any) -> GymView:
    """A compiled environment, by name or as an object, as a ``gymnasium.Env``; ``settings`` as for ``GymView``."""
    return GymView(env, **settings)


def _compiled(env: str | Env, max_episode_steps: int, options: dict[str, Any]) -> Env:
    """What is to be seen, if it can be."""
    if isinstance(env, str):
        made: Any = build.bare(env, max_episode_steps, **options)
    elif options:
        name, value = next(iter(options.items()))
        raise ConfigError(f"{name} = {value!r}: options are for environments by name, not for objects")
    else:
        made = env
        inner: Any = env
        while not isinstance(inner, maps.TimeLimit) and hasattr(inner, "env"):
            inner = inner.env
        limit = max_episode_steps or (0 if isinstance(inner, maps.TimeLimit) else made.spec.max_episode_steps)
        made = maps.TimeLimit(made, limit) if limit else made
    if isinstance(made, HostEnv):
        made.close()
        raise ConfigError(f"env {made.spec.name!r} is not compiled, and a view is for compiled environments; Gymnasium's own are "
                          "made by gymnasium.make")
    if made.spec.num_agents:
        raise ConfigError(f"env {made.spec.name!r} has {made.spec.num_agents} agents: a Gymnasium environment has one")
    return made


def gym_space(space: Space) -> gymnasium.Space:
    """Our space as Gymnasium's."""
    if isinstance(space, Group):
        return gymnasium.spaces.Dict({name: gym_space(inner) for name, inner in space.items})
    if isinstance(space, Discrete):
        return gymnasium.spaces.Discrete(space.num)
    if isinstance(space, MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(list(space.nums))
    if isinstance(space, MultiBinary):
        return gymnasium.spaces.MultiBinary(space.num)
    low, high = space.bounds()
    return gymnasium.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=np.dtype(space.dtype).type)


def _shown(space: Any, obs: Tree) -> Any:
    """An observation as Gymnasium's space has it, in memory of its own."""
    if isinstance(obs, dict):
        return {name: _shown(space[name], inner) for name, inner in obs.items()}
    return np.array(obs, space.dtype)[()] if isinstance(space, gymnasium.spaces.Discrete) else np.array(obs, space.dtype)
