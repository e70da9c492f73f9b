"""Fixed maps of observations: the last few stacked together, and anything flattened into one vector.

As in ``maps``, each exists compiled and for host environments, and the arithmetic once: ``xp`` is ``numpy`` or ``jax.numpy``.
A group's action mask and global state mean what they say of the present alone and are passed on as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.envs.maps import HostMap, HostStateMap, without_goal
from shoal.errors import ConfigError
from shoal.specs import MASK, STATE, Box, Discrete, EnvSpec, Group, MultiBinary, MultiDiscrete, Space
from shoal.types import Array, Env, HostEnv, Key, Step, Tree, pytree

_ASIDE = (MASK, STATE)

# frames --------------------------------------------------------------------------------------------------------------


def _frame(space: Any, obs: Array) -> Array:
    """One observation with the axis along which frames follow each other last: single numbers and [H, W] get a new one."""
    return obs[..., None] if len(space.shape) in (0, 2) else obs


def fill(space: Space, obs: Tree, num: int, xp: Any) -> Tree:
    """The stack after a reset: the first observation, ``num`` times."""
    if isinstance(space, Group):
        return {name: obs[name] if name in _ASIDE else fill(inner, obs[name], num, xp) for name, inner in space.items}
    return xp.concatenate([_frame(space, xp.asarray(obs, space.dtype))] * num, axis=-1)


def push(space: Space, frames: Tree, obs: Tree, xp: Any) -> Tree:
    """The stack without its oldest observation and with ``obs`` as its newest, which is last."""
    if isinstance(space, Group):
        return {name: obs[name] if name in _ASIDE else push(inner, frames[name], obs[name], xp) for name, inner in space.items}
    new = _frame(space, xp.asarray(obs, space.dtype))
    return xp.concatenate([frames[..., new.shape[-1]:], new], axis=-1)


def stacked_space(space: Space, num: int) -> Space:
    """Vectors [n] become [num·n], images [H, W, C] become [H, W, num·C], the oldest first; a choice becomes several."""
    if isinstance(space, Group):
        return Group(tuple((name, inner if name in _ASIDE else stacked_space(inner, num)) for name, inner in space.items))
    if isinstance(space, Discrete):
        return MultiDiscrete((space.num,) * num, space.dtype)
    if isinstance(space, MultiDiscrete):
        return replace(space, nums=space.nums * num)
    if isinstance(space, MultiBinary):
        return replace(space, num=space.num * num)
    shape = space.shape if len(space.shape) not in (0, 2) else (*space.shape, 1)

    def repeated(bound: Any) -> float | tuple[float, ...]:
        return bound if np.ndim(bound) == 0 else _tuple(np.concatenate([np.asarray(bound).reshape(shape)] * num, axis=-1))

    return Box((*shape[:-1], shape[-1] * num), repeated(space.low), repeated(space.high), space.dtype)


def stacked_spec(spec: EnvSpec, num: int) -> EnvSpec:
    if num < 1:
        raise ConfigError(f"frame_stack = {num}: expected a number of at least 1")
    return replace(without_goal(spec), obs=stacked_space(spec.obs, num), frames=num)


# vectors -------------------------------------------------------------------------------------------------------------


def vector(space: Space, obs: Tree, xp: Any) -> Array:
    """An observation as float32 numbers on one axis, a group's parts in order; choices one-hot."""
    if isinstance(space, Group):
        return xp.concatenate([vector(inner, obs[name], xp) for name, inner in space.items if name not in _ASIDE], axis=-1)
    obs = xp.asarray(obs)
    if isinstance(space, Discrete):
        return (obs[..., None] == np.arange(space.num)).astype(np.float32)
    if isinstance(space, MultiDiscrete):
        chosen = [obs[..., i, None] == np.arange(num) for i, num in enumerate(space.nums)]
        return xp.concatenate(chosen, axis=-1).astype(np.float32)
    lead = obs.shape[:obs.ndim - len(space.shape)]
    return obs.reshape((*lead, math.prod(space.shape))).astype(np.float32)


def flatten(space: Space, obs: Tree, xp: Any) -> Tree:
    """``vector``, beside the mask and state of a group that has them."""
    flat = vector(space, obs, xp)
    aside = {name: obs[name] for name, _ in space.items if name in _ASIDE} if isinstance(space, Group) else {}
    return {"obs": flat} | aside if aside else flat


def _limits(space: Space) -> tuple[list[float], list[float]]:
    if isinstance(space, Group):
        parts = [_limits(inner) for name, inner in space.items if name not in _ASIDE]
        return [x for low, _ in parts for x in low], [x for _, high in parts for x in high]
    if isinstance(space, Box):
        low, high = space.bounds()
        return low.reshape(-1).tolist(), high.reshape(-1).tolist()
    num = sum(space.nums) if isinstance(space, MultiDiscrete) else space.num
    return [0.0] * num, [1.0] * num


def flat_space(space: Space) -> Space:
    """The vector's box; a group with the mask and state beside it where there are any."""
    low, high = map(_tuple, map(np.asarray, _limits(space)))
    box = Box((len(_limits(space)[0]),), low, high)
    aside = tuple((name, inner) for name, inner in space.items if name in _ASIDE) if isinstance(space, Group) else ()
    return Group((("obs", box), *aside)) if aside else box


