"""Networks: shapes, initial weights by name, what of an observation they see, and a user's own module."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import nets, registry
from shoal.algos.ppo import PPO
from shoal.errors import MissingError
from shoal.lane import role
from shoal.errors import ConfigError
from shoal.specs import Box, Discrete, EnvSpec, Group, MASK, MultiBinary, MultiDiscrete, STATE, num_features

KEY = jax.random.key(0)


def test_shapes_and_forward_pass_by_hand():
    net = nets.make("mlp", 3, 2, key=KEY, hidden=(5, 4), activation="relu", init="he", gain=1.0)
    weights = [leaf for leaf in jax.tree.leaves(net) if leaf.ndim == 2]
    assert [w.shape for w in weights] == [(3, 5), (5, 4), (4, 2)]
    x = np.random.default_rng(0).normal(size=(6, 7, 3)).astype(np.float32)
    by_hand = np.maximum(np.maximum(x @ weights[0], 0) @ weights[1], 0) @ weights[2]
    np.testing.assert_allclose(net(jnp.asarray(x)), by_hand, rtol=1e-4, atol=1e-5)
    assert net(jnp.asarray(x[0, 0])).shape == (2,)
    assert all(not leaf.any() for leaf in jax.tree.leaves(net) if leaf.ndim == 1)  # biases start at zero


def test_no_hidden_layer_is_a_linear_map():
    net = nets.make("mlp", 3, 2, key=KEY, hidden=(), activation="tanh", init="orthogonal", gain=1.0)
    x = jnp.ones((4, 3))
    np.testing.assert_allclose(net(x + x), 2 * net(x), rtol=1e-5)


def test_orthogonal_gains():
    layers = nets.MLP(64, 3, hidden=(64, 32), key=KEY, gain=0.01).layers
    np.testing.assert_allclose(layers[0].weight.T @ layers[0].weight, 2 * np.eye(64), atol=1e-4)
    np.testing.assert_allclose(layers[1].weight.T @ layers[1].weight, 2 * np.eye(32), atol=1e-4)
    np.testing.assert_allclose(layers[2].weight.T @ layers[2].weight, 1e-4 * np.eye(3), atol=1e-8)


@pytest.mark.parametrize(("init", "variance"), [("xavier", 2 * 2 / (400 + 200)), ("he", 2 / 400), ("lecun", 1 / 400)])
def test_other_inits_have_their_variance(init, variance):
    weight = np.asarray(nets.Linear(400, 200, init=init, gain=math.sqrt(2), key=KEY).weight)
    assert weight.var() == pytest.approx(variance, rel=0.03) and abs(weight.mean()) < 3 * math.sqrt(variance / weight.size)


def test_activations():
    x = jnp.array([-1.0, 0.5])
    wanted = {"tanh": np.tanh([-1, 0.5]), "relu": [0, 0.5], "elu": [math.expm1(-1), 0.5], "identity": [-1, 0.5],
              "silu": [-1 / (1 + math.e), 0.5 / (1 + math.exp(-0.5))], "gelu": [-0.1588, 0.3457]}
    assert set(wanted) == set(nets.ACTIVATIONS)
    for name, values in wanted.items():
        np.testing.assert_allclose(nets.ACTIVATIONS[name](x), values, rtol=1e-3, atol=1e-4)


def test_features():
    rows = jnp.arange(6, dtype=jnp.uint8).reshape(2, 3)
    out = nets.features(Box((3,), dtype="uint8"), rows)
    assert out.dtype == jnp.float32 and out.tolist() == [[0, 1, 2], [3, 4, 5]]
    image = jnp.array([[[0, 51, 255], [1, 2, 3]]], jnp.uint8)  # an image of bytes is scaled to [0, 1]
    np.testing.assert_allclose(nets.features(Box((2, 3), dtype="uint8"), image), [[0, 0.2, 1, 1 / 255, 2 / 255, 3 / 255]], rtol=1e-6)
    assert nets.features(Box((2, 3)), jnp.full((1, 2, 3), 7.0)).tolist() == [[7] * 6]
    assert nets.features(MultiDiscrete((2, 3)), jnp.array([[1, 0]])).tolist() == [[0, 1, 1, 0, 0]]
    assert nets.features(MultiBinary(3), jnp.array([[1, 0, 1]])).tolist() == [[1, 0, 1]]
    assert nets.features(Discrete(3), jnp.array([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert nets.features(Box(()), jnp.array([2.0, 3.0])).tolist() == [[2], [3]]
    space = Group((("x", Box((2,))), (MASK, Box((3,))), ("c", Discrete(2)), (STATE, Box((9,)))))
    obs = {"x": jnp.array([[5.0, 6.0]]), MASK: jnp.ones((1, 3)), "c": jnp.array([1]), STATE: jnp.ones((1, 9))}
    assert nets.features(space, obs).tolist() == [[5, 6, 0, 1]] and num_features(space) == 4
    np.testing.assert_array_equal(nets.mask_of(obs), jnp.ones((1, 3)))
    assert nets.mask_of(jnp.ones(3)) is None and nets.mask_of({"x": jnp.ones(3)}) is None


def own_net(num_inputs, num_outputs, *, key, hidden):
    """A user's network: equinox's own MLP, which holds functions beside its arrays."""
    return eqx.nn.MLP(num_inputs, num_outputs, hidden[0], 1, activation=jax.nn.softplus, key=key)


def test_a_users_own_module():
    registry.register(net={"test_own_net": own_net})
    net = nets.make("test_own_net", 3, 2, key=KEY, hidden=(8,), activation="ignored, it takes none", gain=1.0)
    x = jax.random.normal(KEY, (5, 3))
    np.testing.assert_allclose(jax.jit(lambda n, x: n(x))(net, x), jax.vmap(own_net(3, 2, key=KEY, hidden=(8,)))(x), rtol=1e-5)
    # only arrays are leaves, and the gradient has exactly their shape
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(net)) and len(jax.tree.leaves(net)) == 4
    gradient = jax.grad(lambda n: (n(x) ** 2).sum())(net)
    assert jax.tree.structure(gradient) == jax.tree.structure(net)
    assert all(float(jnp.abs(leaf).sum()) > 0 for leaf in jax.tree.leaves(gradient))
    # PPO acts with it
    agent, spec = PPO(net="test_own_net", hidden=(8,)), EnvSpec("any", Box((3,)), Discrete(2))
    state = agent.init(spec, KEY)
    noise = agent.draw(spec, KEY, (5,))
    acted = jax.jit(lambda a, p, x, n: a.act(p, (), x, role(0.0, 5), n))(agent, agent.policy(state), x, noise)
    logits = jax.vmap(eqx.combine(state.actor.net.arrays, state.actor.net.rest))(x)
    assert acted.action.tolist() == jnp.argmax(logits + noise, -1).tolist()


def test_an_unknown_net_is_refused():
    with pytest.raises(MissingError, match="unknown net 'mpl'; did you mean 'mlp'"):
        nets.make("mpl", 1, 1, key=KEY)


@pytest.mark.parametrize(("shape", "size", "stride"), [((8, 8, 1), 3, 2), ((9, 7, 3), 5, 2), ((10, 10, 2), 8, 4), ((5, 5, 1), 3, 1)])
def test_convolution_agrees_with_xla(shape, size, stride):
    x, kernel = jax.random.normal(KEY, (3, *shape)), jax.random.normal(jax.random.key(1), (size, size, shape[-1], 4))
    xla = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(nets.convolve(x, kernel, stride), xla, rtol=1e-4, atol=1e-4)


def test_images_choose_convolutions():
    image = Box((8, 8, 3), 0.0, 255.0, "uint8")
    assert nets.suited(image) == "cnn" and nets.suited(Box((8, 8, 3))) == "mlp" and nets.image_shape(Box((8, 6))) == (8, 6, 1)
    net = nets.make("cnn", 192, 2, key=KEY, shape=(8, 8, 3), channels=(4, 6), kernels=(3, 3), strides=(2, 1), hidden=(5,))
    assert net(jnp.ones((7, 3, 192))).shape == (7, 3, 2) and net.latent_size(192) == 5
    with pytest.raises(ConfigError, match="image observations"):
        nets.make("cnn", 4, 2, key=KEY)
    with pytest.raises(ConfigError, match="as many of each"):
        nets.make("cnn", 64, 2, key=KEY, shape=(8, 8, 1), channels=(4,), kernels=(3, 3), strides=(1, 1))


def test_dropout_keeps_the_mean_and_does_not_see_how_rows_are_grouped():
    keys = jax.random.split(KEY, 4000)
    out = np.asarray(nets.drop(jnp.ones((4000, 8)), keys, 0, 0.25))
    np.testing.assert_allclose(np.unique(out), [0, 4 / 3], rtol=1e-6)
    assert out.mean() == pytest.approx(1.0, abs=0.02)
    assert (out == 0).mean() == pytest.approx(0.25, abs=0.01)
    net = nets.make("mlp", 3, 2, key=KEY, hidden=(8, 8), dropout=0.5)
    x = jax.random.normal(KEY, (6, 3))
    whole = net(x, keys[:6])
    np.testing.assert_allclose(jnp.concatenate([net(x[:2], keys[:2]), net(x[2:], keys[2:6])]), whole, atol=1e-6)
    assert float(jnp.abs(whole - net(x)).max()) > 1e-3 and (net(x) == net(x)).all()  # acting drops nothing


def test_gru_is_its_equations():
    cell = nets.GRU(3, 4, key=KEY)
    memory, x = jax.random.normal(KEY, (2, 4)), jax.random.normal(jax.random.key(1), (2, 3))
    a, b = np.asarray(x @ cell.inputs.weight), np.asarray(memory @ cell.recurrent.weight)
    sigmoid = lambda v: 1 / (1 + np.exp(-v))
    reset, keep = sigmoid(a[:, :4] + b[:, :4]), sigmoid(a[:, 4:8] + b[:, 4:8])
    wanted = keep * np.asarray(memory) + (1 - keep) * np.tanh(a[:, 8:] + reset * b[:, 8:])
    np.testing.assert_allclose(cell(memory, x), wanted, atol=1e-5)
