"""Fixed maps from environment to environment: time limit, action rescale and clip, constant reward scale.

Each exists twice, as a pytree over compiled environments and as a plain object over host ones; the arithmetic exists once,
in functions that take NumPy and JAX arrays alike. What is learned (normalisation) is not here: it belongs to the learner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.errors import ConfigError
from shoal.specs import Box, EnvSpec
from shoal.types import Array, Env, HostEnv, Key, Step, Tree, pytree


def rescale(action: Array, low: Array, high: Array) -> Array:
    """From [-1, 1], clipped, to [low, high]. Written so that -1 and 1 give the bounds exactly, never one rounding beyond."""
    part = (action.clip(-1.0, 1.0) + 1.0) * 0.5
    return low * (1.0 - part) + high * part


def clip(action: Array, low: Array, high: Array) -> Array:
    return action.clip(low, high)


def scale_reward(reward: Array, scale: Array | float) -> Array:
    return reward * scale


def cut(truncated: Array, count: Array | int, max_steps: int) -> Array:
    """Truncated already, or by the limit; with an agent axis, all agents."""
    return truncated | (count >= max_steps)


def limited_spec(spec: EnvSpec, max_steps: int) -> EnvSpec:
    return replace(spec, max_episode_steps=max_steps)


def rescaled_spec(spec: EnvSpec) -> EnvSpec:
    if not isinstance(spec.action, Box) or not spec.action.bounded:
        raise ConfigError(f"action of {spec.name!r} is {spec.action}: rescaling expects a Box with finite bounds")
    return replace(spec, action=Box(spec.action.shape, -1.0, 1.0))


def clipped_spec(spec: EnvSpec) -> EnvSpec:
    if not isinstance(spec.action, Box):
        raise ConfigError(f"action of {spec.name!r} is {spec.action}: clipping expects a Box")
    return replace(spec, action=Box(spec.action.shape))


def _bounds(env: Env | HostEnv) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(env.spec.action, Box)  # the map's spec has refused anything else
    return env.spec.action.bounds()


class Counted(NamedTuple):
    env: Tree
    count: Array  # int32 []: steps of this episode


@pytree
class TimeLimit:
    """Truncates an episode after ``max_steps`` steps."""

    env: Env
    max_steps: int

    @property
    def spec(self) -> EnvSpec:
        return limited_spec(self.env.spec, self.max_steps)

    def reset(self, key: Key) -> tuple[Counted, Tree]:
        state, obs = self.env.reset(key)
        return Counted(state, jnp.zeros((), jnp.int32)), obs

    def step(self, state: Counted, action: Tree, key: Key) -> tuple[Counted, Step]:
        inner, step = self.env.step(state.env, action, key)
        count = state.count + 1
        return Counted(inner, count), step._replace(truncated=cut(step.truncated, count, self.max_steps))


@pytree
class RescaleAction:
    """The policy acts in [-1, 1]; the environment receives its own bounds."""

    env: Env

    @property
    def spec(self) -> EnvSpec:
        return rescaled_spec(self.env.spec)

    def reset(self, key: Key) -> tuple[Tree, Tree]:
        return self.env.reset(key)

    def step(self, state: Tree, action: Array, key: Key) -> tuple[Tree, Step]:
        return self.env.step(state, rescale(jnp.asarray(action), *_bounds(self.env)), key)


@pytree
class ClipAction:
    """The policy acts anywhere; the environment receives the nearest action it allows."""

    env: Env

    @property
    def spec(self) -> EnvSpec:
        return clipped_spec(self.env.spec)

    def reset(self, key: Key) -> tuple[Tree, Tree]:
        return self.env.reset(key)

    def step(self, state: Tree, action: Array, key: Key) -> tuple[Tree, Step]:
        return self.env.step(state, clip(jnp.asarray(action), *_bounds(self.env)), key)


@pytree
class ScaleReward:
    """Multiplies every reward by a constant."""

    env: Env
    scale: float

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, key: Key) -> tuple[Tree, Tree]:
        return self.env.reset(key)

    def step(self, state: Tree, action: Tree, key: Key) -> tuple[Tree, Step]:
        inner, step = self.env.step(state, action, key)
        return inner, step._replace(reward=scale_reward(step.reward, self.scale))


class _HostMap:
    """What all host maps share. ``get_state`` and ``set_state`` are there where the mapped environment has them."""

    def __init__(self, env: HostEnv, spec: EnvSpec):
        self.env, self.spec = env, spec
        self._step = env.step
        if hasattr(env, "get_state") and hasattr(env, "set_state"):
            self.get_state, self.set_state = env.get_state, env.set_state

    def reset(self, seed: int) -> Tree:
        return self.env.reset(seed)

    def close(self) -> None:
        self.env.close()


class HostTimeLimit(_HostMap):
    """``TimeLimit`` for a host environment; its state is the environment's and the count."""

    def __init__(self, env: HostEnv, max_steps: int):
        super().__init__(env, limited_spec(env.spec, max_steps))
        self.max_steps, self._count = max_steps, 0
        if hasattr(env, "get_state") and hasattr(env, "set_state"):
            self.get_state, self.set_state = self._get_state, self._set_state

    def reset(self, seed: int) -> Tree:
        self._count = 0
        return self.env.reset(seed)

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._step(action)
        self._count += 1
        return obs, reward, terminated, cut(truncated, self._count, self.max_steps), info

    def _get_state(self) -> Tree:
        return {"env": self.env.get_state(), "count": np.int32(self._count)}  # type: ignore[attr-defined]

    def _set_state(self, state: Tree) -> None:
        self.env.set_state(state["env"])  # type: ignore[attr-defined]
        self._count = int(state["count"])


class HostRescaleAction(_HostMap):
    """``RescaleAction`` for a host environment."""

    def __init__(self, env: HostEnv):
        super().__init__(env, rescaled_spec(env.spec))
        self._low, self._high = _bounds(env)

    def step(self, action: np.ndarray) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        return self._step(rescale(action, self._low, self._high))


class HostClipAction(_HostMap):
    """``ClipAction`` for a host environment."""

    def __init__(self, env: HostEnv):
        super().__init__(env, clipped_spec(env.spec))
        self._low, self._high = _bounds(env)

    def step(self, action: np.ndarray) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        return self._step(clip(action, self._low, self._high))


class HostScaleReward(_HostMap):
    """``ScaleReward`` for a host environment."""

    def __init__(self, env: HostEnv, scale: float):
        super().__init__(env, env.spec)
        self.scale = scale

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._step(action)
        return obs, scale_reward(reward, self.scale), terminated, truncated, info


def native(env: Env | HostEnv, action: np.ndarray) -> np.ndarray:
    """A policy's action in the units of the environment under all maps."""
    inner: Any = env
    while inner is not None:
        if isinstance(inner, (RescaleAction, HostRescaleAction)):
            action = rescale(action, *_bounds(inner.env))
        elif isinstance(inner, (ClipAction, HostClipAction)):
            action = clip(action, *_bounds(inner.env))
        action = action + getattr(inner, "action_start", 0)
        inner = getattr(inner, "env", None)
    return action
