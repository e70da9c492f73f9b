"""The arrays an observation or action is made of, whichever library declared them, and what can be wrong with one. No JAX."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from shoal.specs import Box, Discrete, Group, MultiBinary, MultiDiscrete


class Leaf(NamedTuple):
    """One array of a space."""

    path: tuple[Any, ...]  # keys that lead to it; empty where the space is one array
    shape: tuple[int, ...]
    dtype: np.dtype
    low: np.ndarray | None  # broadcasts to the shape; None: no bounds to speak of
    high: np.ndarray | None
    choice: bool  # numbers a choice: any type of integer will do

    def __str__(self) -> str:
        return "observation" + "".join(f"[{key!r}]" for key in self.path)


class Misfit(Exception):
    """An answer that does not have the form it must have. ``check`` says which check it fails."""

    def __init__(self, check: str, detail: str):
        super().__init__(detail)
        self.check = check


def of_spec(space: Any, agents: tuple[int, ...] = (), path: tuple[Any, ...] = ()) -> list[Leaf]:
    """The leaves of a shoal space, each with an axis of agents in front."""
    if isinstance(space, Group):
        return [leaf for name, inner in space.items for leaf in of_spec(inner, agents, (*path, name))]
    low: Any
    high: Any
    if isinstance(space, Box):
        low, high = space.bounds()
    elif isinstance(space, MultiDiscrete):
        low, high = np.zeros(len(space.nums)), np.asarray(space.nums) - 1
    elif isinstance(space, Discrete | MultiBinary):
        low, high = np.asarray(0), np.asarray(space.num - 1 if isinstance(space, Discrete) else 1)
    else:
        raise Misfit("spec", f"{str(space)[:80]} is not one of shoal's spaces")
    return [Leaf(path, (*agents, *space.shape), np.dtype(space.dtype), low, high, not isinstance(space, Box))]


def of_gymnasium(space: Any, path: tuple[Any, ...] = ()) -> list[Leaf]:
    """The leaves of a Gymnasium space; spaces of no fixed shape (text, graphs, sequences) have none."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return [leaf for key, inner in space.spaces.items() for leaf in of_gymnasium(inner, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for index, inner in enumerate(space.spaces) for leaf in of_gymnasium(inner, (*path, index))]
    if isinstance(space, spaces.Box):
        return [Leaf(path, space.shape, np.dtype(space.dtype), space.low, space.high, False)]
    if isinstance(space, spaces.Discrete):
        return [Leaf(path, (), np.dtype(space.dtype), np.asarray(space.start), np.asarray(space.start + space.n - 1), True)]
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(getattr(space, "start", 0))
        return [Leaf(path, space.shape, np.dtype(space.dtype), start, start + space.nvec - 1, True)]
    if isinstance(space, spaces.MultiBinary):
        return [Leaf(path, space.shape, np.dtype(space.dtype), np.asarray(0), np.asarray(1), True)]
    return []


def pick(leaf: Leaf, obs: Any) -> Any:
    """The leaf's value in an observation."""
    for key in leaf.path:
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError) as error:
            raise Misfit("shape", f"{leaf} is not there") from error
    return obs


def faults(leaf: Leaf, value: Any) -> Iterator[tuple[str, str]]:
    """What is wrong with a value: pairs of check and detail. Bounds are taken with a rounding to spare."""
    try:
        array = np.asarray(value)
    except ValueError:
        yield "shape", f"{leaf} is ragged: its space says {list(leaf.shape)}"
        return
    if array.shape != leaf.shape:
        yield "shape", f"{leaf} has shape {list(array.shape)}: its space says {list(leaf.shape)}"
        return
    if leaf.shape and not isinstance(value, np.ndarray):
        yield "dtype", f"{leaf} is a {type(value).__name__}: expected an array of {leaf.dtype}"
    elif leaf.choice and array.dtype.kind not in "iub":
        yield "dtype", f"{leaf} has dtype {array.dtype}: its space numbers choices, in whole numbers"
    elif not leaf.choice and leaf.shape and not np.can_cast(array.dtype, leaf.dtype):
        yield "dtype", f"{leaf} has dtype {array.dtype}: its space says {leaf.dtype}"
    if array.dtype.kind not in "iufb":
        return
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        yield "finite", f"{leaf} holds {array[~np.isfinite(array)].flat[0]}"
    elif leaf.low is not None and leaf.high is not None and array.size:
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = np.asarray(leaf.low, np.float64), np.asarray(leaf.high, np.float64)
            spare = 0.0 if leaf.choice else 1e-6
            outside = (array < low - spare * (1 + np.abs(low))) | (array > high + spare * (1 + np.abs(high)))
        if outside.any():
            at = np.unravel_index(int(np.argmax(outside)), array.shape) if array.shape else ()
            low, high = np.broadcast_to(low, array.shape)[at], np.broadcast_to(high, array.shape)[at]
            where = f"{leaf}{[int(i) for i in at]}" if at else str(leaf)
            yield "bounds", f"{where} = {array[at]:.6g}: its space says {low:.6g} to {high:.6g}"


def vector(leaves: list[Leaf], obs: Any) -> np.ndarray:
    """All numbers of an observation in a row."""
    return np.concatenate([np.zeros(0)] + [np.asarray(pick(leaf, obs), np.float64).reshape(-1) for leaf in leaves])


def digest(tree: Any) -> Any:
    """All that an answer holds, to be compared."""
    if isinstance(tree, dict):
        return tuple((key, digest(tree[key])) for key in sorted(tree, key=str))
    if isinstance(tree, tuple | list):
        return tuple(map(digest, tree))
    if isinstance(tree, str | bytes):
        return tree
    array = np.asarray(tree)
    return repr(tree) if array.dtype == object else array.tobytes()


def looks_reset(starts: np.ndarray, middles: np.ndarray, shown: np.ndarray) -> bool:
    """Whether observations [E, F] all look like first ones [S, F], which most of the others [M, F] do not."""
    if len(shown) < 3 or len(middles) < 10 or not starts.shape[1]:
        return False
    low, high = starts.min(0), starts.max(0)
    spare = 0.25 * (high - low)

    def inside(rows: np.ndarray) -> np.ndarray:
        return ((rows >= low - spare) & (rows <= high + spare)).all(1)

    return bool(inside(shown).all() and inside(middles).mean() < 0.5)


@contextmanager
def global_draws() -> Iterator[list[str]]:
    """Fills the list, at the end, with the process-wide generators that were drawn from or seeded; puts them back."""
    numpy_before, python_before = np.random.get_state(legacy=False), random.getstate()
    used: list[str] = []
    try:
        yield used
    finally:
        if digest(np.random.get_state(legacy=False)) != digest(numpy_before):
            used.append("numpy.random")
            np.random.set_state(numpy_before)
        if random.getstate() != python_before:
            used.append("random")
            random.setstate(python_before)
