"""Sticky actions, compiled and host: now and then the environment is given its previous action again.

Machado et al. (2018), "Revisiting the Arcade Learning Environment", section 5.2: enough chance that a sequence of actions
learned by heart does not pay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import rng
from shoal.envs.maps import HostStateMap
from shoal.specs import Discrete, EnvSpec, zeros
from shoal.types import Array, Env, HostEnv, Key, Step, Tree, pytree


def stick(repeat: Array, previous: Array, action: Array, xp: Any) -> Array:
    """The previous action where ``repeat`` ([] or [N]), else the new one. ``xp`` is ``numpy`` or ``jax.numpy``."""
    return xp.where(repeat.reshape(repeat.shape + (1,) * (action.ndim - repeat.ndim)), previous, action)


class Sticking(NamedTuple):
    env: Tree
    previous: Array  # what the environment was last given
    begun: Array  # bool []: whether there is a previous action in this episode


@pytree
class StickyActions:
    """With this probability the environment is given its previous action again, each agent for itself.

    Machado et al. (2018), "Revisiting the Arcade Learning Environment", section 5.2. The first action of an episode never sticks.
    """

    env: Env
    probability: float

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, key: Key) -> tuple[Sticking, Tree]:
        state, obs = self.env.reset(key)
        spec = self.env.spec
        return Sticking(state, jnp.asarray(zeros(spec.action, spec.agent_shape)), jnp.zeros((), bool)), obs

    def step(self, state: Sticking, action: Array, key: Key) -> tuple[Sticking, Step]:
        """Half of ``key`` decides what sticks, the other is the environment's."""
        own, inner_key = jax.random.split(key)
        spec = self.env.spec
        repeat = (jax.random.uniform(own, spec.agent_shape) < self.probability) & state.begun
        taken = stick(repeat, state.previous, jnp.asarray(action, spec.action.dtype), jnp)
        inner, step = self.env.step(state.env, taken, inner_key)
        return Sticking(inner, taken, jnp.ones((), bool)), step


class HostStickyActions(HostStateMap):
    """``StickyActions`` for a host environment. What sticks is drawn by address, (seed of the episode, step, agent), so that
    the episode's seed and actions are enough to replay it."""

    def __init__(self, env: HostEnv, probability: float):
        super().__init__(env, env.spec)
        self.probability, self._seed, self._count = probability, 0, 0
        self._previous: Any = zeros(env.spec.action, env.spec.agent_shape)
        self._whole = isinstance(env.spec.action, Discrete) and not env.spec.num_agents

    def reset(self, seed: int) -> Tree:
        self._seed, self._count = seed, 0
        self._previous = zeros(self.spec.action, self.spec.agent_shape)
        return self.env.reset(seed)

    def _repeats(self, *agent: int) -> bool:
        return rng.host_seed(self._seed, rng.Stream.ENV, self._count, *agent) < self.probability * 2**31

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        if self._count and self.spec.num_agents:
            repeat = np.array([self._repeats(agent) for agent in range(self.spec.num_agents)])
            action = stick(repeat, self._previous, np.asarray(action), np)
        elif self._count and self._repeats():
            action = self._previous
        self._count += 1
        self._previous = action if self._whole else np.array(action)
        return self._step(action)

    def _own_state(self) -> dict[str, Tree]:
        previous = np.asarray(self._previous, self.spec.action.dtype)
        return {"previous": previous, "count": np.int32(self._count), "seed": np.int64(self._seed)}

    def _set_own_state(self, state: dict[str, Tree]) -> None:
        self._previous = np.int64(state["previous"]) if self._whole else np.array(state["previous"])
        self._count, self._seed = int(state["count"]), int(state["seed"])
