"""The on-policy buffer: holds exactly the chunks of one iteration and gives them all, once."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.types import Array, Key, Metrics, Sample, Transition, pytree


@pytree
class Rollout:
    """One iteration's data, [T, B, ...]; empty between iterations, so a cut stores nothing of it."""

    apart: ClassVar[bool] = False

    def check(self, spec: object, num_envs: int, lanes: int, num_steps: int) -> None:
        """It always fits: it is what an iteration makes."""

    def init(self, spec: object, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: object = ()) -> tuple:
        return ()

    def add(self, state: tuple, lane: Array, data: Transition) -> tuple:
        """``data`` [T, B, ...]: appended along the environments, in lane order."""
        if state == ():
            return (data,)
        return (jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), state[0], data),)

    def sample(self, state: tuple, key: Key) -> tuple[tuple, Sample]:
        """All of it; the buffer is empty afterwards. The key is not consumed."""
        (data,) = state
        return (), Sample(data, jnp.ones(()), jnp.zeros((), jnp.int32))

    def update(self, state: tuple, ticket: Array, priorities: Array) -> tuple:
        return state

    def interrupt(self, state: tuple, lane: Array) -> tuple:
        """Chunks are whole as they are."""
        return state

    def ready(self, state: tuple) -> Array:
        return jnp.asarray(state != ())

    def metrics(self, state: tuple) -> Metrics:
        """None: what it holds is always the same."""
        return {}

    def pace(self, rows: int) -> tuple[int, int]:
        """One update for an iteration."""
        return 1, rows


