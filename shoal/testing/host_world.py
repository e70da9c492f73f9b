"""One face for the environments that live in Python, shoal's own kind and Gymnasium's, as their checks need it. No JAX here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from shoal.testing.leaf import Leaf, Misfit, of_gymnasium, of_spec

_WIDE = 1e3  # how far actions without a bound are drawn


class HostWorld:
    """A ``HostEnv``: ``reset(seed)`` answers an observation."""

    declares_info = True

    def __init__(self, env: Any, make_fn: Callable[[], Any] | None):
        self.env, self._make_fn = env, make_fn
        spec = getattr(env, "spec", None)
        if not isinstance(spec, EnvSpec):
            raise Misfit("spec", f"spec is {type(spec).__name__}: expected a shoal.specs.EnvSpec")
        self.name, self.agents, self.limit, self.info = spec.name, spec.agent_shape, spec.max_episode_steps, spec.info
        self.obs: list[Leaf] = of_spec(spec.obs, spec.agent_shape)
        of_spec(spec.action)
        self._action, self._draw = spec.action, np.random.default_rng(0)

    def fresh(self) -> HostWorld | None:
        """Another copy, made anew; None where nothing says how."""
        return type(self)(self._make_fn(), self._make_fn) if self._make_fn else None

    def seed_actions(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def reset(self, seed: int | None) -> Any:
        return self.env.reset(seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return _five(self.env.step(action))

    def close(self) -> None:
        self.env.close()

    def random_action(self) -> Any:
        space = self._action
        if isinstance(space, Box):
            low, high = (np.clip(bound, -_WIDE, _WIDE) for bound in space.bounds())
            return self._draw.uniform(low, high, (*self.agents, *space.shape)).astype(np.float32)
        return self._choice(self._draw.integers(0, _nums(space), (*self.agents, *space.shape)))

    def extreme_actions(self) -> list[Any]:
        """The lowest and the highest action."""
        space, shape = self._action, (*self.agents, *self._action.shape)
        if isinstance(space, Box):
            return [np.broadcast_to(bound, shape).copy() for bound in space.bounds() if np.isfinite(bound).all()]
        return [self._choice(np.zeros(shape, np.int32)), self._choice(np.broadcast_to(np.asarray(_nums(space)) - 1, shape))]

    @staticmethod
    def _choice(number: np.ndarray) -> Any:
        return int(number) if np.ndim(number) == 0 else np.array(number, np.int32)


class GymnasiumWorld:
    """A ``gymnasium.Env``: ``reset(seed=...)`` answers an observation and a dict."""

    declares_info = False

    def __init__(self, env: Any, make_fn: Callable[[], Any] | None):
        from gymnasium import spaces

        self.env, self._make_fn = env, make_fn
        for role in ("observation_space", "action_space"):
            if not isinstance(getattr(env, role, None), spaces.Space):
                raise Misfit("spec", f"{role} is {type(getattr(env, role, None)).__name__}: expected a Gymnasium space")
        known = getattr(env, "spec", None)
        self.name = known.id if known is not None else type(env).__name__
        self.limit, self.agents, self.info = (known.max_episode_steps or 0) if known is not None else 0, (), ()
        self.obs: list[Leaf] = of_gymnasium(env.observation_space)
        self._space = copy.deepcopy(env.action_space)  # seeding its own would change what the environment draws

    def fresh(self) -> GymnasiumWorld | None:
        return type(self)(self._make_fn(), self._make_fn) if self._make_fn else None

    def seed_actions(self, seed: int) -> None:
        self._space.seed(seed)

    def reset(self, seed: int | None) -> Any:
        answer = self.env.reset(seed=seed)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise Misfit("reset", f"reset answers {_form(answer)}: expected (observation, info)")
        return answer[0]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return _five(self.env.step(action))

    def close(self) -> None:
        self.env.close()

    def random_action(self) -> Any:
        return self._space.sample()

    def extreme_actions(self) -> list[Any]:
        from gymnasium import spaces

        if isinstance(self._space, spaces.Discrete):
            return [np.int64(self._space.start), np.int64(self._space.start + self._space.n - 1)]
        leaves = of_gymnasium(self._space)
        if len(leaves) != 1 or leaves[0].path or leaves[0].low is None or leaves[0].high is None:
            return []
        (leaf,) = leaves
        ends = [np.broadcast_to(bound, leaf.shape).astype(leaf.dtype) for bound in (leaf.low, leaf.high) if bound is not None]
        return [end for end in ends if leaf.choice or np.isfinite(end).all()]


World = HostWorld | GymnasiumWorld


def _nums(space: Discrete | MultiDiscrete | MultiBinary) -> Any:
    return space.nums if isinstance(space, MultiDiscrete) else space.num if isinstance(space, Discrete) else 2


def _five(answer: Any) -> tuple[Any, Any, Any, Any, Any]:
    if not (isinstance(answer, tuple) and len(answer) == 5):
        raise Misfit("step", f"step answers {_form(answer)}: expected (observation, reward, terminated, truncated, info)")
    return answer


def _form(answer: Any) -> str:
    return f"a tuple of {len(answer)}" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
