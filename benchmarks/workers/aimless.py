"""An algorithm that draws its actions and learns nothing, so that stepping is all there is to do. A plugin: ``aimless``."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shoal import registry
from shoal.buffers.rollout import Rollout
from shoal.errors import ConfigError
from shoal.specs import Discrete, EnvSpec
from shoal.types import Acted, Array, Batch, Key, Role, Tree, Updated, pytree


@pytree
class Aimless:
    """Actions without regard to anything, drawn a chunk at a time."""

    num_steps: int = 128
    """Steps each environment takes per iteration."""

    RANGES: ClassVar[dict[str, Any]] = {"num_steps": (1, 1_000_000)}

    def init(self, spec: EnvSpec, key: Key) -> Array:
        if not isinstance(spec.action, Discrete):
            raise ConfigError(f"aimless needs choices; the actions of {spec.name!r} are {type(spec.action).__name__}")
        return jnp.zeros(())

    def buffer(self, spec: EnvSpec) -> Rollout:
        return Rollout()

    def memory(self, spec: EnvSpec, batch: int) -> tuple[()]:
        return ()

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Array:
        assert isinstance(spec.action, Discrete)
        return jax.random.randint(key, shape, 0, spec.action.num, jnp.int32)

    def policy(self, state: Array) -> Array:
        return state

    def act(self, params: Array, memory: tuple[()], obs: Tree, role: Role, noise: Array) -> Acted:
        return Acted(noise, memory, ())

    def update(self, state: Array, batch: Batch, key: Key) -> Updated:
        return Updated(state + batch.data.last.sum(), {}, None)


registry.register(algo={"aimless": Aimless})
