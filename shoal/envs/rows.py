"""Rows of observations: trees of dicts with NumPy arrays [B, ...] at their ends, read and written in place. No JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def each(fn: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with ``fn`` of every array."""
    return {name: each(fn, x) for name, x in tree.items()} if isinstance(tree, dict) else fn(tree)


def arrays(tree: Any) -> Iterator[Any]:
    """Every array, in order."""
    if isinstance(tree, dict):
        for inner in tree.values():
            yield from arrays(inner)
    else:
        yield tree


def row(tree: Any, i: Any) -> Any:
    """Row ``i``; of arrays a view."""
    return tree[i] if not isinstance(tree, dict) else {name: row(x, i) for name, x in tree.items()}


def write(tree: Any, i: Any, value: Any) -> None:
    """Let row ``i`` be ``value``, which may have more in it than the tree has names for."""
    if isinstance(tree, dict):
        for name, x in tree.items():
            write(x, i, value[name])
    else:
        tree[i] = value
