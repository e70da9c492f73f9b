"""Gymnasium's spaces as ours: what an observation becomes on its way in, and an action on its way out.

Each space answers its spec and the function that translates, or None where numbers go as they are. The functions take any
leading axes, so that one serves a single environment and a vector of them. No JAX in this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from shoal.errors import ConfigError
from shoal.specs import MASK, STATE, Action, Box, Discrete, Group, MultiBinary, MultiDiscrete, Space

Translate = Callable[[Any], Any]

_PLAIN = "Box, Discrete, MultiDiscrete or MultiBinary"


def observed(label: str, space: Any) -> tuple[Space, Translate | None]:
    """The spec of observations of ``space``, and how to read one; ``label`` names the space in errors."""
    return _observed(label, space, outermost=True)


def acted(label: str, space: Any) -> tuple[Action, Translate | None]:
    """The spec of actions for ``space``, always a flat vector or one choice, and how to write one as the space wants it."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Discrete(int(space.n)), (lambda action: action + start) if start else None
    leaves = list(_leaves(label, space))
    families = [_family(where, leaf) for where, leaf in leaves]
    if not leaves:
        raise ConfigError(f"{label} is empty: expected {_PLAIN}, or a Dict or Tuple of them")
    if len(set(families)) > 1:
        names = ", ".join(dict.fromkeys(type(leaf).__name__ for _, leaf in leaves))
        raise ConfigError(f"{label} mixes {names}: expected members that are all Discrete or MultiDiscrete, all Box, or all "
                          "MultiBinary (a MultiBinary(n) can be said as MultiDiscrete([2] * n))")
    spec = _joined(families[0], [leaf for _, leaf in leaves])
    if isinstance(space, spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1:
        return spec, None
    return spec, _writer(space, 0)[0]


def check_mask(label: str, obs: Space, action: Action) -> None:
    """Refuse an action mask that does not fit the actions."""
    if not isinstance(obs, Group) or MASK not in obs:
        return
    if not isinstance(action, Discrete | MultiDiscrete):
        raise ConfigError(f"{label} has an {MASK!r}, but actions are {type(action).__name__}: expected Discrete or MultiDiscrete")
    mask, num = obs[MASK], num_choices(action)
    if not isinstance(mask, MultiBinary) or mask.num != num:
        raise ConfigError(f"{label}: {MASK!r} is {mask}: expected MultiBinary({num}) or a Box of as many numbers, one per choice")


def num_choices(action: Discrete | MultiDiscrete) -> int:
    """How many numbers a mask has: one per choice, choices of several side by side."""
    return action.num if isinstance(action, Discrete) else sum(action.nums)


# --- observations ----------------------------------------------------------------------------------------------------


def _observed(label: str, space: Any, outermost: bool = False) -> tuple[Space, Translate | None]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _group(label, space, outermost)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Discrete(int(space.n)), (lambda obs: obs - start) if start else None
    if isinstance(space, spaces.MultiDiscrete):
        first, rank = space.start.reshape(-1).astype(np.int64), space.nvec.ndim
        nums = MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
        return nums, (lambda obs: _flat(obs, rank) - first) if rank != 1 or first.any() else None
    if isinstance(space, spaces.MultiBinary):
        rank = len(space.shape)
        return MultiBinary(math.prod(space.shape)), (lambda obs: _flat(obs, rank)) if rank != 1 else None
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub":
        return _box(space), None
    raise ConfigError(f"{label} is {str(space)[:80]}: expected {_PLAIN}, or a Dict or Tuple of them")


def _group(label: str, space: Any, outermost: bool) -> tuple[Group, Translate]:
    items: list[tuple[str, Space]] = []
    readers: list[tuple[str, Any, Translate | None]] = []
    for key, inner in _members(space):
        name, where = str(key), f"{label}, member {str(key)!r}"
        if name == MASK and outermost:
            spec, read_fn = _mask(where, inner)
        else:
            spec, read_fn = _observed(where, inner)
            if name in (MASK, STATE):  # names that keep a space from the network; here it is a member like any other
                name += "_"
        items.append((name, spec))
        readers.append((name, key, read_fn))
    if len({name for name, _ in items}) < max(len(items), 1):
        wrong = "a Dict with two keys that read alike" if items else "empty"
        raise ConfigError(f"{label} is {wrong}: expected named members")

    def read(obs: Any) -> dict[str, Any]:
        return {name: obs[key] if read_fn is None else read_fn(obs[key]) for name, key, read_fn in readers}

    return Group(tuple(items)), read


def _mask(label: str, space: Any) -> tuple[Space, Translate | None]:
    from gymnasium import spaces

    if not isinstance(space, spaces.MultiBinary | spaces.Box):
        raise ConfigError(f"{label} is {str(space)[:80]}: expected a MultiBinary, or a Box of numbers 0 and 1")
    rank = len(space.shape)
    return MultiBinary(math.prod(space.shape)), (lambda obs: _flat(obs, rank)) if rank != 1 else None


def _flat(obs: Any, rank: int) -> np.ndarray:
    """The last ``rank`` axes as one."""
    obs = np.asarray(obs)
    return obs.reshape((*obs.shape[: obs.ndim - rank], -1))


def _members(space: Any) -> list[tuple[Any, Any]]:
    """Names and spaces of a Dict, in its own order, or numbers and spaces of a Tuple."""
    return list(space.spaces.items()) if isinstance(space.spaces, dict) else list(enumerate(space.spaces))


def _box(space: Any) -> Box:
    with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
        low, high = (_bound(b.astype(np.float32) if space.dtype.kind == "f" else b) for b in (space.low, space.high))
    return Box(tuple(space.shape), low, high, "float32" if space.dtype.kind == "f" else str(space.dtype))


def _bound(values: np.ndarray) -> float | tuple[float, ...]:
    flat = values.reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    return tuple(float(v) for v in flat)


# --- actions ---------------------------------------------------------------------------------------------------------


def _leaves(label: str, space: Any) -> Iterator[tuple[str, Any]]:
    """The spaces that a Dict or Tuple is made of, however deep, each with its name for errors; any other space itself."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, inner in _members(space):
            yield from _leaves(f"{label}, member {str(key)!r}", inner)
    else:
        yield label, space


def _family(label: str, space: Any) -> str:
    """What a space is a matter of; members of one family can be joined."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return "choices"
    if isinstance(space, spaces.MultiBinary):
        return "switches"
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return "numbers"
    raise ConfigError(f"{label} is {str(space)[:80]}: expected Discrete, MultiDiscrete, MultiBinary or a Box of real numbers, "
                      "or a Dict or Tuple of one of these kinds")


def _joined(family: str, leaves: list[Any]) -> Action:
    if family == "choices":
        return MultiDiscrete(tuple(int(n) for leaf in leaves for n in np.ravel(leaf.nvec if hasattr(leaf, "nvec") else leaf.n)))
    if family == "switches":
        return MultiBinary(sum(_width(leaf) for leaf in leaves))
    with np.errstate(over="ignore"):
        low, high = (np.concatenate([np.ravel(x).astype(np.float32) for x in bounds])
                     for bounds in ([leaf.low for leaf in leaves], [leaf.high for leaf in leaves]))
    return Box((len(low),), _bound(low), _bound(high))


def _width(space: Any) -> int:
    """How many numbers of the joined vector are a leaf's."""
    return math.prod(space.shape)


def _writer(space: Any, place: int) -> tuple[Translate, int]:
    """How the part of a vector [..., A] from ``place`` on becomes an action of ``space``, and where the next part begins."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        writers = []
        for key, inner in _members(space):
            write_fn, place = _writer(inner, place)
            writers.append((key, write_fn))
        if isinstance(space, spaces.Dict):
            return (lambda action: {key: write_fn(action) for key, write_fn in writers}), place
        return (lambda action: tuple(write_fn(action) for _, write_fn in writers)), place
    return _leaf_writer(space, place), place + _width(space)


def _leaf_writer(space: Any, place: int) -> Translate:
    from gymnasium import spaces

    shape, dtype, part = space.shape, space.dtype, slice(place, place + _width(space))
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda action: (action[..., place] + start).astype(dtype)
    if isinstance(space, spaces.MultiDiscrete):
        starts = space.start
        return lambda action: (action[..., part].reshape((*action.shape[:-1], *shape)) + starts).astype(dtype)
    if isinstance(space, spaces.MultiBinary) or dtype == np.float32:
        return lambda action: action[..., part].reshape((*action.shape[:-1], *shape)).astype(dtype)
    low, high = space.low, space.high

    def bounded(action: np.ndarray) -> np.ndarray:
        # float32 bounds may lie a rounding outside those of another width, and environments assert
        return np.clip(action[..., part].reshape((*action.shape[:-1], *shape)).astype(dtype), low, high)

    return bounded
