"""Optimisers by name, through optax. Rates and limits are data: a new value compiles nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from shoal.ops import blocks
from shoal.types import Array, Tree

NAMES = ("adam", "adamw", "sgd", "rmsprop")


def _transform(name: str, max_grad_norm: Array | float, l2: Array | float, epsilon: float) -> optax.GradientTransformation:
    scale = {
        "adam": lambda: optax.scale_by_adam(eps=epsilon),
        "adamw": lambda: optax.scale_by_adam(eps=epsilon),
        "sgd": optax.identity,
        "rmsprop": lambda: optax.scale_by_rms(decay=0.99, eps=epsilon),
    }
    if name not in scale:
        raise ValueError(f"optimiser {name!r}: expected one of {', '.join(NAMES)}")
    decay = optax.add_decayed_weights(l2)  # type: ignore[arg-type]
    # adamw's decay is decoupled from the gradient's scale; everywhere else L2 is part of the gradient
    inner = (scale[name](), decay) if name == "adamw" else (decay, scale[name]())
    chain = optax.chain(_clipped(max_grad_norm), *inner)
    return optax.flatten(chain)  # one long vector instead of many short ones


def _clipped(limit: Array | float) -> optax.GradientTransformation:
    """Scales a long vector down to the norm ``limit``; optax's own sums it differently with one thread than with more."""

    def update(vector: Array, state: Tree, _: Tree = None) -> tuple[Array, Tree]:
        def measured(vector: Array, limit: Array | float) -> Array:
            return jnp.sqrt(blocks.total(jnp.square(vector)))

        def where_needed(vector: Array, limit: Array | float) -> Array:
            return jax.lax.cond(limit < jnp.inf, measured, lambda *_: jnp.zeros(()), vector, limit)

        # other devices would have to ask the host
        norm = jax.lax.platform_dependent(vector, limit, cpu=where_needed, default=measured)
        return jnp.where(norm < limit, vector, vector / norm * limit), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def init(name: str, params: Tree) -> Tree:
    """The optimiser's state for ``params``."""
    return _transform(name, 1.0, 0.0, 1e-5).init(params)


def step(name: str, params: Tree, grads: Tree, state: Tree, *, learning_rate: Array, max_grad_norm: Array = float("inf"),
         l2: Array = 0.0, epsilon: float = 1e-5) -> tuple[Tree, Tree]:
    """New parameters and state after one step down ``grads``."""
    updates, state = _transform(name, max_grad_norm, l2, epsilon).update(grads, state, params)
    return optax.apply_updates(params, optax.tree_utils.tree_scale(-learning_rate, updates)), state
