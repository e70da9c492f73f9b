"""A pool of buffers that is drawn from as one: chunks are spread over shards, and a draw is as likely as if all lay together.

Every shard is a ring of the buffer inside, wherever that keeps its rows, so drawing, priorities and stores are its own. A chunk goes whole
to one shard, whose next chunk may be another lane's: its last steps are cut off there, as by a time limit, and keep their true successors.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.buffers import layout
from shoal.buffers.uniform import State
from shoal.errors import ConfigError
from shoal.specs import EnvSpec
from shoal.types import Array, Key, Metrics, Sample, Transition, Tree, pytree


@pytree
class Shards:
    """``num`` buffers behind one. Their state is the buffer's own, with a lane for each shard."""

    buffer: Tree
    """What a shard is: a ``Uniform`` or ``Prioritised``, or one of them over rows elsewhere; its capacity is that of all together."""
    num: int = 4
    """How many there are."""
    routing: str = "round_robin"
    """Where a chunk goes: round_robin (in turn), least_loaded (where there is least) or lane (always to the same for a lane)."""

    RANGES: ClassVar[dict] = {"num": (1, 4096)}
    CHOICES: ClassVar[dict] = {"routing": ("round_robin", "least_loaded", "lane")}

    # where the rows lie, as the buffer inside says ---------------------------------------------------------------------

    @property
    def apart(self) -> bool:
        return self.buffer.apart

    @property
    def in_files(self) -> bool:
        return self.apart and self.buffer.in_files

    @property
    def on_device(self) -> Shards:
        """The same with its rows on the device."""
        return dataclasses.replace(self, buffer=self.buffer.on_device) if self.apart else self

    def within(self, folder: Path) -> Shards:
        """The same with its files in another folder."""
        return dataclasses.replace(self, buffer=self.buffer.within(folder))

    # the buffer --------------------------------------------------------------------------------------------------------

    def check(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> Any:
        return self.buffer.check(*self._sizes(spec, num_envs, lanes, num_steps, extras))

    def _sizes(self, spec: EnvSpec, num_envs: int, lanes: int, num_steps: int, extras: Tree) -> tuple[Any, ...]:
        inner = self.on_device.buffer
        for wrong, why in (
            (num_envs % lanes, f"num_envs = {num_envs}: expected a multiple of the {lanes} lanes"),
            (self.routing == "lane" and lanes % self.num,
             f"routing = 'lane': expected as many lanes for each of the {self.num} shards, got {lanes} (num_envs / lane_envs)"),
            (inner.span > num_steps, f"{'length' if inner.length else 'n_step'} = {inner.span}: a pool of {self.num} shards cuts what it "
                                     f"keeps into chunks of num_steps = {num_steps}; expected at most that"),
        ):
            if wrong:
                raise ConfigError(why)
        # a chunk's older frames may lie in another shard: stacks are kept whole
        return dataclasses.replace(spec, frames=1), num_envs // lanes * self.num, self.num, num_steps, extras

    def init(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> State:
        return self.buffer.init(*self._sizes(spec, num_envs, lanes, num_steps, extras))

    def add(self, state: State, lane: Array | None, data: Transition) -> State:
        """A chunk [T, b, ...] of one lane; or [T, L·b, ...] of every lane, in lane order, where ``lane`` is None."""
        (form,) = state.form
        xp: Any = np if self.apart else jnp
        shape, lanes = form.ring, 1 if lane is not None else max(np.shape(data.last)[1] // form.ring.envs, 1)
        leaves = layout.checked(form, jax.device_get(data) if self.apart else data, (shape.steps, lanes * shape.envs), xp)
        data = jax.tree.unflatten(form.structure, leaves)
        data = data._replace(last=xp.concatenate([data.last[:-1], xp.ones_like(data.last[-1:])]))
        if lane is not None:
            return self._add(state, lane, data)

        def apart(x: Any) -> Any:
            """[T, L·b, ...] → [L, T, b, ...]"""
            return xp.moveaxis(x.reshape((shape.steps, lanes, shape.envs, *x.shape[2:])), 1, 0)

        parts = jax.tree.map(apart, data)
        if not self.apart:
            return jax.lax.scan(lambda state, given: (self._add(state, *given), None), state, (jnp.arange(lanes), parts))[0]
        for number in range(lanes):
            state = self._add(state, number, jax.tree.map(lambda x, number=number: x[number], parts))
        return state

    def _add(self, state: State, lane: Any, data: Transition) -> State:
        return self.buffer.add(state, self.route(state, lane), data)

    def route(self, state: State, lane: Any) -> Array:
        """The shard of the next chunk, if it is ``lane``'s."""
        xp: Any = np if self.apart else jnp
        if self.routing == "lane":
            return xp.asarray(lane, xp.int32) % self.num
        count = xp.asarray(state.index.count)
        if self.routing == "round_robin":
            return count.sum(dtype=xp.int32) % self.num
        # by chunks ever added, not by rows: a shard that gave up rows for chunks with many ends would be the emptiest for ever, and get all
        return xp.argmin(count - count[0]).astype(xp.int32)  # the difference, since counts go on from below past 2**31

    def interrupt(self, state: State, lane: Any) -> State:
        """Nothing: every chunk ends by itself."""
        return state

    def sample(self, state: State, key: Key) -> tuple[State, Sample]:
        return self.buffer.sample(state, key)

    def update(self, state: State, ticket: Any, priorities: Array, **how: bool) -> State:
        return self.buffer.update(state, ticket, priorities, **how)

    def ready(self, state: State) -> Array:
        return self.buffer.ready(state)

    def pace(self, rows: int) -> tuple[int, int]:
        return self.buffer.pace(rows)

    def metrics(self, state: State) -> Metrics:
        """Beside the buffer's own, the rows of the shard that holds least and of the one that holds most."""
        rows = self.rows(state).astype(np.float32)
        return self.buffer.metrics(state) | {"replay_rows_min": rows.min(), "replay_rows_max": rows.max()}

    def rows(self, state: State) -> Array:
        """[S]: rows held of every shard."""
        return (np if self.apart else jnp).asarray(state.index.filled) * state.form[0].ring.envs
