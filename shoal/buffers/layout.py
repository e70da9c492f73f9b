"""How transitions lie in a store, whoever holds the arrays.

Numbers that belong to a row and are few lie together as words of 32 bits, so that reading a row is one access and not one per field;
larger fields (images) and narrower ones lie in arrays of their own. ``put`` and ``get`` do the same to arrays on a device and in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import specs
from shoal.buffers import ring
from shoal.errors import EnvError
from shoal.specs import EnvSpec
from shoal.types import Array, Transition, Tree

_WORDS = 64  # numbers of a field, up to which it lies among the words


class Field(NamedTuple):
    """One array of a transition, as a single row has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    word: int  # where it begins among the words; -1: in an array of its own

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Form(NamedTuple):
    """Everything fixed about a store. Hashable: part of the compiled program."""

    ring: ring.Shape
    structure: Any  # of a Transition
    fields: tuple[Field, ...]  # its leaves, in order
    words: int


class Store(NamedTuple):
    """The rows, [L, slots, b, ...]."""

    words: Array  # [L, slots, b, words] uint32
    wide: tuple[Array, ...]  # fields in arrays of their own, in order


class Drawn(NamedTuple):
    """Rows to read, [span, B] each."""

    rows: Array  # int32
    exists: Array  # bool: false past the newest step


class Fetched(NamedTuple):
    """What was read."""

    words: Array  # [span, B, words]
    wide: tuple[Array, ...]  # [B, ...], or [span, B, ...] of sequences
    exists: Array  # [span, B]


def row_of(spec: EnvSpec, extras: Tree = ()) -> Transition:
    """The shapes of one environment's step; ``extras`` a tree of arrays or shapes, likewise of one step."""
    agents = spec.agent_shape
    obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), specs.zeros(spec.obs, agents))
    action = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), specs.zeros(spec.action, agents))
    number, flag = jax.ShapeDtypeStruct(agents, jnp.float32), jax.ShapeDtypeStruct(agents, jnp.bool_)
    extras = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), extras)
    return Transition(obs, action, number, number, obs, flag, number, extras)


