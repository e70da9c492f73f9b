"""Uniform replay: every row that is held is equally likely.

Drawing, reading and putting together are apart: ``draw`` and ``assemble`` only need the index, so they serve a store in memory as
well as one on the device, with the same bits.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal import disk
from shoal.buffers import layout, pool, ring
from shoal.buffers.layout import Chunk, Drawn, Fetched, Form, Store
from shoal.errors import ConfigError
from shoal.specs import EnvSpec
from shoal.types import Array, Key, Metrics, Sample, Transition, Tree, pytree


@pytree
class State:
    """A buffer: an index over rows in a store."""

    store: Tree  # layout.Store; () where the rows are not on the device
    index: ring.Index
    priority: Tree  # () unless prioritised
    form: tuple[Form]  # fixed


@pytree
class Uniform:
    """Replay of single steps, n-step transitions or sequences, drawn uniformly."""

    capacity: int = 100_000
    """Transitions kept, over all environments; rounded up to whole chunks."""
    batch_size: int = 128
    """Transitions, or sequences, of a draw."""
    start: int = 1_000
    """Transitions before the first update."""
    n_step: int = 1
    """Steps of reward before the bootstrap."""
    length: int = 0
    """Steps of a sequence; 0 for single transitions."""
    updates: int = 1
    """Updates for every ``every`` environment steps."""
    every: int = 1
    """Environment steps for every ``updates`` updates."""
    discount: float = 0.99
    """Factor per step inside an n-step reward: the algorithm's own."""
    limit: float = float("inf")
    """Bytes of memory that it may take."""

    RANGES: ClassVar[dict] = {
        "capacity": (1, 2**31 - 1), "batch_size": (1, 2**20), "start": (1, 2**31 - 1), "n_step": (1, 1_000), "length": (0, 1_000_000),
        "updates": (1, 1_000_000), "every": (1, 1_000_000_000), "discount": (0, 1), "limit": (1, float("inf")),
    }

    apart: ClassVar[bool] = False

    # the buffer -----------------------------------------------------------------------------------------------------

    def init(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> State:
        """An empty buffer for ``lanes`` that add chunks of ``num_steps``; ``extras`` as one step of one environment has them."""
        form = self.form(spec, num_envs, lanes, num_steps, extras)
        store = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), layout.shapes(form))
        return self.empty(form, store)

    def empty(self, form: Form, store: Tree) -> State:
        """An empty buffer over rows that are somewhere already."""
        return State(store, self.index(form), self.priorities(form), (form,))

    def add(self, state: State, lane: Array | None, data: Transition) -> State:
        """A chunk [T, b, ...] of one lane; or [T, L·b, ...] of every lane, in lane order, where ``lane`` is None."""
        (form,) = state.form
        chunk = self.pack(form, lane, data)
        index, priority, where = self.enter(form, state.index, state.priority, lane, chunk.num_ends, chunk.last)
        return State(layout.put(form, state.store, *where, chunk), index, priority, state.form)

    def interrupt(self, state: State, lane: Array) -> State:
        """Say that the lane's next chunk will not follow its last one: its newest steps become ends, by truncation."""
        (form,) = state.form
        words = layout.take(state.store.words, ring.newest(form.ring, state.index, lane))
        index, words, slot, place = self.end_newest(form, state.index, lane, words)
        store: Store = state.store
        lane = jnp.asarray(lane, jnp.int32)
        kept = tuple(x.at[lane, place].set(x[lane, pool.entries(form.ring):], mode="drop") for x in store.pool)
        store = Store(jax.lax.dynamic_update_slice(store.words, words[None, None], (lane, slot, 0, 0)), store.wide, kept)
        return State(store, index, state.priority, state.form)

    def sample(self, state: State, key: Key) -> tuple[State, Sample]:
        """A batch, [B, ...] or [length, B, ...]; consumes the key. Compiled code must ask ``ready`` first; elsewhere it is refused here."""
        (form,) = state.form
        self.check_ready(state)
        priority, drawn, weight, ticket = self.draw(form, state.index, state.priority, key)
        batch = self.assemble(form, self.get(form, state.store, drawn))
        return State(state.store, state.index, priority, state.form), Sample(batch, weight, ticket)

    def update(self, state: State, ticket: ring.Ticket, priorities: Array) -> State:
        """Tell how much was learned from each row; without priorities that changes nothing."""
        return state

    def ready(self, state: State) -> Array:
        """Whether there is enough to draw from."""
        return self.enough(state.form[0], state.index)

    def check_ready(self, state: State) -> None:
        """Refuse to draw before there is enough; inside compiled code nothing can be refused."""
        ready = self.ready(state)
        if not isinstance(ready, jax.core.Tracer) and not ready:
            raise ConfigError(f"start = {self.start}: sampled with {int(self.rows(state).sum())} rows in the buffer")

    def pace(self, rows: int) -> tuple[int, int]:
        """So many updates for every so many environment steps; ``rows``, the steps of an iteration, play no part."""
        return self.updates, self.every

    def metrics(self, state: State) -> Metrics:
        """Rows held; of arrays on the device or in memory."""
        return {"replay_rows": self.rows(state).sum().astype(np.float32)}

    def rows(self, state: State) -> Array:
        """[L]: rows held of every lane."""
        return state.index.filled * state.form[0].ring.envs

    # its parts, for a store elsewhere --------------------------------------------------------------------------------

    @property
    def span(self) -> int:
        """Steps that a draw reads."""
        return self.length or self.n_step

    def pack(self, form: Form, lane: Array | None, data: Transition, xp: Any = jnp) -> Chunk:
        return layout.pack(form, data, form.ring.lanes if lane is None else 1, xp)

    def index(self, form: Form) -> ring.Index:
        return ring.init(form.ring)._replace(blocks=pool.init(form.ring) if form.pooled else ())

    def priorities(self, form: Form) -> Any:
        return ()

    def enter(self, form: Form, index: ring.Index, priority: Any, lane: Array | None, num_ends: Array, last: Array
              ) -> tuple[ring.Index, Any, tuple[Array, Array, Array]]:
        """The index once a chunk of ``lane`` with ends ``last`` [T, n] stands at its cursor; and where to write it: lanes, slots, places
        in the pool, [K] each.
        """
        which = ring.lanes(form.ring, lane)
        slot = index.cursor[which]
        gone, start = None, jnp.zeros_like(slot)
        if form.pooled:
            index, gone = pool.allocate(form.ring, index, which, num_ends)
            start = index.blocks.start[which, slot // form.ring.steps]
        after = ring.advance(form.ring, index, lane)
        return after, self.entered(form, after, priority, which, slot, gone, last), (which, slot, start)

    def entered(self, form: Form, index: ring.Index, priority: Any, which: Array, slot: Array, gone: Array | None, last: Array
                ) -> Any:
        """The priorities once chunks stand at slots ``slot`` of lanes ``which``; those at slots ``gone`` [·, K] had to go."""
        return priority

    def end_newest(self, form: Form, index: ring.Index, lane: Array, words: Array) -> tuple[ring.Index, Array, Array, Array]:
        """The index and the words [b, words] of a lane's newest rows once they are ends; their slot, and the places in the lane's pool that
        their waiting successors go to, [b], out of range where an episode had ended by itself.
        """
        shape, last = form.ring, next(field for field in form.fields if field.name == "last")
        held = index.filled[lane] > 0
        slot = (index.cursor[lane] - 1) % shape.slots
        ended = words[:, last.word] != 0
        after = words.at[:, last.word:last.word + last.size].set(jnp.where(held, 1, words[:, last.word:last.word + last.size]))
        if not form.pooled:
            return index, after, slot, jnp.full(shape.envs, pool.stride(shape), jnp.int32)
        blocks, place, number = pool.append(shape, index.blocks, lane, slot // shape.steps, held & ~ended)
        after = after.at[:, -1].set(jnp.where(held & ~ended, number.astype(jnp.uint32), words[:, -1]))
        return index._replace(blocks=blocks), after, slot, place

    def draw(self, form: Form, index: ring.Index, priority: Any, key: Key) -> tuple[Any, Drawn, Array, ring.Ticket]:
        """Which rows to read, their weights and tickets; consumes the key."""
        row = ring.draw(form.ring, index, key, self.batch_size, max(self.length, 1))
        weight = jnp.broadcast_to(ring.starts(index, max(self.length, 1)).any(), row.shape).astype(jnp.float32)
        return priority, self.window(form, index, row), weight, ring.ticket(form.ring, index, row)

    def window(self, form: Form, index: ring.Index, row: Array) -> Drawn:
        """All that must be read for a draw of ``row`` [B]."""
        rows, exists = ring.window(form.ring, index, row, self.span)
        if form.frames > 1:
            older, there = pool.before(form.ring, index, row, form.frames - 1)
            rows, exists = jnp.concatenate([older, rows]), jnp.concatenate([there, exists])
        return Drawn(rows, exists, pool.places(form.ring, index, rows) if form.pooled else ())

    def get(self, form: Form, store: Store, drawn: Drawn) -> Fetched:
        """Read rows from a store, on the device or in memory."""
        return layout.get(form, store, drawn, bool(self.length))

    def assemble(self, form: Form, fetched: Fetched) -> Transition:
        return layout.sequences(form, fetched) if self.length else layout.n_step(form, fetched, self.discount)

    def enough(self, form: Form, index: ring.Index) -> Array:
        return (index.filled.sum() * form.ring.envs >= self.start) & ring.starts(index, max(self.length, 1)).any()

    # sizes -----------------------------------------------------------------------------------------------------------

    def form(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> Form:
        """The sizes that ``init`` would allocate; settings that cannot work are refused by name. Allocates nothing."""
        chunks, window = -(-self.capacity // (num_envs * num_steps)), self.span - 1 + num_steps
        form = layout.form(ring.Shape(lanes, chunks * num_steps, num_envs // lanes, num_steps), layout.row_of(spec, extras), spec.frames)
        shape = form.ring
        for name, right, wish in (
            ("num_envs", num_envs % lanes == 0, f"expected a multiple of the {lanes} lanes"),
            ("length" if self.length else "n_step", shape.slots - shape.back >= window,
             f"with a chunk of {num_steps} that is {window} steps; capacity = {self.capacity} keeps {shape.slots - shape.back} of each"),
            ("length", not (self.length and self.n_step > 1), "sequences have no n_step; set one of the two"),
            ("n_step", self.n_step == 1 or not spec.num_agents, "several agents end at different steps: expected 1"),
            ("capacity", shape.rows < 2**31, f"{shape.rows} rows in whole chunks; expected less than 2**31"),
            ("batch_size", self.batch_size <= shape.capacity, f"larger than the buffer, which holds {shape.capacity}"),
            ("start", self.start <= shape.capacity, f"an algorithm's start_size, more than the buffer ever holds, {shape.capacity}"),
        ):
            if not right:
                raise ConfigError(f"{name} = {num_envs if name == 'num_envs' else getattr(self, name)}: {wish}")
        return form

    def nbytes(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> int:
        """Bytes that ``init`` would allocate."""
        form = self.form(spec, num_envs, lanes, num_steps, extras)
        return layout.nbytes(form) + self.index_nbytes(form)

    def index_nbytes(self, form: Form) -> int:
        """Of these, the index and its priorities: on the device wherever the rows are."""
        kept = jax.eval_shape(lambda: (self.index(form), self.priorities(form)))
        return sum(x.size * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(kept))

    def check(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> int:
        """The bytes needed, refused where they are more than the limit or than there are, before anything is allocated."""
        return self.fit(layout.nbytes, spec, num_envs, lanes, num_steps, extras)

    def fit(self, size_fn: Any, *sizes: Any) -> int:
        form = self.form(*sizes)
        needed, room, rows = size_fn(form) + self.index_nbytes(form), min(self.limit, disk.memory()), form.ring.capacity
        if needed > room:
            raise ConfigError(f"capacity = {self.capacity}: {needed / 2**20:,.1f} MiB of memory for {rows} rows, more than the "
                              f"{room / 2**20:,.1f} MiB there are; about {int(rows * (room / needed))} would fit")
        return needed
