"""A fish that holds its place in a stream."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree


class State(NamedTuple):
    place: Array  # float32 []: 0 is the middle, -1 and 1 are the banks
    current: Array  # float32 []: where the water drifts, for the whole episode


@pytree
class Stream:
    """Swim left, rest or swim right to stay in the middle of a stream."""

    drift: float = 0.1
    """The strongest current, per step."""
    stroke: float = 0.15
    """How far a stroke carries."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("stream", obs=Box((2,), -2.0, 2.0), action=Discrete(3), max_episode_steps=50)

    def reset(self, key: Key) -> tuple[State, Array]:
        where, water = jax.random.split(key)
        current = self.drift * jax.random.uniform(water, (), minval=-1.0)
        state = State(jax.random.uniform(where, (), minval=-0.5, maxval=0.5), current)
        return state, self._observe(state)

    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        place = state.place + state.current + self.stroke * (action - 1.0)
        after, ashore = State(place, state.current), jnp.abs(place) >= 1.0
        reward = jnp.where(ashore, 0.0, 1.0 - jnp.abs(place))
        return after, Step(self._observe(after), reward, ashore, jnp.zeros((), bool), {})

    def _observe(self, state: State) -> Array:
        return jnp.stack([state.place, state.current / self.drift])
