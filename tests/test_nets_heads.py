"""Heads: duelling and noisy values, critics and pairs of them, by their equations and their statistics; and bits of wide networks."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import heads, nets, registry
from shoal.errors import ConfigError
from shoal.types import Array

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (6, 3))

call = jax.jit(lambda module, *given: module(*given))
slope_of = jax.jit(jax.grad(lambda module, *given: (module(*given) ** 2).sum()))


def values(name="mlp", num_inputs=3, **options):
    return jax.jit(lambda key: heads.Values(name, num_inputs, 4, key=key, init="xavier", **options))(KEY)


def test_duel_by_hand():
    assert heads.duel(jnp.array([[10.0]]), jnp.array([[1.0, 2.0, 6.0]])).tolist() == [[8, 9, 13]]


def test_plain_values_are_the_network():
    head = values(hidden=(8,))
    np.testing.assert_array_equal(head(X), head.torso(X))
    assert head(X).shape == (6, 4) and head.num_noise == 0
    quantiles = values(hidden=(8,), num_quantiles=5)
    assert quantiles(X[None]).shape == (1, 6, 4, 5)
    np.testing.assert_array_equal(quantiles(X)[2, 1], quantiles.torso(X)[2, 5:10])  # an action's quantiles lie side by side


def test_duelling_values_by_hand():
    head = values(hidden=(8, 5), duelling=True)
    value, advantage = head.streams
    shared = np.maximum(X @ head.torso.module().layers[0].weight, 0)  # biases start at zero
    by_hand = [np.maximum(shared @ s.layers[0].weight, 0) @ s.layers[1].weight for s in (value, advantage)]
    out = call(head, X)
    np.testing.assert_allclose(out, by_hand[0] + by_hand[1] - by_hand[1].mean(1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(out.mean(1), by_hand[0][:, 0], atol=1e-5)  # the mean over actions is the value
    assert [layer.weight.shape for s in head.streams for layer in s.layers] == [(8, 5), (5, 1), (8, 5), (5, 4)]


def test_duelling_quantiles_duel_one_by_one():
    head = values(hidden=(8,), duelling=True, num_quantiles=2)
    shared = nets.ACTIVATIONS["relu"](head.torso(X))
    value, advantage = head.streams[0](shared), head.streams[1](shared).reshape(6, 4, 2)
    out = head(X)
    for i in range(2):
        np.testing.assert_allclose(out[..., i], heads.duel(value[:, i : i + 1], advantage[..., i]), atol=1e-6)


def test_a_noisy_layer_is_its_equation():
    layer = jax.jit(lambda key: heads.NoisyLinear(3, 2, key=key))(KEY)
    assert layer.num_noise == 5 and np.abs(layer.mean.weight).max() <= 1 / math.sqrt(3)
    np.testing.assert_allclose(layer.scale.weight, 0.5 / math.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(layer.scale.bias, 0.5 / math.sqrt(3), rtol=1e-6)
    noise = np.array([4.0, -0.25, 1.0, 9.0, -1.0])
    inward, outward = np.array([2.0, -0.5, 1.0]), np.array([3.0, -1.0])  # sgn(x) √|x|
    weight = np.asarray(layer.mean.weight) + np.asarray(layer.scale.weight) * np.outer(inward, outward)
    bias = np.asarray(layer.mean.bias) + np.asarray(layer.scale.bias) * outward
    np.testing.assert_allclose(layer(X, jnp.asarray(noise)), X @ weight + bias, atol=1e-5)
    np.testing.assert_array_equal(layer(X), layer(X, jnp.zeros(5)))  # no noise is the mean: greedy is data
    np.testing.assert_allclose(layer(X), X @ layer.mean.weight + layer.mean.bias, atol=1e-5)


def test_noise_has_its_variance_and_is_each_rows_own():
    layer, num = jax.jit(lambda key: heads.NoisyLinear(3, 2, key=key))(KEY), 20_000
    noise = jax.random.normal(KEY, (num, 5))
    out = np.asarray(layer(jnp.broadcast_to(X[0], (num, 3)), noise))
    mean_abs = math.sqrt(2 / math.pi)  # E f(ε)² = E |ε|; a product of two independent ones squares it
    scale2 = 0.25 / 3
    variance = scale2 * (mean_abs**2 * float((X[0] ** 2).sum()) + mean_abs)
    np.testing.assert_allclose(out.mean(0), layer(X[0]), atol=5 * math.sqrt(variance / num))
    np.testing.assert_allclose(out.var(0), variance, rtol=0.06)
    rows = layer(X, noise[:6])
    np.testing.assert_allclose(rows[3], layer(X[3], noise[3]), atol=1e-6)  # grouping does not matter


def test_noisy_values():
    head = values(hidden=(8, 5), noisy=True, duelling=True)
    assert head.num_noise == (8 + 5) + (5 + 1) + (8 + 5) + (5 + 4)
    noise = jax.random.normal(KEY, (6, head.num_noise))
    greedy = jnp.array([1.0, 0, 0, 1, 0, 0])[:, None]
    out, mean = call(head, X, noise * (1 - greedy)), call(head, X)
    same = np.isclose(out, mean, atol=1e-7).all(1)
    assert same.tolist() == [True, False, False, True, False, False]
    slope = slope_of(head, X, noise)
    assert all(float(jnp.abs(leaf).sum()) > 0 for leaf in jax.tree.leaves(slope))  # scales are learned, too


class Own(eqx.Module):
    """A user's network: sees one row."""

    inner: eqx.nn.MLP

    def __init__(self, num_inputs, num_outputs, *, key, hidden):
        self.inner = eqx.nn.MLP(num_inputs, num_outputs, hidden[0], 1, key=key)

    def __call__(self, x: Array) -> Array:
        return self.inner(x)


