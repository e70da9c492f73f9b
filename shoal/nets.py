"""Networks: equinox modules from a vector of features to a vector of outputs. Users bring their own by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import registry
from shoal.errors import ConfigError
from shoal.ops import blocks, serial
from shoal.specs import MASK, STATE, Box, Discrete, Group, MultiDiscrete, Space
from shoal.types import Array, Key, Tree

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh, "relu": jax.nn.relu, "elu": jax.nn.elu, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "identity": lambda x: x,
}
_CHEAP = ("relu", "identity")  # to work out twice
INITS: dict[str, Callable[[float], Any]] = {
    "orthogonal": lambda gain: jax.nn.initializers.orthogonal(gain),
    "xavier": lambda gain: jax.nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform"),
    "he": lambda gain: jax.nn.initializers.variance_scaling(gain**2, "fan_in", "truncated_normal"),
    "lecun": lambda gain: jax.nn.initializers.variance_scaling(gain**2 / 2, "fan_in", "truncated_normal"),
    # hidden layers uniform in ±1/√inputs, as PyTorch's are
    "narrow": lambda gain: jax.nn.initializers.variance_scaling(gain**2 / 6, "fan_in", "uniform"),
}


def features(space: Space, obs: Tree) -> Array:
    """Observations [..., space] as the float32 vector [..., F] that a network sees: choices one-hot, mask left out."""
    if isinstance(space, Group):
        parts = [features(inner, obs[name]) for name, inner in space.items if name not in (MASK, STATE)]
        return jnp.concatenate(parts, axis=-1)
    if isinstance(space, Discrete):
        return jax.nn.one_hot(obs, space.num, dtype=jnp.float32)
    if isinstance(space, MultiDiscrete):
        return jnp.concatenate([jax.nn.one_hot(obs[..., i], num, dtype=jnp.float32) for i, num in enumerate(space.nums)], axis=-1)
    lead = obs.shape[: obs.ndim - len(space.shape)]
    rows = obs.reshape((*lead, -1)).astype(jnp.float32)
    return rows / 255.0 if image_shape(space) and space.dtype == "uint8" else rows


def image_shape(space: Space) -> tuple[int, ...]:
    """[height, width, channels] of an observation that is an image; () of any other."""
    if not isinstance(space, Box) or len(space.shape) not in (2, 3):
        return ()
    return space.shape if len(space.shape) == 3 else (*space.shape, 1)


def suited(space: Space) -> str:
    """The network to use where none is named: images of bytes are convolved."""
    return "cnn" if image_shape(space) and isinstance(space, Box) and space.dtype == "uint8" else "mlp"


def mask_of(obs: Tree) -> Array | None:
    """The action mask an observation carries, if it does."""
    return obs.get(MASK) if isinstance(obs, dict) else None


_FEW = 4  # inputs or outputs
_NARROW = 32  # inputs
_MANY = 128  # rows, as learning has them and acting seldom has
_LONG = 2**22  # multiplications in a product that takes longer than handing it to another thread


class Source(NamedTuple):
    """What rows were made from: ``activation(inputs @ weight + bias)``."""

    inputs: Array
    weight: Array
    bias: Array


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _product(x: Array, weight: Array, source: Source | None = None, activation: str = "") -> Array:
    """``x @ weight`` for rows [..., in], in a network with ``activation``; ``source``: what they were made from, where that is cheap."""
    if activation not in _CHEAP or x.shape[-1] > _FEW or x.ndim < 2 or x.shape[-2] < _MANY:
        return _times(x, weight)

    def added(x: Array, weight: Array) -> Array:  # in one pass with what follows
        first, *others = (x[..., i : i + 1] * weight[i] for i in range(x.shape[-1]))
        return sum(others, first)

    return jax.lax.platform_dependent(x, weight, cpu=added, default=lambda x, weight: x @ weight)


def _product_back(activation: str, kept: tuple[Array, Array, Source | None], grad: Array) -> tuple[Array, Array, None]:
    x, weight, source = kept
    rows, slopes = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])

    def turned(rows: Array, slopes: Array) -> Array:
        if slopes.shape[-1] <= _FEW:  # a sum over rows beats a product this narrow
            return jnp.stack([(rows * slopes[:, i : i + 1]).sum(0) for i in range(slopes.shape[-1])], axis=1)
        # XLA's CPU folds a transpose into a product that its fast kernels do not take; the barrier keeps it apart
        return _times(jax.lax.optimization_barrier(rows.T if source is None else _columns(source, activation)), slopes)

    def blocked(rows: Array, slopes: Array) -> Array:
        return blocks.sum_rows(lambda given: turned(*given), (rows, slopes))  # convolutions have many rows to an image

    by_weight = jax.lax.platform_dependent(rows, slopes, cpu=blocked, default=lambda rows, slopes: rows.T @ slopes)
    return _times(grad, weight, lambda grad, weight: grad @ weight.T), by_weight, None


def _times(x: Array, y: Array, fn: Callable[[Array, Array], Array] = jnp.matmul) -> Array:
    """``fn``, a product of ``x`` and ``y`` [A, B], by whoever asks for it, if it is a long one."""
    return serial.alone(fn, x, y) if x.size * max(y.shape) >= _LONG else fn(x, y)


def _columns(source: Source, activation: str) -> Array:
    """Rows as columns [in, R]. Where XLA's CPU transposes what an activation made, it makes it again, number by number."""
    inputs, weight, bias = source
    return ACTIVATIONS[activation](jax.lax.optimization_barrier(weight.T) @ inputs.T + bias[:, None])


