"""One episode, step by step, as something to look at. Who acts is passed in; how it looks is ``render``'s or Gymnasium's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from shoal import rng
from shoal.envs import build, render
from shoal.envs.gymnasium import GymEnv
from shoal.errors import ConfigError, MissingError
from shoal.plan import Plan
from shoal.types import Env, HostEnv, Tree

ActFn = Callable[[Tree, int], Any]  # observation and step → action, both as the mapped environment has them
MODES = {"text": "ansi", "rgb": "rgb_array", "gif": "rgb_array"}  # ours → Gymnasium's
FRAME_S = 0.05  # how long a picture is shown
_GIF_WIDTH = 320  # pixels; wider pictures are thinned out, for a GIF is held in memory whole

_reset = jax.jit(lambda env, key: env.reset(key))
_step = jax.jit(lambda env, state, action, key, t: env.step(state, action, jax.random.fold_in(key, t)))


class Shot(NamedTuple):
    """The world after ``step`` steps."""

    picture: Any  # text, or uint8 [H, W, 3]
    step: int
    reward: float  # of the step that led here; with agents, their mean
    total: float  # since the start
    over: bool


def open_env(plan: Plan, mode: str) -> Env | HostEnv:
    """The plan's environment, ready to be looked at in ``mode``: text, rgb or gif."""
    env = build.from_plan(plan)
    inner: Any = _bare(env)
    if not isinstance(inner, GymEnv):
        return env
    can = list(inner._env.metadata.get("render_modes", ()))
    env.close()  # type: ignore[union-attr]
    if MODES[mode] not in can:
        others = [ours for ours, theirs in MODES.items() if theirs in can]
        way = f"try --render {others[0]}" if others else "it cannot be shown"
        raise ConfigError(f"env {plan.env!r} has no {MODES[mode]} render mode, only {', '.join(map(str, can)) or 'none'}; {way}")
    return build.from_plan(dataclasses.replace(plan, env_options=plan.env_options | {"render_mode": MODES[mode]}))


def play(env: Env | HostEnv, act_fn: ActFn, *, mode: str, seed: int, max_steps: int) -> Iterator[Shot]:
    """The first evaluation episode of ``seed``, to its end or ``max_steps``; the start is shot 0."""
    world: Any = _Host(env, mode, seed) if isinstance(env, HostEnv) else _Compiled(env, mode, seed)
    total, present = np.zeros(env.spec.agent_shape), np.ones(env.spec.agent_shape, bool)
    yield Shot(world.picture(), 0, 0.0, 0.0, False)
    for t in range(max_steps):
        reward, terminated, truncated = world.step(act_fn(world.obs, t), t)
        gained = np.where(present, np.asarray(reward, np.float64), 0.0)
        total, present = total + gained, present & ~(np.asarray(terminated, bool) | np.asarray(truncated, bool))
        yield Shot(world.picture(), t + 1, float(gained.mean()), float(total.mean()), not present.any())
        if not present.any():
            return


class _Compiled:
    def __init__(self, env: Env, mode: str, seed: int):
        self._env, self._draw = env, render.text if mode == "text" else render.rgb
        self._key = rng.key(rng.root(seed), rng.Stream.EVAL_ENV, 0)
        self._state, self.obs = _reset(env, self._key)

    def step(self, action: Any, t: int) -> tuple[Any, Any, Any]:
        self._state, step = _step(self._env, self._state, action, self._key, np.int32(t))
        self.obs = step.obs
        return step.reward, step.terminated, step.truncated

    def picture(self) -> Any:
        return self._draw(self._env, self._state, jax.device_get(self.obs))


class _Host:
    def __init__(self, env: HostEnv, mode: str, seed: int):
        self._env, self._inner = env, _bare(env)
        self._draw = render.text_of if mode == "text" else render.rgb_of
        self.obs = env.reset(rng.host_seed(seed, rng.Stream.EVAL_ENV, 0))

    def step(self, action: Any, t: int) -> tuple[Any, Any, Any]:
        self.obs, reward, terminated, truncated, _ = self._env.step(action.item() if np.ndim(action) == 0 else action)
        return reward, terminated, truncated

    def picture(self) -> Any:
        if not isinstance(self._inner, GymEnv):
            return self._draw(self._env.spec.obs, self.obs)
        try:
            shown = self._inner._env.render()
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise MissingError(f"env {self._env.spec.name!r} cannot be drawn: {str(error).splitlines()[0]}") from error
        if shown is None:
            raise ConfigError(f"env {self._env.spec.name!r} drew nothing: its render answered None")
        return shown if isinstance(shown, str) else np.asarray(shown, np.uint8)[..., :3]


def _bare(env: Any) -> Any:
    while hasattr(env, "env"):
        env = env.env
    return env


def thin(image: np.ndarray) -> np.ndarray:
    """Small enough for a GIF: every n-th row and column."""
    every = -(-image.shape[1] // _GIF_WIDTH)
    return image[::every, ::every]