def test_a_users_network_and_images_take_their_part():
    registry.register(net={"test_heads_own": Own})
    own = values("test_heads_own", hidden=(8, 5), duelling=True)
    assert call(own, X).shape == (6, 4) and call(own.torso, X).shape == (6, 8)
    pixels = {"shape": (6, 6, 1), "channels": (4,), "kernels": (3,), "strides": (2,)}
    seen = values("cnn", 36, hidden=(7,), noisy=True, **pixels)
    assert call(seen, jnp.ones((2, 36)), jnp.ones(seen.num_noise)).shape == (2, 4) and seen.num_noise == 7 + 4
    critic = jax.jit(lambda key: heads.Critic("cnn", 36, 2, key=key, hidden=(7, 5), init="xavier", **pixels))(KEY)
    images, actions = np.ones((3, 36), np.float32), np.ones((3, 2), np.float32)
    images[1], actions[2] = 0.5, -1.0
    assert len(set(call(critic, images, actions).tolist())) == 3  # it sees the image, and it sees the action
    for make in (lambda: heads.Values("mlp", 3, 4, key=KEY, hidden=(), noisy=True), lambda: heads.Critic("cnn", 36, 2, key=KEY, hidden=())):
        with pytest.raises(ConfigError, match=r"hidden = \(\): expected at least one hidden layer"):
            make()


def test_critics_by_hand_and_side_by_side():
    make = lambda key: heads.Critic("mlp", 3, 2, key=key, hidden=(8,), init="xavier")
    twins = jax.jit(lambda key: heads.Several(make, 2, key=key))(KEY)
    action = jax.random.normal(KEY, (6, 2))
    out = call(twins, X, action)
    assert out.shape == (6, 2) and float(jnp.abs(out[:, 0] - out[:, 1]).min()) > 1e-4  # each has its own weights
    for i in range(2):
        alone = jax.tree.map(lambda leaf, i=i: leaf[i], twins.stacked)
        first, second = alone.net.module().layers
        by_hand = np.maximum(np.concatenate([X, action], 1) @ first.weight, 0) @ second.weight
        np.testing.assert_allclose(out[:, i], by_hand[:, 0], atol=1e-5)
    choices = jax.eval_shape(lambda key: heads.Several(lambda k: heads.Values("mlp", 3, 4, key=k), 3, key=key)(X), KEY)
    assert choices.shape == (6, 4, 3)


SCRIPT = """
import hashlib, os, sys
os.environ["NPROC"] = sys.argv[1]
import jax, numpy as np
from shoal import nets
key = jax.random.key(0)
x, net = jax.random.normal(key, (256, 17)), nets.MLP(17, 1, hidden=(256, 256), activation="relu", init="xavier", key=key)
grads = jax.jit(jax.grad(lambda net: (net(x) ** 2).sum()))(net)
print(hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(grads))).hexdigest())
"""


def test_wide_layers_have_the_same_gradient_for_any_number_of_threads():
    """256 rows of 256 units: a sum of so many numbers is one that XLA's CPU would share out."""
    env = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    done = [subprocess.run([sys.executable, "-c", SCRIPT, threads], capture_output=True, text=True, env=env, timeout=600, check=False)
            for threads in ("1", "2")]
    assert [run.returncode for run in done] == [0, 0], done[0].stderr[-2000:]
    assert len(done[0].stdout) > 60 and done[0].stdout == done[1].stdout
