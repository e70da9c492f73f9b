"""Optimisers by name against optax's own, step for step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal import optim
from shoal.runtime.device import Compilations

PARAMS = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.array([0.1, -0.2])}
GRADS = [{"w": jnp.array([[0.3, -1.0], [2.0, 0.0]]) * s, "b": jnp.array([1.0, -0.5]) * s} for s in (1.0, -0.4, 3.0, 0.1)]
RATE, DECAY = 0.05, 0.1

OWN = {
    "adam": lambda l2: optax.chain(optax.add_decayed_weights(l2), optax.adam(RATE, eps=1e-5)),
    "adamw": lambda l2: optax.adamw(RATE, eps=1e-5, weight_decay=l2),
    "sgd": lambda l2: optax.chain(optax.add_decayed_weights(l2), optax.sgd(RATE)),
    "rmsprop": lambda l2: optax.chain(optax.add_decayed_weights(l2), optax.rmsprop(RATE, decay=0.99, eps=1e-5)),
}


def descend(name, **options):
    def run(params, rate, options):
        state = optim.init(name, params)
        for grads in GRADS:
            params, state = optim.step(name, params, grads, state, learning_rate=rate, **options)
        return params

    return jax.jit(run)(PARAMS, RATE, options)


def descend_own(transform):
    def run(params):
        state = transform.init(params)
        for grads in GRADS:
            updates, state = transform.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return jax.jit(run)(PARAMS)


def assert_same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.parametrize("name", optim.NAMES)
@pytest.mark.parametrize("l2", [0.0, DECAY])
@pytest.mark.parametrize("limit", [float("inf"), 0.5])
def test_equal_to_optax(name, l2, limit):
    own = OWN[name](l2)
    if limit < float("inf"):
        own = optax.chain(optax.clip_by_global_norm(limit), own)
    assert_same(descend(name, max_grad_norm=limit, l2=l2), descend_own(own))


def test_clipping_by_hand():
    grads = {"w": jnp.array([[3.0, 0.0], [0.0, 0.0]]), "b": jnp.array([0.0, 4.0])}  # norm 5
    clipped, _ = optim.step("sgd", PARAMS, grads, optim.init("sgd", PARAMS), learning_rate=1.0, max_grad_norm=1.0)
    np.testing.assert_allclose(clipped["w"] - PARAMS["w"], [[-0.6, 0], [0, 0]], rtol=1e-5)
    np.testing.assert_allclose(clipped["b"] - PARAMS["b"], [0, -0.8], rtol=1e-5)
    free, _ = optim.step("sgd", PARAMS, grads, optim.init("sgd", PARAMS), learning_rate=1.0, max_grad_norm=6.0)
    np.testing.assert_allclose(free["b"] - PARAMS["b"], [0, -4.0], rtol=1e-5)


def test_decay_is_decoupled_for_adamw_only():
    """With no gradient, adamw shrinks weights by rate · decay; adam turns the decay into a whole step of its own."""
    zero = jax.tree.map(jnp.zeros_like, PARAMS)
    moved = {name: optim.step(name, PARAMS, zero, optim.init(name, PARAMS), learning_rate=RATE, l2=DECAY)[0]
             for name in ("adam", "adamw", "sgd")}
    np.testing.assert_allclose(moved["adamw"]["w"], PARAMS["w"] * (1 - RATE * DECAY), rtol=1e-5)
    np.testing.assert_allclose(moved["sgd"]["w"], PARAMS["w"] * (1 - RATE * DECAY), rtol=1e-5)
    np.testing.assert_allclose(moved["adam"]["w"], PARAMS["w"] - RATE * np.sign(PARAMS["w"]), rtol=1e-3)


def test_a_new_rate_compiles_nothing():
    step = jax.jit(lambda p, g, s, rate, limit, l2: optim.step("adam", p, g, s, learning_rate=rate, max_grad_norm=limit, l2=l2))
    state = optim.init("adam", PARAMS)
    first, _ = step(PARAMS, GRADS[0], state, 0.1, 1.0, 0.0)
    compilations = Compilations()
    second, _ = step(PARAMS, GRADS[0], state, 0.2, 0.5, 0.01)
    assert compilations.count == 0
    assert not np.allclose(first["w"], second["w"])


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="optimiser 'adamm': expected one of adam, adamw, sgd, rmsprop"):
        optim.init("adamm", PARAMS)