_product.defvjp(lambda x, weight, source, activation: (_product(x, weight, None, activation), (x, weight, source)), _product_back)


@jax.custom_vjp
def _shifted(x: Array, bias: Array) -> Array:
    """``x + bias`` for rows [..., out], with the bias's gradient summed in blocks: of many rows, XLA's CPU sums by threads."""
    return x + bias


_shifted.defvjp(lambda x, bias: (x + bias, None),
                lambda _, grad: (grad, blocks.sum_rows(blocks.total, grad.reshape(-1, grad.shape[-1]))))


class Linear(eqx.Module):
    weight: Array  # [in, out]
    bias: Array  # [out]

    def __init__(self, num_inputs: int, num_outputs: int, *, init: str, gain: float, key: Key):
        self.weight = INITS[init](gain)(key, (num_inputs, num_outputs), jnp.float32)
        self.bias = jnp.zeros(num_outputs)

    def __call__(self, x: Array, source: Source | None = None, activation: str = "") -> Array:
        """``source``: what ``x`` was made from, where that is known, for the gradient; ``activation``: the network's."""
        return _shifted(_product(x, self.weight, source, activation), self.bias)

    def source(self, x: Array) -> Source | None:
        """How what it answers to ``x`` can be made again, where that takes little: few inputs, and rows that are one block. Very few
        inputs are added up, in one pass with whatever asks."""
        cheap = x.ndim == 2 and x.shape[0] <= blocks.BLOCK_ROWS and _FEW < x.shape[1] <= _NARROW
        return Source(x, self.weight, self.bias) if cheap else None


