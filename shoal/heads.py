"""What off-policy learners put on networks: action values, duelling and noisy ones, critics of state and action, and pairs of them.

All are equinox modules around a network by name, ``nets.make``; a user's own takes its part like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import nets, registry
from shoal.errors import ConfigError
from shoal.types import Array, Key, Tree


class NoisyLinear(eqx.Module):
    """A linear layer whose weights are random, by factorised noise. Fortunato et al. (2018), eqs. 9 to 11."""

    mean: nets.Linear
    scale: nets.Linear  # standard deviations

    def __init__(self, num_inputs: int, num_outputs: int, *, sigma: float = 0.5, key: Key):
        """Initial weights and scales are the paper's, section 3.2; ``sigma`` is its σ₀."""
        edge = 1.0 / math.sqrt(num_inputs)
        weight_key, bias_key = jax.random.split(key)
        blank = nets.Linear(num_inputs, num_outputs, init="lecun", gain=1.0, key=key)
        parts = lambda layer: (layer.weight, layer.bias)
        self.mean = eqx.tree_at(parts, blank, (jax.random.uniform(weight_key, blank.weight.shape, minval=-edge, maxval=edge),
                                               jax.random.uniform(bias_key, blank.bias.shape, minval=-edge, maxval=edge)))
        self.scale = eqx.tree_at(parts, blank, tuple(jnp.full(x.shape, sigma * edge) for x in parts(blank)))

    @property
    def num_noise(self) -> int:
        return sum(self.mean.weight.shape)

    def __call__(self, x: Array, noise: Array | None = None) -> Array:
        """[..., in] → [..., out]; standard normal ``noise`` [..., in + out], or [in + out] for all rows alike; zeros are none."""
        if noise is None:
            return self.mean(x)
        shaped = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        inward, outward = shaped[..., : x.shape[-1]], shaped[..., x.shape[-1]:]
        return self.mean(x) + outward * self.scale(x * inward)


class NoisyMLP(eqx.Module):
    """Noisy linear layers with an activation between them."""

    layers: tuple[NoisyLinear, ...]
    activation: str = eqx.field(static=True)

    def __init__(self, num_inputs: int, num_outputs: int, *, hidden: tuple[int, ...], activation: str, sigma: float = 0.5, key: Key):
        sizes = (num_inputs, *hidden, num_outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(NoisyLinear(sizes[i], sizes[i + 1], sigma=sigma, key=keys[i]) for i in range(len(keys)))
        self.activation = activation

    @property
    def num_noise(self) -> int:
        return sum(layer.num_noise for layer in self.layers)

    def __call__(self, x: Array, noise: Array | None = None) -> Array:
        """``noise`` [..., num_noise], each layer taking its own."""
        place = 0
        for i, layer in enumerate(self.layers):
            x = nets.ACTIVATIONS[self.activation](x) if i else x
            x = layer(x, None if noise is None else noise[..., place : place + layer.num_noise])
            place += layer.num_noise
        return x


def duel(value: Array, advantage: Array) -> Array:
    """Action values [..., A] from ``value`` [..., 1] and ``advantage`` [..., A]: V + A - mean A. Wang et al. (2016), eq. 9."""
    return value + advantage - advantage.mean(axis=-1, keepdims=True)


class Values(eqx.Module):
    """Values of all actions, [..., A], or their quantiles, [..., A, Q], from features [..., F].

    Plain: the network as it is. Duelling or noisy: the network up to its first hidden layer (a user's own: all of it), and from
    there on one stream of layers, or two, of value and of advantage; those layers are the noisy ones.
    """

    torso: nets.Net
    streams: tuple[Any, ...]
    activation: str = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)
    num_quantiles: int = eqx.field(static=True)  # 0: none

    def __init__(self, name: str, num_inputs: int, num_actions: int, *, key: Key, duelling: bool = False, noisy: bool = False,
                 sigma: float = 0.5, num_quantiles: int = 0, hidden: tuple[int, ...] = (64, 64), activation: str = "relu",
                 init: str = "orthogonal", gain: float = 1.0, **options: Any):
        width, torso_key, *keys = max(num_quantiles, 1), *jax.random.split(key, 3)
        self.activation, self.num_actions, self.num_quantiles = activation, num_actions, num_quantiles
        if not (duelling or noisy):
            self.torso = nets.make(name, num_inputs, num_actions * width, key=torso_key, hidden=hidden, activation=activation, init=init,
                                   gain=gain, **options)
            self.streams = ()
            return
        if not hidden:
            raise ConfigError("hidden = (): expected at least one hidden layer under a duelling or noisy head")
        own = name not in registry.BUILTIN["net"]  # a user's keeps the layers it asks for
        self.torso = nets.make(name, num_inputs, hidden[0], key=torso_key, hidden=hidden if own else (), activation=activation, init=init,
                               gain=math.sqrt(2.0), **options)

        def stream(num_outputs: int, key: Key) -> Any:
            if noisy:
                return NoisyMLP(hidden[0], num_outputs, hidden=hidden[1:], activation=activation, sigma=sigma, key=key)
            return nets.MLP(hidden[0], num_outputs, hidden=hidden[1:], activation=activation, init=init, gain=gain, key=key)

        sizes = (width, num_actions * width) if duelling else (num_actions * width,)
        self.streams = tuple(stream(size, key) for size, key in zip(sizes, keys, strict=False))

    @property
    def num_noise(self) -> int:
        """How many standard normal numbers a row takes; 0 without noisy layers."""
        return sum(stream.num_noise for stream in self.streams if isinstance(stream, NoisyMLP))

    def __call__(self, x: Array, noise: Array | None = None) -> Array:
        """``noise`` [..., num_noise], or [num_noise] for all rows alike; none, or zeros, are the mean: greedy."""
        out = self.torso(x)
        if not self.streams:
            return self._shaped(out)
        out, place, parts = nets.ACTIVATIONS[self.activation](out), 0, []
        for stream in self.streams:
            own = stream.num_noise if isinstance(stream, NoisyMLP) else 0
            parts.append(stream(out, noise[..., place : place + own]) if own and noise is not None else stream(out))
            place += own
        if len(parts) == 1:
            return self._shaped(parts[0])
        if not self.num_quantiles:
            return duel(*parts)
        value, advantage = parts[0][..., None, :], self._shaped(parts[1])
        return jnp.swapaxes(duel(jnp.swapaxes(value, -1, -2), jnp.swapaxes(advantage, -1, -2)), -1, -2)

    def _shaped(self, out: Array) -> Array:
        return out.reshape((*out.shape[:-1], self.num_actions, self.num_quantiles)) if self.num_quantiles else out


