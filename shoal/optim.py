"""Optimisers by name, through optax. Rates and limits are data: a new value compiles nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from shoal.ops import blocks, serial
from shoal.types import Array, Tree

NAMES = ("adam", "adamw", "sgd", "rmsprop")
_LARGE = 2**15  # numbers in an array that is worth a pass of its own: putting it beside others and back costs two


def _transform(name: str, max_grad_norm: Array | float, l2: Array | float, epsilon: float) -> optax.GradientTransformation:
    scale = {
        "adam": lambda: _adam(epsilon),
        "adamw": lambda: _adam(epsilon),
        "sgd": optax.identity,
        "rmsprop": lambda: optax.scale_by_rms(decay=0.99, eps=epsilon),
    }
    if name not in scale:
        raise ValueError(f"optimiser {name!r}: expected one of {', '.join(NAMES)}")
    unlimited = _is(max_grad_norm, float("inf"))
    # gradients that were scaled are rounded as the decay is added, be it of zero
    decay = optax.identity() if unlimited and _is(l2, 0.0) else optax.add_decayed_weights(l2)  # type: ignore[arg-type]
    # adamw's decay is decoupled from the gradient's scale; everywhere else L2 is part of the gradient
    inner = (scale[name](), decay) if name == "adamw" else (decay, scale[name]())
    return optax.chain(optax.identity() if unlimited else _clipped(max_grad_norm), *inner)


def _is(number: Array | float, nothing: float) -> bool:
    """Whether a number is known, as the program is compiled, to be one that changes nothing."""
    return isinstance(number, float) and number == nothing


def _adam(epsilon: float, first: float = 0.9, second: float = 0.999) -> optax.GradientTransformation:
    """Kingma and Ba (2015), algorithm 1, with both corrections taken together: one division and one root a number, not three and one."""
    plain = optax.scale_by_adam(b1=first, b2=second, eps=epsilon)

    def update(grads: list[Array], state: optax.ScaleByAdamState, _: Tree = None) -> tuple[list[Array], Tree]:
        count = serial.held(state.count, grads[0]) + 1 if len(grads) > 1 else state.count + 1
        means = [first * m + (1 - first) * g for m, g in zip(state.mu, grads, strict=True)]
        squares = [second * v + (1 - second) * g * g for v, g in zip(state.nu, grads, strict=True)]
        given = 1 - first**count.astype(jnp.float32)
        scale = given / jnp.sqrt(1 - second**count.astype(jnp.float32))
        steps = [m / (scale * jnp.sqrt(v) + epsilon * given) for m, v in zip(means, squares, strict=True)]
        return steps, optax.ScaleByAdamState(count, means, squares)

    return optax.GradientTransformation(plain.init, update)


def _grouped(tree: Tree) -> list[Array]:
    """The leaves of ``tree``: small ones as one long vector, which is faster than many short ones, then large ones as they are."""
    leaves = jax.tree.leaves(tree)
    small = [x.reshape(-1) for x in leaves if x.size < _LARGE]
    return ([jnp.concatenate(small)] if small else []) + [x for x in leaves if x.size >= _LARGE]


def _apart(groups: list[Array], like: Tree) -> Tree:
    """The inverse of ``_grouped``."""
    leaves, shape = jax.tree.flatten(like)
    small = [x for x in leaves if x.size < _LARGE]
    parts = iter(jnp.split(groups[0], np.cumsum([x.size for x in small])[:-1]) if small else ())
    large = iter(groups[bool(small):])
    return jax.tree.unflatten(shape, [next(parts).reshape(x.shape) if x.size < _LARGE else next(large) for x in leaves])


def _clipped(limit: Array | float) -> optax.GradientTransformation:
    """Scales arrays down to the norm ``limit`` of all; optax's own sums them differently with one thread than with more."""

    def update(arrays: list[Array], state: Tree, _: Tree = None) -> tuple[list[Array], Tree]:
        def measured(arrays: list[Array], limit: Array | float) -> Array:
            return jnp.sqrt(sum(blocks.total(jnp.square(x).reshape(-1)) for x in arrays))

        def where_needed(arrays: list[Array], limit: Array | float) -> Array:
            return jax.lax.cond(limit < jnp.inf, measured, lambda *_: jnp.zeros(()), arrays, limit)

        # other devices would have to ask the host
        norm = jax.lax.platform_dependent(arrays, limit, cpu=where_needed, default=measured)
        factor = jnp.where(norm < limit, 1.0, limit / norm)
        return [x * factor for x in arrays], state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def init(name: str, params: Tree) -> Tree:
    """The optimiser's state for ``params``."""
    return _transform(name, 1.0, 0.0, 1e-5).init(_grouped(params))


def step(name: str, params: Tree, grads: Tree, state: Tree, *, learning_rate: Array, max_grad_norm: Array = float("inf"),
         l2: Array = 0.0, epsilon: float = 1e-5) -> tuple[Tree, Tree]:
    """New parameters and state after one step down ``grads``."""
    updates, state = _transform(name, max_grad_norm, l2, epsilon).update(_grouped(grads), state, _grouped(params))
    return optax.apply_updates(params, _apart([-learning_rate * x for x in updates], params)), state