class MLP(eqx.Module):
    """Linear layers with an activation between them."""

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)
    dropout: float = eqx.field(static=True)

    def __init__(self, num_inputs: int, num_outputs: int, *, hidden: tuple[int, ...] = (64, 64), activation: str = "tanh",
                 init: str = "orthogonal", gain: float = 1.0, dropout: float = 0.0, key: Key):
        """``gain`` scales the output layer; hidden layers use sqrt(2)."""
        sizes = (num_inputs, *hidden, num_outputs)
        gains = [math.sqrt(2.0)] * len(hidden) + [gain]
        keys = jax.random.split(key, len(gains))
        self.layers = tuple(Linear(sizes[i], sizes[i + 1], init=init, gain=gains[i], key=keys[i]) for i in range(len(gains)))
        self.activation, self.dropout = activation, dropout

    def hidden(self, x: Array, keys: Array | None = None) -> Array:
        """The last layer but one; ``keys``, one per row, say which units are dropped."""
        return self._upto(x, keys)[0]

    def _upto(self, x: Array, keys: Array | None = None) -> tuple[Array, Source | None]:
        """The last layer but one, and what it was made from, where that is known."""
        source = None
        for i, layer in enumerate(self.layers[:-1]):
            before, x = x, ACTIVATIONS[self.activation](layer(x, source, self.activation))
            source = layer.source(before) if self.activation in _CHEAP else None
            if keys is not None and self.dropout:
                x, source = drop(x, keys, i, self.dropout), None
        return x, source

    def __call__(self, x: Array, keys: Array | None = None) -> Array:
        x, source = self._upto(x, keys)
        return self.layers[-1](x, source, self.activation)


def drop(x: Array, keys: Array, layer: int, share: float) -> Array:
    """``x`` [..., F] with a ``share`` of its units at zero and the others scaled up to make good for them.

    Every row has its own key, so what is dropped does not depend on how rows are grouped.
    Srivastava et al. (2014), "Dropout: a simple way to prevent neural networks from overfitting".
    """
    def one(key: Key) -> Array:
        return jax.random.bernoulli(jax.random.fold_in(key, layer), 1.0 - share, x.shape[-1:])

    for _ in range(keys.ndim):
        one = jax.vmap(one)
    return jnp.where(one(keys), x / (1.0 - share), 0.0)



