"""How transitions lie in a store, whoever holds the arrays.

Numbers that belong to a row and are few lie together as words of 32 bits, so that reading a row is one access and not one per field;
larger fields and narrower ones lie in arrays of their own, and large observations (images) once, in a pool: of a stack its newest frame.
``get`` does the same to arrays on a device and in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import specs
from shoal.buffers import pool, ring
from shoal.errors import EnvError
from shoal.specs import MASK, STATE, EnvSpec
from shoal.types import Array, Transition, Tree

_WORDS = 64  # numbers of a field, up to which it lies among the words
_ONCE_BYTES = 1024  # of an observation, above which it is kept once


class Field(NamedTuple):
    """One array of a transition, as a single row has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str  # "word", "wide", "pool": an observation kept once, or "successor": the next one of a pool
    word: int  # where it begins among the words
    frames: int = 1  # of a stack, of which a row keeps the newest

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of what a row keeps."""
        return (*self.shape[:-1], self.shape[-1] // self.frames) if self.frames > 1 else self.shape


class Form(NamedTuple):
    """Everything fixed about a store. Hashable: part of the compiled program."""

    ring: ring.Shape
    structure: Any  # of a Transition
    fields: tuple[Field, ...]  # its leaves, in order
    words: int
    pooled: bool  # the last word is then an end's number within its chunk
    reward_fn: Any = None  # the spec's, where goals are put in afterwards

    @property
    def frames(self) -> int:
        """Frames of the stacks among its fields."""
        return max(field.frames for field in self.fields)

    def of(self, *kinds: str) -> list[Field]:
        return [field for field in self.fields if field.kind in kinds]


class Store(NamedTuple):
    """The rows, [L, slots, b, ...]."""

    words: Array  # [L, slots, b, words] uint32
    wide: tuple[Array, ...]  # fields in arrays of their own, in order
    pool: tuple[Array, ...]  # [L, places, ...]: observations kept once, in order


class Chunk(NamedTuple):
    """What a store keeps of a chunk."""

    words: Array  # [T, n, words]
    wide: tuple[Array, ...]  # [T, n, ...]
    obs: tuple[Array, ...]  # [K, T·b, ...] for each of the lanes
    ends: tuple[Array, ...]  # [K, T·b, ...]: successors, those of ends first
    newest: tuple[Array, ...]  # [K, b, ...]: successors of the last step
    num_ends: Array  # [K] int32
    last: Array  # [T, n] bool


class Drawn(NamedTuple):
    """Rows to read, [span, B] each; before them as many as a stack has older frames."""

    rows: Array  # int32
    exists: Array  # bool: false past the newest step, and before the lane's first
    places: Any  # pool.Places, or () without a pool


class Fetched(NamedTuple):
    """What was read."""

    words: Array  # [span, B, words]
    wide: tuple[Array, ...]  # fields that are not words, in order; [B, ...], or [span, B, ...] of sequences; a stack [..., frames, ...]
    exists: Array  # [span, B]


def row_of(spec: EnvSpec, extras: Tree = ()) -> Transition:
    """The shapes of one environment's step; ``extras`` a tree of arrays or shapes, likewise of one step."""
    agents = spec.agent_shape
    obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), specs.zeros(spec.obs, agents))
    action = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), specs.zeros(spec.action, agents))
    number, flag = jax.ShapeDtypeStruct(agents, jnp.float32), jax.ShapeDtypeStruct(agents, jnp.bool_)
    extras = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), extras)
    return Transition(obs, action, number, number, obs, flag, number, extras)


