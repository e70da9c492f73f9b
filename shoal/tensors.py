"""Trees to named tensors and back, as checkpoints keep them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import StoreError
from shoal.types import Tree


def named(tree: Tree, prefix: str) -> dict[str, np.ndarray]:
    """A tree's leaves by path; NumPy has no bfloat16, so those are kept by their bits."""
    def plain(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        return array.view(np.uint16) if array.dtype == jnp.bfloat16 else array

    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {prefix + jax.tree_util.keystr(path): plain(leaf) for path, leaf in flat}


def filled(tree: Tree, tensors: dict[str, np.ndarray], prefix: str, as_fn: Callable[[np.ndarray], Any] = jnp.asarray) -> Tree:
    """``tree`` with its leaves taken from ``tensors`` by path; shapes and types must agree.

    On the device, which halves numbers of 64 bits, unless ``as_fn`` says otherwise.
    """
    def one(path: Any, leaf: Any) -> Any:
        name = prefix + jax.tree_util.keystr(path)
        if name not in tensors:
            raise StoreError(f"checkpoint has no {name}; it was made by another plan")
        value, half = tensors[name], leaf.dtype == jnp.bfloat16
        kept = np.dtype(np.uint16) if half else leaf.dtype
        if value.shape != leaf.shape or value.dtype != kept:
            raise StoreError(f"checkpoint's {name} is {value.dtype}{value.shape}, this plan needs {kept}{leaf.shape}")
        return as_fn(value.view(jnp.bfloat16) if half else value)

    return jax.tree_util.tree_map_with_path(one, tree)