class CNN(eqx.Module):
    """Convolutions over an image [H, W, C], then linear layers."""

    filters: tuple[Array, ...]  # [k, k, in, out]
    biases: tuple[Array, ...]
    head: MLP
    shape: tuple[int, ...] = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, num_inputs: int, num_outputs: int, *, shape: tuple[int, ...] = (), channels: tuple[int, ...] = (16, 32),
                 kernels: tuple[int, ...] = (3, 3), strides: tuple[int, ...] = (2, 2), hidden: tuple[int, ...] = (64,),
                 activation: str = "relu", init: str = "orthogonal", gain: float = 1.0, dropout: float = 0.0, key: Key):
        if not shape:
            raise ConfigError("net = 'cnn': expected image observations, [height, width] or [height, width, channels]")
        if not len(channels) == len(kernels) == len(strides):
            raise ConfigError(f"channels = {channels}, kernels = {kernels}, strides = {strides}: expected as many of each")
        head_key, *keys = jax.random.split(key, len(channels) + 1)
        depths, (height, width) = (shape[-1], *channels), shape[:2]
        self.filters = tuple(INITS[init](math.sqrt(2.0))(keys[i], (kernels[i], kernels[i], depths[i], depths[i + 1]), jnp.float32)
                             for i in range(len(channels)))
        self.biases = tuple(jnp.zeros(num) for num in channels)
        for stride in strides:
            height, width = -(-height // stride), -(-width // stride)
        self.head = MLP(height * width * depths[-1], num_outputs, hidden=hidden, activation=activation, init=init, gain=gain,
                        dropout=dropout, key=head_key)
        self.shape, self.strides = shape, strides

    def hidden(self, x: Array, keys: Array | None = None) -> Array:
        """The last layer but one, of images as rows [..., H·W·C]."""
        lead = x.shape[:-1]
        x = x.reshape((-1, *self.shape))
        for kernel, bias, stride in zip(self.filters, self.biases, self.strides, strict=True):
            x = ACTIVATIONS[self.head.activation](_shifted(convolve(x, kernel, stride), bias))
        return self.head.hidden(x.reshape((*lead, -1)), keys)

    def __call__(self, x: Array, keys: Array | None = None) -> Array:
        return self.head.layers[-1](self.hidden(x, keys))


def convolve(x: Array, kernel: Array, stride: int) -> Array:
    """Images [R, H, W, C] convolved with ``kernel`` [k, k, C, D], padded to ⌈H / stride⌉ × ⌈W / stride⌉.

    As a product over patches: on the CPU the sums of XLA's own convolution depend on the number of threads.
    """
    size, (height, width) = kernel.shape[0], (-(-n // stride) for n in x.shape[1:3])
    short = [max((n - 1) * stride + size - have, 0) for n, have in zip((height, width), x.shape[1:3], strict=True)]
    x = jnp.pad(x, [(0, 0), *((pad // 2, pad - pad // 2) for pad in short), (0, 0)])
    patches = [x[:, i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride]
               for i in range(size) for j in range(size)]
    return _product(jnp.concatenate(patches, axis=-1), kernel.reshape(-1, kernel.shape[-1]))


class GRU(eqx.Module):
    """A gated recurrent unit: memory [B, H] and input [B, F] → memory. Cho et al. (2014), eqs. 5 to 8, with the reset gate inside."""

    inputs: Linear
    recurrent: Linear

    def __init__(self, num_inputs: int, size: int, *, init: str = "orthogonal", key: Key):
        first, second = jax.random.split(key)
        self.inputs = Linear(num_inputs, 3 * size, init=init, gain=1.0, key=first)
        self.recurrent = Linear(size, 3 * size, init=init, gain=1.0, key=second)

    def __call__(self, memory: Array, x: Array) -> Array:
        (reset, keep, new), (reset_m, keep_m, new_m) = (jnp.split(y, 3, axis=-1) for y in (self.inputs(x), self.recurrent(memory)))
        keep = jax.nn.sigmoid(keep + keep_m)
        candidate = jnp.tanh(new + jax.nn.sigmoid(reset + reset_m) * new_m)
        return keep * memory + (1.0 - keep) * candidate


class Net(eqx.Module):
    """Any equinox module, with its arrays as the only leaves: what is not an array is part of the program."""

    arrays: Tree
    rest: Any = eqx.field(static=True)

    def __init__(self, module: Any):
        self.arrays, self.rest = eqx.partition(module, eqx.is_inexact_array)

    def module(self) -> Any:
        return eqx.combine(self.arrays, self.rest)

    def __call__(self, x: Array, keys: Array | None = None) -> Array:
        """[..., F] → [..., outputs]; a user's module sees one row. ``keys`` [...] drop units of those networks that do."""
        module = self.module()
        if isinstance(module, MLP | CNN):  # these take any number of rows as they are
            return module(x, keys)
        return _rowwise(module, x)

    def with_latent(self, x: Array, keys: Array | None = None) -> tuple[Array, Array]:
        """Outputs, and the last layer but one [..., H]: what state-dependent noise is a function of."""
        module = self.module()
        if isinstance(module, MLP | CNN):
            latent = module.hidden(x, keys)
            return (module if isinstance(module, MLP) else module.head).layers[-1](latent), latent
        return _rowwise(module, x), x  # a user's network does not show its insides

    def latent_size(self, num_inputs: int) -> int:
        return jax.eval_shape(lambda: self.with_latent(jnp.zeros((1, num_inputs))))[1].shape[-1]


def _rowwise(fn: Callable[[Array], Array], x: Array) -> Array:
    for _ in range(x.ndim - 1):
        fn = jax.vmap(fn)
    return fn(x)


def make(name: str, num_inputs: int, num_outputs: int, *, key: Key, **options: Any) -> Net:
    """The network registered under ``name``: called with sizes, ``key``, and those options its signature names."""
    factory = registry.find("net", name)
    known = inspect.signature(factory).parameters
    wide = any(p.kind is p.VAR_KEYWORD for p in known.values())
    return Net(factory(num_inputs, num_outputs, key=key, **{k: v for k, v in options.items() if wide or k in known}))
