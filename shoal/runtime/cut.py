"""What every engine does alike: trees to named tensors and back, refused updates, episodes in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import flow
from shoal.errors import DivergedError, StoreError
from shoal.types import Algorithm, EpisodeEnd, Tree

_MAX_REFUSED = 10


def named(tree: Tree, prefix: str) -> dict[str, np.ndarray]:
    """A tree's leaves by path."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


def filled(tree: Tree, tensors: dict[str, np.ndarray], prefix: str, as_fn: Callable[[np.ndarray], Any] = jnp.asarray) -> Tree:
    """``tree`` with its leaves taken from ``tensors`` by path; shapes and types must agree.

    On the device, which halves numbers of 64 bits, unless ``as_fn`` says otherwise.
    """
    def one(path: Any, leaf: Any) -> Any:
        name = prefix + jax.tree_util.keystr(path)
        if name not in tensors:
            raise StoreError(f"checkpoint has no {name}; it was made by another plan")
        value = tensors[name]
        if value.shape != leaf.shape or value.dtype != leaf.dtype:
            raise StoreError(f"checkpoint's {name} is {value.dtype}{value.shape}, this plan needs {leaf.dtype}{leaf.shape}")
        return as_fn(value)

    return jax.tree_util.tree_map_with_path(one, tree)


def on_device(algorithm: Algorithm) -> Any:
    """The algorithm with its numbers as device arrays, so that calls need not convert them."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), algorithm)


def watch(refused: int, metrics: dict[str, float], iteration: int) -> int:
    """Refused updates in a row; too many stop the run."""
    refused = refused + 1 if metrics["refused"] else 0
    if refused >= _MAX_REFUSED:
        bad = ", ".join(name for name, value in metrics.items() if not np.isfinite(value)) or "the new parameters"
        raise DivergedError(f"{refused} updates in a row were refused, the last at iteration {iteration}: {bad} not finite; "
                            "try a smaller learning_rate or max_grad_norm, or check the environment's rewards")
    return refused


def ends(ended: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> list[EpisodeEnd]:
    """Episodes [T, B] in order of time, then environment."""
    means = flow.team_return(returns, 2)
    return [EpisodeEnd(int(i), int(t), float(means[t, i]), int(lengths[t, i])) for t, i in np.argwhere(ended)]