class Critic(eqx.Module):
    """The value [...] of an action [..., D] at features [..., F].

    A network of features and action together; for images, one of the image up to its first hidden layer, whose outputs the action
    then joins.
    """

    torso: nets.Net | None
    net: nets.Net
    activation: str = eqx.field(static=True)

    def __init__(self, name: str, num_inputs: int, action_size: int, *, key: Key, hidden: tuple[int, ...] = (256, 256),
                 activation: str = "relu", gain: float = 1.0, **options: Any):
        torso_key, net_key = jax.random.split(key)
        self.activation, self.torso = activation, None
        if name == "cnn":
            if not hidden:
                raise ConfigError("hidden = (): expected at least one hidden layer, for the action to join")
            self.torso = nets.make(name, num_inputs, hidden[0], key=torso_key, hidden=(), activation=activation, gain=math.sqrt(2.0),
                                   **options)
            name, num_inputs, hidden = "mlp", hidden[0], hidden[1:]
        self.net = nets.make(name, num_inputs + action_size, 1, key=net_key, hidden=hidden, activation=activation, gain=gain, **options)

    def __call__(self, x: Array, action: Array) -> Array:
        x = x if self.torso is None else nets.ACTIVATIONS[self.activation](self.torso(x))
        return self.net(jnp.concatenate([x, action.reshape((*x.shape[:-1], -1))], axis=-1))[..., 0]


class Several(eqx.Module):
    """Modules of one kind side by side, such as twin critics: one batched product per layer instead of one for each."""

    stacked: Tree  # every leaf [num, ...]

    def __init__(self, make_fn: Callable[[Key], Any], num: int, *, key: Key):
        """``make_fn`` makes one from its own key."""
        self.stacked = jax.vmap(make_fn)(jax.random.split(key, num))

    def __call__(self, *given: Array) -> Array:
        """All answers to the same arguments, the module's axis last: [..., num]."""
        num = jax.tree.leaves(self.stacked)[0].shape[0]
        # each its own copy: products of rows that modules share come out with the modules' axis inside
        return jax.vmap(lambda module, given: module(*given), out_axes=-1)(
            self.stacked, jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *x.shape)), given))