def form(shape: ring.Shape, row: Transition, frames: int = 1) -> Form:
    """The form of a store for rows like ``row``, whose observations are stacks of so many frames."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(row)
    fields, words = [], 0
    for path, leaf in leaves:
        name, dtype, size = jax.tree_util.keystr(path, simple=True, separator="."), np.dtype(leaf.dtype), math.prod(leaf.shape)
        kind = "word" if size <= _WORDS and (dtype == np.bool_ or dtype.itemsize == 4) else "wide"
        if kind == "wide" and size * dtype.itemsize > _ONCE_BYTES and not row.last.shape:  # agents' episodes end apart
            kind = {"obs": "pool", "next_obs": "successor"}.get(name.split(".")[0], kind)
        aside = any(getattr(key, "key", None) in (MASK, STATE) for key in path)  # these are never stacked
        fields.append(Field(name, tuple(leaf.shape), dtype.name, kind, words, 1 if aside or kind in ("word", "wide") else frames))
        words += size if kind == "word" else 0
    pooled = any(field.kind == "pool" for field in fields)
    answer = Form(shape, structure, tuple(fields), words + pooled, pooled)
    return answer._replace(ring=ring.behind(shape, answer.frames - 1))


def shapes(form: Form) -> Store:
    """The arrays of a store, as shapes."""
    front, places = (form.ring.lanes, form.ring.slots, form.ring.envs), (form.ring.lanes, pool.stride(form.ring))

    def arrays(kind: str, front: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(jax.ShapeDtypeStruct((*front, *f.kept), jnp.dtype(f.dtype)) for f in form.of(kind))

    return Store(jax.ShapeDtypeStruct((*front, form.words), jnp.uint32), arrays("wide", front), arrays("pool", places))


def nbytes(form: Form) -> int:
    return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(shapes(form)))


# in ------------------------------------------------------------------------------------------------------------------


def pack(form: Form, data: Transition, num_lanes: int, xp: Any = jnp) -> Chunk:
    """A chunk [T, K·b, ...] of so many lanes as a store keeps it. ``xp``: jax.numpy or numpy."""
    shape = form.ring
    leaves = dict(zip(form.fields, checked(form, data, (shape.steps, num_lanes * shape.envs), xp), strict=True))

    def lanes(x: Array) -> Array:
        """[T, K·b, ...] → [K, T·b, ...]"""
        parts = x.reshape((shape.steps, num_lanes, shape.envs, *x.shape[2:])).swapaxes(0, 1)
        return parts.reshape((num_lanes, shape.steps * shape.envs, *x.shape[2:]))

    def newest(field: Field) -> Array:
        return lanes(leaves[field][..., -field.kept[-1]:] if field.frames > 1 else leaves[field])

    words = [_bits(leaves[f]).reshape((*leaves[f].shape[:2], -1)) for f in form.of("word")]
    wide = tuple(leaves[f] for f in form.of("wide"))
    if not form.pooled:
        return Chunk(xp.concatenate(words, axis=-1), wide, (), (), (), xp.zeros(num_lanes, xp.int32), xp.asarray(data.last))
    last = lanes(xp.asarray(data.last))
    order, number = pool.order(last, xp)
    number = number.reshape((num_lanes, shape.steps, shape.envs)).swapaxes(0, 1).reshape((shape.steps, -1, 1))
    each = xp.arange(num_lanes)[:, None]
    following = [newest(f) for f in form.of("successor")]
    return Chunk(xp.concatenate([*words, number.astype(xp.uint32)], axis=-1), wide, tuple(newest(f) for f in form.of("pool")),
                 tuple(x[each, order] for x in following), tuple(x[:, -shape.envs:] for x in following), last.sum(1).astype(xp.int32),
                 xp.asarray(data.last))


def _bits(leaf: Array) -> Array:
    if leaf.dtype == bool:
        return leaf.astype(np.uint32)
    return leaf.view(np.uint32) if isinstance(leaf, np.ndarray) else jax.lax.bitcast_convert_type(leaf, jnp.uint32)


def checked(form: Form, data: Transition, front: tuple[int, int], xp: Any) -> list[Array]:
    """The leaves of ``data``; anything that is not as the spec says is refused by name. Only shapes are looked at."""
    leaves, structure = jax.tree.flatten(data)
    if structure != form.structure:
        raise EnvError(f"transition: its fields are {structure}, expected {form.structure}")
    answer = []
    for field, leaf in zip(form.fields, leaves, strict=True):
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if tuple(leaf.shape) != front + field.shape:
            raise EnvError(f"transition.{field.name}: shape {tuple(leaf.shape)}, expected {front + field.shape}")
        stored = jnp.dtype(field.dtype)
        half = stored.itemsize == 2 and all(jnp.issubdtype(dtype, jnp.floating) for dtype in (leaf.dtype, stored))
        if leaf.dtype != stored and not half:  # what is declared in half precision is stored so
            raise EnvError(f"transition.{field.name}: dtype {leaf.dtype}, expected {field.dtype}")
        answer.append(xp.asarray(leaf, stored))
    return answer


def put(form: Form, store: Store, which: Array, cursor: Array, start: Array, chunk: Chunk) -> Store:
    """The store with a chunk of each of the lanes ``which`` [K] at slot ``cursor`` [K], its observations from place ``start`` [K] on."""
    shape = form.ring

    def write(old: Array, new: Array, at: Array) -> Array:
        """``new`` [K, n, ...] into ``old`` [L, N, ...]."""
        rest = (0,) * (old.ndim - 2)
        if new.shape[0] == 1:
            return jax.lax.dynamic_update_slice(old, new, (which[0], at[0], *rest))
        return jax.vmap(lambda o, n, a: jax.lax.dynamic_update_slice(o, n, (a, *rest)))(old, new, at)  # every lane, in order

    def rows(x: Array) -> Array:
        return x.reshape((shape.steps, which.shape[0], shape.envs, *x.shape[2:])).swapaxes(0, 1)

    def places(old: Array, obs: Array, ends: Array, newest: Array) -> Array:
        # behind the ends stands what is not an end; the next block is written over it
        old = write(write(old, obs, start), ends, start + shape.steps * shape.envs)
        return write(old, newest, jnp.full_like(start, pool.entries(shape)))

    words, *wide = (write(old, rows(new), cursor) for old, new in zip((store.words, *store.wide), (chunk.words, *chunk.wide), strict=True))
    return Store(words, tuple(wide), tuple(map(places, store.pool, chunk.obs, chunk.ends, chunk.newest)))


# out -----------------------------------------------------------------------------------------------------------------


def take(rows: Array, which: Array, front: int = 3) -> Array:
    """Rows [L, slots, b, ...] by number, or places [L, places, ...], from a device, from memory, or from what can ``read`` them."""
    if hasattr(rows, "read"):
        return rows.read(which)
    flat = rows.reshape((-1, *rows.shape[front:]))
    if isinstance(rows, np.ndarray):
        return flat.take(which, axis=0)
    return flat.at[_apart(which)].get(mode="promise_in_bounds")


def _apart(which: Array) -> Array:
    """``which``, worked out before it is used: XLA on the CPU would do so anew for every number read, and ignores its own barrier.

    It does not merge a reduction into what follows. This one, of a number and the one below it, it does for many numbers at a time.
    """
    return (which[..., None] - jnp.arange(2, dtype=which.dtype)).max(axis=-1)


def get(form: Form, store: Store, drawn: Drawn, whole: bool) -> Fetched:
    """Read what was drawn. ``whole``: every field of every step; else wide fields only where an n-step transition begins or ends."""
    older, words = form.frames - 1, take(store.words, drawn.rows)
    stacks = _stacks(form, words, drawn) if form.pooled else []
    words, rows, exists = words[older:], drawn.rows[older:], drawn.exists[older:]
    reach = [] if whole else _reach(form, words, exists)
    first, end = (lambda x: x, lambda x: x) if whole else (lambda x: x[0], lambda x: _choose(x, reach))
    wide, kept, again = iter(store.wide), iter(store.pool), iter(store.pool)
    answer = []
    for field in form.of("wide", "pool", "successor"):
        if field.kind == "pool":
            answer.append(_read(field, next(kept), [first(x) for x in stacks[:-1]]))
        elif field.kind == "successor":
            answer.append(_read(field, next(again), [end(x) for x in stacks[1:]]))
        else:
            answer.append(take(next(wide), (end if field.name.startswith("next_obs") else first)(rows)))
    return Fetched(words, tuple(answer), exists)


def _stacks(form: Form, words: Array, drawn: Drawn) -> list[Array]:
    """Where the frames of rows lie, oldest first, and last those of their successors, whose other frames are the rows' newest; [span, B]
    each. A stack that reaches back beyond its episode repeats the first frame.
    """
    where, last = _where(words), words[..., _last(form)] != 0
    at, older = drawn.places.at, form.frames - 1
    span = len(at) - older
    frames, goes = [at[older:]], True
    for age in range(1, form.frames):
        rows = slice(older - age, older - age + span)
        goes = goes & drawn.exists[rows] & ~last[rows]
        frames.append(where(goes, at[rows], frames[-1]))
    following = where(last, drawn.places.ends + words[..., -1].astype(np.int32), drawn.places.follow)
    return [*reversed(frames), following[older:]]


def _read(field: Field, places: Array, stack: Sequence[Array]) -> Array:
    """What lies at the places ``stack``, each [...]; of a stack [..., frames, ...], else the newest."""
    if field.frames == 1:
        return take(places, stack[-1], 2)
    return take(places, (np if isinstance(stack[0], np.ndarray) else jnp).stack(stack, axis=-1), 2)


def _where(like: Array) -> Any:
    return np.where if isinstance(like, np.ndarray) else jnp.where


def _last(form: Form) -> int:
    """The word that says whether an episode ended."""
    return next(field for field in form.fields if field.name == "last").word


def _reach(form: Form, words: Array, exists: Array) -> list[Array]:
    """For each step after the first, [B] bool: whether the n-step transition goes on into it. Stops after an end or the newest step."""
    last = _last(form)
    reach: list[Array] = []
    for step in range(1, words.shape[0]):
        goes = exists[step] & (words[step - 1, :, last] == 0)
        reach.append(goes & reach[-1] if reach else goes)
    return reach


def _choose(steps: Sequence[Array] | Array, reach: list[Array]) -> Array:
    """Of [span, B, ...] the last step reached, [B, ...]. Integers and flags only, so memory and device agree."""
    chosen = steps[0]
    for step, goes in enumerate(reach, start=1):
        chosen = _where(chosen)(goes.reshape(goes.shape + (1,) * (chosen.ndim - 1)), steps[step], chosen)
    return chosen


def unpack(form: Form, words: Array, wide: Sequence[Array]) -> Transition:
    """Words [..., F] and wide fields as a transition [..., ...]."""
    rest, leaves = iter(wide), []
    for field in form.fields:
        if field.kind != "word":
            leaves.append(_joined(field, next(rest)))
            continue
        bits = words[..., field.word:field.word + field.size].reshape(words.shape[:-1] + field.shape)
        leaves.append(bits != 0 if field.dtype == "bool" else jax.lax.bitcast_convert_type(bits, jnp.dtype(field.dtype)))
    return jax.tree.unflatten(form.structure, leaves)


def _joined(field: Field, read: Array) -> Array:
    """The frames of a stack along the last axis; anything else as it is."""
    if field.frames == 1:
        return read
    front = read.ndim - len(field.shape) - 1
    return jnp.moveaxis(read, front, -2).reshape((*read.shape[:front], *field.shape))


def sequences(form: Form, fetched: Fetched) -> Transition:
    """Windows [length, B, ...]; steps after an episode's end count for nothing."""
    data = unpack(form, fetched.words, fetched.wide)
    ended = jnp.cumsum(data.last[:-1].astype(jnp.int32), axis=0) > 0
    valid = jnp.concatenate([data.valid[:1], jnp.where(ended, 0.0, data.valid[1:])])
    return data._replace(valid=valid)


def n_step(form: Form, fetched: Fetched, discount: Array) -> Transition:
    """Transitions [B, ...] over up to n steps: to the first of n, an episode's end, or the newest step.

    After m steps the reward is Σ_{k<m} γ^k r_{t+k}, and ``alive`` carries γ^(m-1), so that a target is always
    reward + γ · alive · V(next_obs). Sutton (1988), "Learning to predict by the methods of temporal differences".
    """
    span = fetched.words.shape[0]
    first = unpack(form, fetched.words[0], fetched.wide)
    if span == 1:
        return first
    reach = _reach(form, fetched.words, fetched.exists)
    reward, factor, power = first.reward, jnp.ones_like(first.alive), jnp.ones(())
    for step, goes in enumerate(reach, start=1):
        power = power * discount
        reward = reward + jnp.where(goes, power * unpack(form, fetched.words[step], fetched.wide).reward, 0.0)
        factor = jnp.where(goes, power, factor)
    # of the wide fields the successors were read where the transition ends, the others where it begins
    end = unpack(form, _choose(fetched.words, reach), fetched.wide)
    return first._replace(reward=reward, alive=end.alive * factor, next_obs=end.next_obs, last=end.last)