def form(shape: ring.Shape, row: Transition) -> Form:
    """The form of a store for rows like ``row``."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(row)
    fields, words = [], 0
    for path, leaf in leaves:
        dtype = np.dtype(leaf.dtype)
        size = math.prod(leaf.shape)
        among = size <= _WORDS and (dtype == np.bool_ or dtype.itemsize == 4)
        fields.append(Field(jax.tree_util.keystr(path, simple=True, separator="."), tuple(leaf.shape), dtype.name, words if among else -1))
        words += size if among else 0
    return Form(shape, structure, tuple(fields), words)


def shapes(form: Form) -> Store:
    """The arrays of a store, as shapes."""
    front = form.ring.lanes, form.ring.slots, form.ring.envs
    wide = tuple(jax.ShapeDtypeStruct((*front, *f.shape), jnp.dtype(f.dtype)) for f in form.fields if f.word < 0)
    return Store(jax.ShapeDtypeStruct((*front, form.words), jnp.uint32), wide)


def nbytes(form: Form) -> int:
    return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(shapes(form)))


# in ------------------------------------------------------------------------------------------------------------------


def pack(form: Form, data: Transition, num_envs: int, xp: Any = jnp) -> Store:
    """A chunk [T, num_envs, ...] as the arrays that a store keeps of it, [T, num_envs, ...] each. ``xp``: jax.numpy or numpy."""
    leaves = _checked(form, data, (form.ring.steps, num_envs), xp)
    small = [_bits(leaf) for f, leaf in zip(form.fields, leaves, strict=True) if f.word >= 0]
    words = xp.concatenate([x.reshape((*x.shape[:2], -1)) for x in small], axis=-1)
    return Store(words, tuple(leaf for f, leaf in zip(form.fields, leaves, strict=True) if f.word < 0))


def _bits(leaf: Array) -> Array:
    if leaf.dtype == bool:
        return leaf.astype(np.uint32)
    return leaf.view(np.uint32) if isinstance(leaf, np.ndarray) else jax.lax.bitcast_convert_type(leaf, jnp.uint32)


def _checked(form: Form, data: Transition, front: tuple[int, int], xp: Any) -> list[Array]:
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


def put(form: Form, store: Store, lane: Array | None, cursor: Array, chunk: Store) -> Store:
    """The store with a chunk at the cursor of ``lane``; ``chunk`` [T, b, ...], or of every lane [T, L·b, ...] where that is None."""
    shape = form.ring

    def one(old: Array, new: Array) -> Array:
        at = (jnp.asarray(lane, jnp.int32), cursor[lane])
        return jax.lax.dynamic_update_slice(old, new[None], (*at, *(0,) * (old.ndim - 2)))

    def every(old: Array, new: Array) -> Array:
        lanes = new.reshape((shape.steps, shape.lanes, shape.envs, *new.shape[2:])).swapaxes(0, 1)
        if shape.lanes == 1:
            return jax.lax.dynamic_update_slice(old, lanes, (0, cursor[0], *(0,) * (old.ndim - 2)))
        return jax.vmap(lambda o, n, at: jax.lax.dynamic_update_slice(o, n, (at, *(0,) * (o.ndim - 1))))(old, lanes, cursor)

    return jax.tree.map(every if lane is None else one, store, chunk)


# out -----------------------------------------------------------------------------------------------------------------


def take(rows: Array, which: Array) -> Array:
    """Rows [L, slots, b, ...] by number, from a device or from memory."""
    flat = rows.reshape((-1, *rows.shape[3:]))
    if isinstance(rows, np.ndarray):
        return flat.take(which, axis=0)
    return flat.at[which].get(mode="promise_in_bounds")


def get(form: Form, store: Store, drawn: Drawn, whole: bool) -> Fetched:
    """Read what was drawn. ``whole``: every field of every step; else wide fields only where an n-step transition begins or ends."""
    rows, exists = drawn
    words = take(store.words, rows)
    if whole:
        return Fetched(words, tuple(take(x, rows) for x in store.wide), exists)
    end = _choose(rows, _reach(form, words, exists))
    wide = [f for f in form.fields if f.word < 0]
    return Fetched(words, tuple(take(x, end if f.name.startswith("next_obs") else rows[0]) for f, x in zip(wide, store.wide, strict=True)),
                   exists)


def _reach(form: Form, words: Array, exists: Array) -> list[Array]:
    """For each step after the first, [B] bool: whether the n-step transition goes on into it. Stops after an end or the newest step."""
    last = next(f for f in form.fields if f.name == "last").word
    reach: list[Array] = []
    for step in range(1, words.shape[0]):
        goes = exists[step] & (words[step - 1, :, last] == 0)
        reach.append(goes & reach[-1] if reach else goes)
    return reach


def _choose(steps: Sequence[Array] | Array, reach: list[Array]) -> Array:
    """Of [span, B, ...] the last step reached, [B, ...]. Integers and flags only, so memory and device agree."""
    chosen = steps[0]
    for step, goes in enumerate(reach, start=1):
        where = np.where if isinstance(chosen, np.ndarray) else jnp.where
        chosen = where(goes.reshape(goes.shape + (1,) * (chosen.ndim - 1)), steps[step], chosen)
    return chosen


def _unpack(form: Form, words: Array, wide: Sequence[Array]) -> Transition:
    """Words [..., F] and wide fields as a transition [..., ...]."""
    rest, leaves = iter(wide), []
    for field in form.fields:
        if field.word < 0:
            leaves.append(next(rest))
            continue
        bits = words[..., field.word:field.word + field.size].reshape(words.shape[:-1] + field.shape)
        leaves.append(bits != 0 if field.dtype == "bool" else jax.lax.bitcast_convert_type(bits, jnp.dtype(field.dtype)))
    return jax.tree.unflatten(form.structure, leaves)


def sequences(form: Form, fetched: Fetched) -> Transition:
    """Windows [length, B, ...]; steps after an episode's end count for nothing."""
    data = _unpack(form, fetched.words, fetched.wide)
    ended = jnp.cumsum(data.last[:-1].astype(jnp.int32), axis=0) > 0
    valid = jnp.concatenate([data.valid[:1], jnp.where(ended, 0.0, data.valid[1:])])
    return data._replace(valid=valid)


def n_step(form: Form, fetched: Fetched, discount: Array) -> Transition:
    """Transitions [B, ...] over up to n steps: to the first of n, an episode's end, or the newest step.

    After m steps the reward is Σ_{k<m} γ^k r_{t+k}, and ``alive`` carries γ^(m-1), so that a target is always
    reward + γ · alive · V(next_obs). Sutton (1988), "Learning to predict by the methods of temporal differences".
    """
    span = fetched.words.shape[0]
    first = _unpack(form, fetched.words[0], fetched.wide)
    if span == 1:
        return first
    reach = _reach(form, fetched.words, fetched.exists)
    reward, factor, power = first.reward, jnp.ones_like(first.alive), jnp.ones(())
    for step, goes in enumerate(reach, start=1):
        power = power * discount
        reward = reward + jnp.where(goes, power * _unpack(form, fetched.words[step], fetched.wide).reward, 0.0)
        factor = jnp.where(goes, power, factor)
    # of the wide fields the successors were read where the transition ends, the others where it begins
    end = _unpack(form, _choose(fetched.words, reach), fetched.wide)
    return first._replace(reward=reward, alive=end.alive * factor, next_obs=end.next_obs, last=end.last)
