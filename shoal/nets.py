"""Networks: equinox modules from a vector of features to a vector of outputs. Users bring their own by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import registry
from shoal.specs import MASK, STATE, Discrete, Group, Space
from shoal.types import Array, Key, Tree

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh, "relu": jax.nn.relu, "elu": jax.nn.elu, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "identity": lambda x: x,
}
INITS: dict[str, Callable[[float], Any]] = {
    "orthogonal": lambda gain: jax.nn.initializers.orthogonal(gain),
    "xavier": lambda gain: jax.nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform"),
    "he": lambda gain: jax.nn.initializers.variance_scaling(gain**2, "fan_in", "truncated_normal"),
    "lecun": lambda gain: jax.nn.initializers.variance_scaling(gain**2 / 2, "fan_in", "truncated_normal"),
}


def features(space: Space, obs: Tree) -> Array:
    """Observations [..., space] as the float32 vector [..., F] that a network sees: choices one-hot, mask left out."""
    if isinstance(space, Group):
        parts = [features(inner, obs[name]) for name, inner in space.items if name not in (MASK, STATE)]
        return jnp.concatenate(parts, axis=-1)
    if isinstance(space, Discrete):
        return jax.nn.one_hot(obs, space.num, dtype=jnp.float32)
    lead = obs.shape[: obs.ndim - len(space.shape)]
    return obs.reshape((*lead, space.size)).astype(jnp.float32)


def mask_of(obs: Tree) -> Array | None:
    """The action mask an observation carries, if it does."""
    return obs.get(MASK) if isinstance(obs, dict) else None


_FEW = 4  # outputs


@jax.custom_vjp
def _product(x: Array, weight: Array) -> Array:
    """``x @ weight`` for rows [..., in]."""
    return x @ weight


def _product_back(kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = kept
    rows, slopes = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])

    def turned(rows: Array, slopes: Array) -> Array:
        if slopes.shape[-1] <= _FEW:  # a sum over rows beats a product this narrow
            return jnp.stack([(rows * slopes[:, i : i + 1]).sum(0) for i in range(slopes.shape[-1])], axis=1)
        # XLA's CPU folds a transpose into a product that its fast kernels do not take; the barrier keeps it apart
        return jax.lax.optimization_barrier(rows.T) @ slopes

    by_weight = jax.lax.platform_dependent(rows, slopes, cpu=turned, default=lambda rows, slopes: rows.T @ slopes)
    return grad @ weight.T, by_weight


_product.defvjp(lambda x, weight: (x @ weight, (x, weight)), _product_back)


class Linear(eqx.Module):
    weight: Array  # [in, out]
    bias: Array  # [out]

    def __init__(self, num_inputs: int, num_outputs: int, *, init: str, gain: float, key: Key):
        self.weight = INITS[init](gain)(key, (num_inputs, num_outputs), jnp.float32)
        self.bias = jnp.zeros(num_outputs)

    def __call__(self, x: Array) -> Array:
        return _product(x, self.weight) + self.bias


class MLP(eqx.Module):
    """Linear layers with an activation between them."""

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(self, num_inputs: int, num_outputs: int, *, hidden: tuple[int, ...] = (64, 64), activation: str = "tanh",
                 init: str = "orthogonal", gain: float = 1.0, key: Key):
        """``gain`` scales the output layer; hidden layers use sqrt(2)."""
        sizes = (num_inputs, *hidden, num_outputs)
        gains = [math.sqrt(2.0)] * len(hidden) + [gain]
        keys = jax.random.split(key, len(gains))
        self.layers = tuple(Linear(sizes[i], sizes[i + 1], init=init, gain=gains[i], key=keys[i]) for i in range(len(gains)))
        self.activation = activation

    def __call__(self, x: Array) -> Array:
        for layer in self.layers[:-1]:
            x = ACTIVATIONS[self.activation](layer(x))
        return self.layers[-1](x)


class Net(eqx.Module):
    """Any equinox module, with its arrays as the only leaves: what is not an array is part of the program."""

    arrays: Tree
    rest: Any = eqx.field(static=True)

    def __init__(self, module: Any):
        self.arrays, self.rest = eqx.partition(module, eqx.is_inexact_array)

    def __call__(self, x: Array) -> Array:
        """[..., F] → [..., outputs]; the module itself sees one row."""
        module = eqx.combine(self.arrays, self.rest)
        if isinstance(module, MLP):  # takes any number of rows as it is
            return module(x)
        fn = module
        for _ in range(x.ndim - 1):
            fn = jax.vmap(fn)
        return fn(x)


def make(name: str, num_inputs: int, num_outputs: int, *, key: Key, **options: Any) -> Net:
    """The network registered under ``name``: called with sizes, ``key``, and those options its signature names."""
    factory = registry.find("net", name)
    known = inspect.signature(factory).parameters
    wide = any(p.kind is p.VAR_KEYWORD for p in known.values())
    return Net(factory(num_inputs, num_outputs, key=key, **{k: v for k, v in options.items() if wide or k in known}))