def flat_spec(spec: EnvSpec) -> EnvSpec:
    return replace(without_goal(spec), obs=flat_space(spec.obs), frames=1)


def _tuple(values: np.ndarray) -> float | tuple[float, ...]:
    flat = values.reshape(-1)
    return float(flat[0]) if flat.size and (flat == flat[0]).all() else tuple(float(x) for x in flat)


# compiled ------------------------------------------------------------------------------------------------------------


class Stacked(NamedTuple):
    env: Tree
    frames: Tree  # the stack that was shown last


@pytree
class FrameStack:
    """Shows the last ``num`` observations together; after a reset they are all the first one."""

    env: Env
    num: int

    @property
    def spec(self) -> EnvSpec:
        return stacked_spec(self.env.spec, self.num)

    def reset(self, key: Key) -> tuple[Stacked, Tree]:
        state, obs = self.env.reset(key)
        frames = fill(self.env.spec.obs, obs, self.num, jnp)
        return Stacked(state, frames), frames

    def step(self, state: Stacked, action: Tree, key: Key) -> tuple[Stacked, Step]:
        inner, step = self.env.step(state.env, action, key)
        frames = push(self.env.spec.obs, state.frames, step.obs, jnp)
        return Stacked(inner, frames), step._replace(obs=frames)


@pytree
class FlattenObs:
    """Shows the observation as one vector of float32 numbers."""

    env: Env

    @property
    def spec(self) -> EnvSpec:
        return flat_spec(self.env.spec)

    def reset(self, key: Key) -> tuple[Tree, Tree]:
        state, obs = self.env.reset(key)
        return state, flatten(self.env.spec.obs, obs, jnp)

    def step(self, state: Tree, action: Tree, key: Key) -> tuple[Tree, Step]:
        inner, step = self.env.step(state, action, key)
        return inner, step._replace(obs=flatten(self.env.spec.obs, step.obs, jnp))


# host ----------------------------------------------------------------------------------------------------------------


class HostFrameStack(HostStateMap):
    """``FrameStack`` for a host environment; its state is the environment's and the stack."""

    def __init__(self, env: HostEnv, num: int):
        super().__init__(env, stacked_spec(env.spec, num))
        self.num, self._space, self._frames = num, env.spec.obs, None

    def reset(self, seed: int) -> Tree:
        self._frames = fill(self._space, self.env.reset(seed), self.num, np)
        return self._frames

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._step(action)
        self._frames = push(self._space, self._frames, obs, np)
        return self._frames, reward, terminated, truncated, info

    def _own_state(self) -> dict[str, Tree]:
        return {"frames": _copied(self._frames)}

    def _set_own_state(self, state: dict[str, Tree]) -> None:
        self._frames = _copied(state["frames"])


class HostFlattenObs(HostMap):
    """``FlattenObs`` for a host environment."""

    def __init__(self, env: HostEnv):
        super().__init__(env, flat_spec(env.spec))
        self._space = env.spec.obs

    def reset(self, seed: int) -> Tree:
        return flatten(self._space, self.env.reset(seed), np)

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._step(action)
        return flatten(self._space, obs, np), reward, terminated, truncated, info


def _copied(tree: Tree) -> Tree:
    return {name: _copied(inner) for name, inner in tree.items()} if isinstance(tree, dict) else np.array(tree)


# observations from elsewhere -----------------------------------------------------------------------------------------


class Observer:
    """Maps what the world under all maps shows to what the policy over them sees. ``reset`` begins a new episode.

    What has been through the maps already passes as it is.
    """

    def __init__(self, env: Env | HostEnv):
        self._spec, self._frames, inner = env.spec, {}, env  # type: ignore[var-annotated]
        self._maps: list[Callable[[Tree], Tree]] = []
        while inner is not None:
            if isinstance(inner, FlattenObs | HostFlattenObs):
                self._maps.append(functools.partial(flatten, inner.env.spec.obs, xp=np))
            elif isinstance(inner, FrameStack | HostFrameStack):
                self._maps.append(functools.partial(self._stack, len(self._maps), inner.env.spec.obs, inner.num))
            self._read: Any = getattr(inner, "read_obs", None)  # an adapter's: from the outside world's own space
            inner = getattr(inner, "env", None)  # type: ignore[assignment]

    def reset(self) -> None:
        self._frames = {}

    def __call__(self, obs: Tree) -> Tree:
        if self._maps and _fits(self._spec.obs, obs, self._spec.agent_shape):
            return obs
        if self._read:
            obs = self._read(obs)
        for apply_fn in reversed(self._maps):
            obs = apply_fn(obs)
        return obs

    def _stack(self, place: int, space: Space, num: int, obs: Tree) -> Tree:
        frames = self._frames.get(place)
        self._frames[place] = fill(space, obs, num, np) if frames is None else push(space, frames, obs, np)
        return self._frames[place]


def _fits(space: Space, obs: Tree, lead: tuple[int, ...]) -> bool:
    if isinstance(space, Group):
        return isinstance(obs, dict) and all(name in obs and _fits(inner, obs[name], lead) for name, inner in space.items)
    return not isinstance(obs, dict) and np.shape(obs) == lead + space.shape
