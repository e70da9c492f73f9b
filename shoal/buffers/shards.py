"""A pool of buffers that is drawn from as one: chunks are spread over shards, and a draw is as likely as if all lay together.

Every shard is a ring of the buffer inside, so drawing, priorities and stores are its own. A chunk goes whole to one shard, whose next
chunk may be another lane's: its last steps are cut off there, as by a time limit, and keep their true successors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import ConfigError
from shoal.specs import EnvSpec
from shoal.types import Array, Key, Sample, Transition, Tree, pytree


class State(NamedTuple):
    inner: Any  # the buffer's own, a lane for each shard
    turn: Array  # [] int32: chunks ever added


class Statistics(NamedTuple):
    """Of every shard, [S] each."""

    rows: np.ndarray  # held
    chunks: np.ndarray  # ever added


@pytree
class Shards:
    """``num`` buffers behind one."""

    buffer: Tree
    """What a shard is: a ``Uniform`` or ``Prioritised``; its capacity is that of all together."""
    num: int = 4
    """How many there are."""
    routing: str = "round_robin"
    """Where a chunk goes: round_robin (in turn), least_loaded (where there is least) or lane (always to the same for a lane)."""

    RANGES: ClassVar[dict] = {"num": (1, 4096)}
    CHOICES: ClassVar[dict] = {"routing": ("round_robin", "least_loaded", "lane")}
    apart: ClassVar[bool] = False

    def check(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> Any:
        return self.buffer.check(*self._sizes(spec, num_envs, lanes, num_steps, extras))

    def _sizes(self, spec: EnvSpec, num_envs: int, lanes: int, num_steps: int, extras: Tree) -> tuple[Any, ...]:
        if num_envs % lanes:
            raise ConfigError(f"num_envs = {num_envs}: expected a multiple of the {lanes} lanes")
        if self.routing == "lane" and lanes % self.num:
            raise ConfigError(f"routing = 'lane': expected as many lanes for each of the {self.num} shards, got {lanes} lanes")
        # a chunk's older frames may lie in another shard: stacks are kept whole
        return replace(spec, frames=1), num_envs // lanes * self.num, self.num, num_steps, extras

    def init(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> State:
        return State(self.buffer.init(*self._sizes(spec, num_envs, lanes, num_steps, extras)), jnp.zeros((), jnp.int32))

    def add(self, state: State, lane: Array | None, data: Transition) -> State:
        """A chunk [T, b, ...] of one lane; or [T, L·b, ...] of every lane, in lane order, where ``lane`` is None."""
        size = state.inner.form[0].ring.envs
        for number in range(data.last.shape[1] // size):
            part = jax.tree.map(lambda x, number=number: x[:, number * size:(number + 1) * size], data)
            state = self._add(state, number if lane is None else lane, part)
        return state

    def _add(self, state: State, lane: Any, data: Transition) -> State:
        xp: Any = jnp if isinstance(data.last, jax.Array) else np
        data = data._replace(last=xp.concatenate([data.last[:-1], xp.ones_like(data.last[-1:])]))
        return State(self.buffer.add(state.inner, self.route(state, lane), data), state.turn + 1)

    def route(self, state: State, lane: Any) -> Array:
        """The shard of the next chunk, if it is ``lane``'s."""
        if self.routing == "lane":
            return jnp.asarray(lane, jnp.int32) % self.num
        if self.routing == "round_robin":
            return state.turn % self.num
        index = state.inner.index
        least = index.filled == index.filled.min()
        return jnp.argmin(jnp.where(least, index.count, jnp.iinfo(jnp.int32).max)).astype(jnp.int32)  # of those, the least used

    def sample(self, state: State, key: Key) -> tuple[State, Sample]:
        inner, sample = self.buffer.sample(state.inner, key)
        return state._replace(inner=inner), sample

    def update(self, state: State, ticket: Any, priorities: Array) -> State:
        return state._replace(inner=self.buffer.update(state.inner, ticket, priorities))

    def ready(self, state: State) -> Array:
        return self.buffer.ready(state.inner)

    def pace(self, rows: int) -> tuple[int, int]:
        return self.buffer.pace(rows)

    def statistics(self, state: State) -> Statistics:
        index = jax.device_get(state.inner.index)
        return Statistics(index.filled * state.inner.form[0].ring.envs, index.count)
