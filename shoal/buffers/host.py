"""Buffers whose rows lie outside the device: in memory, or wherever a store puts them.

The index and its priorities stay on the device and are the same as ever; only reading and writing rows happens here, so a run draws the
same rows and gets the same bits wherever they lie. What a call is given it uses up, as a donated buffer is.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import numpy as np

from shoal.buffers import layout, pool, ring
from shoal.buffers.layout import Chunk, Drawn, Fetched, Form, Store
from shoal.buffers.prioritised import Prioritised, check_priorities
from shoal.buffers.ring import Index, Ticket
from shoal.buffers.uniform import State, Uniform
from shoal.specs import EnvSpec
from shoal.types import Array, Key, Metrics, Sample, Transition, Tree, pytree


def allocate(form: Form) -> Store:
    """Empty rows in memory; pages are taken as rows are written."""
    return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), layout.shapes(form))


def put(form: Form, store: Store, which: np.ndarray, cursor: np.ndarray, start: np.ndarray, chunk: Chunk) -> None:
    """Write a chunk where ``layout.put`` would, in place."""
    shape = form.ring
    size, behind = shape.steps * shape.envs, pool.entries(shape)
    for k, lane in enumerate(which):
        columns = slice(k * shape.envs, (k + 1) * shape.envs)
        for old, new in zip((store.words, *store.wide), (chunk.words, *chunk.wide), strict=True):
            old[lane, cursor[k]:cursor[k] + shape.steps] = new[:, columns]
        for old, obs, ends, newest in zip(store.pool, chunk.obs, chunk.ends, chunk.newest, strict=True):
            old[lane, start[k]:start[k] + size] = obs[k]
            old[lane, start[k] + size:start[k] + 2 * size] = ends[k]
            old[lane, behind:] = newest[k]


@functools.partial(jax.jit, static_argnums=1, donate_argnums=(2, 3))
def _enter(buffer: Uniform, form: Form, index: Index, priority: Any, lane: Array | None, num_ends: Array, last: Array) -> Any:
    return buffer.enter(form, index, priority, lane, num_ends, last)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=3)
def _draw(buffer: Uniform, form: Form, index: Index, priority: Any, key: Key) -> tuple[Any, Drawn, Array, Ticket]:
    return buffer.draw(form, index, priority, key)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=2)
def _end_newest(buffer: Uniform, form: Form, index: Index, lane: Array, words: Array) -> Any:
    return buffer.end_newest(form, index, lane, words)


@functools.partial(jax.jit, static_argnums=1)
def _assemble(buffer: Uniform, form: Form, fetched: Fetched) -> Transition:
    return buffer.assemble(form, fetched)


@functools.partial(jax.jit, donate_argnums=1)
def _update(buffer: Uniform, state: State, ticket: Ticket, priorities: Array) -> State:
    return buffer.update(state, ticket, priorities)


@pytree
class Host:
    """A buffer over rows in memory. Not for compiled code: its methods are called from Python."""

    buffer: Tree
    """What is kept and how it is drawn: a ``Uniform`` or ``Prioritised``."""

    apart: ClassVar[bool] = True  # from the device
    in_files: ClassVar[bool] = False

    @property
    def on_device(self) -> Any:
        """The same with its rows on the device: what compiled code can be tried with."""
        return self.buffer

    def check(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> int:
        return self.buffer.check(spec, num_envs, lanes, num_steps, extras)

    def init(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> State:
        form = self.buffer.form(spec, num_envs, lanes, num_steps, extras)
        return self.buffer.empty(form, allocate(form))

    def add(self, state: State, lane: int | None, data: Transition) -> State:
        """A chunk of one lane, or of all; arrays of NumPy or JAX."""
        (form,) = state.form
        chunk = self.buffer.pack(form, lane, jax.tree.map(np.ascontiguousarray, jax.device_get(data)), np)
        index, priority, where = _enter(self.buffer, form, state.index, state.priority, lane, chunk.num_ends, chunk.last)
        which, slot, start = (np.asarray(x) for x in where)
        self.put(form, state.store, which, slot, start, chunk)
        return State(state.store, index, priority, state.form)

    def put(self, form: Form, store: Any, which: np.ndarray, cursor: np.ndarray, start: np.ndarray, chunk: Chunk) -> None:
        put(form, store, which, cursor, start, chunk)

    def interrupt(self, state: State, lane: int) -> State:
        """Say that the lane's next chunk will not follow its last one: its newest steps become ends, by truncation."""
        (form,) = state.form
        words = layout.take(state.store.words, np.asarray(ring.newest(form.ring, state.index, lane)))
        index, words, slot, place = _end_newest(self.buffer, form, state.index, lane, words)
        self.rewrite(form, state.store, lane, int(slot), np.asarray(words), np.asarray(place))
        return State(state.store, index, state.priority, state.form)

    def rewrite(self, form: Form, store: Any, lane: int, slot: int, words: np.ndarray, place: np.ndarray) -> None:
        """Replace the words [b, words] of a slot, and move waiting successors to places [b] of the pool."""
        store.words[lane, slot] = words
        moved = place < pool.entries(form.ring)
        for field in store.pool:
            field[lane, place[moved]] = field[lane, pool.entries(form.ring):][moved]

    def sample(self, state: State, key: Key) -> tuple[State, Sample]:
        """A batch, read from memory; refused before there is enough to draw from. Consumes the key."""
        (form,) = state.form
        self.buffer.check_ready(state)
        priority, drawn, weight, ticket = _draw(self.buffer, form, state.index, state.priority, key)
        fetched = self.buffer.get(form, state.store, jax.tree.map(np.asarray, drawn))
        return State(state.store, state.index, priority, state.form), Sample(_assemble(self.buffer, form, fetched), weight, ticket)

    def update(self, state: State, ticket: Ticket, priorities: Array, *, strict: bool = True) -> State:
        """Tell how much was learned from each row; what is no finite number of at least 0 is an error, or only counted."""
        if not isinstance(self.buffer, Prioritised):
            return state
        if strict:
            check_priorities(priorities)
        after = _update(self.buffer, State((), state.index, state.priority, state.form), ticket, priorities)
        return State(state.store, after.index, after.priority, state.form)

    def ready(self, state: State) -> Array:
        return self.buffer.enough(state.form[0], state.index)

    def metrics(self, state: State) -> Metrics:
        return self.buffer.metrics(jax.device_get(State((), state.index, state.priority, state.form)))

    def pace(self, rows: int) -> tuple[int, int]:
        return self.buffer.pace(rows)
