"""Fixed maps from environment to environment: time limit, action rescale and clip, reward scale and shaping.

Each exists twice, as a pytree over compiled environments and as a plain object over host ones; the arithmetic exists once,
in functions that take NumPy and JAX arrays alike. What is learned (normalisation) is not here: it belongs to the learner.
Sticky actions and maps of observations have rooms of their own, ``sticky`` and ``stacking``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
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


def shape_reward(reward: Array, discount: Array | float, before: Array, after: Array, terminated: Array) -> Array:
    """r + γ·Φ(s')·(1 − terminated) − Φ(s). Ng, Harada & Russell (1999), "Policy invariance under reward transformations", eq. 2.

    The potential of an end is 0 and that of a truncated state is its own, so that the best policy stays the best.
    """
    return reward + discount * after * ~terminated - before


def cut(truncated: Array, count: Array | int, max_steps: int) -> Array:
    """Truncated already, or by the limit; with an agent axis, all agents."""
    return truncated | (count >= max_steps)


def limited_spec(spec: EnvSpec, max_steps: int) -> EnvSpec:
    return replace(spec, max_episode_steps=max_steps)


def without_goal(spec: EnvSpec) -> EnvSpec:
    """Of a map whose rewards or observations are no longer those that the environment's ``reward_fn`` answers for."""
    return replace(spec, reward_fn=None)


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
        return without_goal(self.env.spec)

    def reset(self, key: Key) -> tuple[Tree, Tree]:
        return self.env.reset(key)

    def step(self, state: Tree, action: Tree, key: Key) -> tuple[Tree, Step]:
        inner, step = self.env.step(state, action, key)
        return inner, step._replace(reward=scale_reward(step.reward, self.scale))


class Shaped(NamedTuple):
    env: Tree
    potential: Array  # float32 [] or [N]: of the current observation


@pytree
class ShapeReward:
    """Adds ``discount · Φ(next) − Φ(now)`` to every reward: faster to learn from, and the best policy does not move.

    ``potential_fn`` is Φ, from an observation to a number ([N] with agents); ``discount`` must be the algorithm's own. What is
    reported as the episode's return is the shaped one: score policies in the environment without the map.
    """

    env: Env
    potential_fn: Callable[[Tree], Array]
    discount: float

    def __post_init__(self) -> None:
        # a plain function is no pytree: it becomes part of the program; a module with weights stays data
        if jax.tree.leaves(self.potential_fn) == [self.potential_fn] and callable(self.potential_fn):
            object.__setattr__(self, "potential_fn", jax.tree_util.Partial(self.potential_fn))

    @property
    def spec(self) -> EnvSpec:
        return without_goal(self.env.spec)

    def _potential(self, obs: Tree) -> Array:
        return jnp.asarray(self.potential_fn(obs), jnp.float32).reshape(self.env.spec.agent_shape)

    def reset(self, key: Key) -> tuple[Shaped, Tree]:
        state, obs = self.env.reset(key)
        return Shaped(state, self._potential(obs)), obs

    def step(self, state: Shaped, action: Tree, key: Key) -> tuple[Shaped, Step]:
        inner, step = self.env.step(state.env, action, key)
        after = self._potential(step.obs)
        reward = shape_reward(step.reward, self.discount, state.potential, after, step.terminated)
        return Shaped(inner, after), step._replace(reward=reward)


class HostMap:
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


class HostStateMap(HostMap, abc.ABC):
    """A host map with a state of its own, which travels beside the environment's."""

    def __init__(self, env: HostEnv, spec: EnvSpec):
        super().__init__(env, spec)
        if hasattr(env, "get_state") and hasattr(env, "set_state"):
            self.get_state, self.set_state = self._get_state, self._set_state

    @abc.abstractmethod
    def _own_state(self) -> dict[str, Tree]:
        """The map's own part, as arrays by name."""

    @abc.abstractmethod
    def _set_own_state(self, state: dict[str, Tree]) -> None:
        """Stand where ``_own_state`` stood."""

    def _get_state(self) -> Tree:
        return {"env": self.env.get_state()} | self._own_state()  # type: ignore[attr-defined]

    def _set_state(self, state: Tree) -> None:
        self.env.set_state(state["env"])  # type: ignore[attr-defined]
        self._set_own_state(state)


class HostTimeLimit(HostStateMap):
    """``TimeLimit`` for a host environment; its state is the environment's and the count."""

    def __init__(self, env: HostEnv, max_steps: int):
        super().__init__(env, limited_spec(env.spec, max_steps))
        self.max_steps, self._count = max_steps, 0

    def reset(self, seed: int) -> Tree:
        self._count = 0
        return self.env.reset(seed)

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._step(action)
        self._count += 1
        return obs, reward, terminated, cut(truncated, self._count, self.max_steps), info

    def _own_state(self) -> dict[str, Tree]:
        return {"count": np.int32(self._count)}

    def _set_own_state(self, state: dict[str, Tree]) -> None:
        self._count = int(state["count"])


class HostRescaleAction(HostMap):
    """``RescaleAction`` for a host environment."""

    def __init__(self, env: HostEnv):
        super().__init__(env, rescaled_spec(env.spec))
        self._low, self._high = _bounds(env)

    def step(self, action: np.ndarray) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        return self._step(rescale(action, self._low, self._high))


class HostClipAction(HostMap):
    """``ClipAction`` for a host environment."""

    def __init__(self, env: HostEnv):
        super().__init__(env, clipped_spec(env.spec))
        self._low, self._high = _bounds(env)

    def step(self, action: np.ndarray) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        return self._step(clip(action, self._low, self._high))


class HostScaleReward(HostMap):
    """``ScaleReward`` for a host environment."""

    def __init__(self, env: HostEnv, scale: float):
        super().__init__(env, without_goal(env.spec))
        self.scale = scale

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._step(action)
        return obs, scale_reward(reward, self.scale), terminated, truncated, info


class HostShapeReward(HostStateMap):
    """``ShapeReward`` for a host environment; its state is the environment's and the current potential."""

    def __init__(self, env: HostEnv, potential_fn: Callable[[Tree], Any], discount: float):
        super().__init__(env, without_goal(env.spec))
        self.potential_fn, self.discount = potential_fn, np.float32(discount)
        self._before = np.zeros(env.spec.agent_shape, np.float32)

    def _potential(self, obs: Tree) -> np.ndarray:
        return np.asarray(self.potential_fn(obs), np.float32).reshape(self.spec.agent_shape)

    def reset(self, seed: int) -> Tree:
        obs = self.env.reset(seed)
        self._before = self._potential(obs)
        return obs

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._step(action)
        before, self._before = self._before, self._potential(obs)
        ended = np.asarray(terminated, bool)
        reward = shape_reward(np.asarray(reward, np.float32), self.discount, before, self._before, ended)
        return obs, reward, terminated, truncated, info

    def _own_state(self) -> dict[str, Tree]:
        return {"potential": np.array(self._before)}

    def _set_own_state(self, state: dict[str, Tree]) -> None:
        self._before = np.array(state["potential"], np.float32)


def native(env: Env | HostEnv, action: np.ndarray) -> Any:
    """A policy's action in the units, and the space, of the environment under all maps."""
    inner: Any = env
    while inner is not None:
        if isinstance(inner, (RescaleAction, HostRescaleAction)):
            action = rescale(action, *_bounds(inner.env))
        elif isinstance(inner, (ClipAction, HostClipAction)):
            action = clip(action, *_bounds(inner.env))
        write_fn = getattr(inner, "write_action", None)  # an adapter's: to the outside world's own space
        action = write_fn(action) if write_fn else action
        inner = getattr(inner, "env", None)
    return action
