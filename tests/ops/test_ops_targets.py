"""One-step targets against numbers worked out by hand: who chooses, what is allowed, and that nothing counts beyond an end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import dists, returns

REWARD, ALIVE = jnp.array([1.0, 1.0, 2.0, 3.0]), jnp.array([1.0, 0.0, 1.0, 1.0])
NEXT = jnp.array([[1.0, 5.0, 3.0], [9.0, 9.0, 9.0], [-4.0, -2.0, -3.0], [7.0, 8.0, 9.0]])
CHOOSER = jnp.array([[6.0, 5.0, 1.0], [0.0, 0.0, 1.0], [0.0, 1.0, 9.0], [1.0, 2.0, 3.0]])
MASK = jnp.array([[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]], jnp.int8)


def test_q_target():
    np.testing.assert_allclose(returns.q_target(REWARD, ALIVE, NEXT, 0.5), [3.5, 1.0, 1.0, 7.5])
    # masked actions are never chosen, however good; a successor in which nothing is allowed is worth nothing
    np.testing.assert_allclose(returns.q_target(REWARD, ALIVE, NEXT, 0.5, MASK), [2.5, 1.0, 0.0, 3.0])


def test_double_q_target():
    np.testing.assert_allclose(returns.double_q_target(REWARD, ALIVE, NEXT, CHOOSER, 0.5), [1.5, 1.0, 0.5, 7.5])
    np.testing.assert_allclose(returns.double_q_target(REWARD, ALIVE, NEXT, CHOOSER, 0.5, MASK), [1.5, 1.0, 0.0, 3.0])
    plain = returns.q_target(REWARD, ALIVE, NEXT, 0.5, MASK)
    np.testing.assert_allclose(returns.double_q_target(REWARD, ALIVE, NEXT, NEXT, 0.5, MASK), plain)


def test_chosen_and_its_gradient():
    action = jnp.array([2, 0, 1, 1])
    assert returns.chosen(NEXT, action).tolist() == [3, 9, -2, 8]
    slope = jax.jit(jax.grad(lambda values: (returns.chosen(values, action) * jnp.arange(1.0, 5.0)).sum()))(NEXT)
    assert slope.tolist() == [[0, 0, 1], [2, 0, 0], [0, 3, 0], [0, 4, 0]]
    many = jax.random.normal(jax.random.key(0), (5, 12))  # more actions than are compared in line
    mask = jnp.arange(12) % 3 == 1
    assert returns.best_action(many, jnp.broadcast_to(mask, (5, 12))).tolist() == np.where(mask, many, -np.inf).argmax(1).tolist()
    assert returns.best_value(many).tolist() == many.max(1).tolist()


def test_quantile_target():
    quantiles = jnp.stack([NEXT - 1.0, NEXT + 3.0], axis=-1)  # [4, A, 2]
    got = returns.quantile_target(REWARD, ALIVE, quantiles, quantiles.mean(-1), 0.5)
    np.testing.assert_allclose(got, [[3.0, 5.0], [1.0, 1.0], [0.5, 2.5], [7.0, 9.0]])
    got = returns.quantile_target(REWARD, ALIVE, quantiles, CHOOSER, 0.5, MASK)
    np.testing.assert_allclose(got, [[1.0, 3.0], [1.0, 1.0], [-0.5, 1.5], [3.0, 3.0]])


def test_soft_targets():
    got = returns.soft_q_target(REWARD, ALIVE, jnp.array([2.0, 100.0, 4.0, 0.0]), jnp.array([-1.0, -1.0, 2.0, -2.0]), 0.5, 0.5)
    np.testing.assert_allclose(got, [1 + 0.5 * 2.5, 1.0, 2 + 0.5 * 3.0, 3 + 0.5 * 1.0])


def test_soft_value_is_the_expectation_of_what_is_sampled():
    probs, values = np.array([0.5, 0.3, 0.2]), np.array([1.0, -2.0, 4.0])
    by_hand = (probs * values).sum() - 0.7 * (probs * np.log(probs)).sum()
    assert float(returns.soft_value(jnp.log(probs), jnp.asarray(values), 0.7)) == pytest.approx(by_hand, rel=1e-5)
    # the best policy for given values is their softmax, and its soft value α log Σ exp(Q / α)
    logits = jnp.asarray(values) / 0.7
    best = returns.soft_value(jax.nn.log_softmax(logits), jnp.asarray(values), 0.7)
    assert float(best) == pytest.approx(0.7 * np.log(np.exp(values / 0.7).sum()), rel=1e-5) and float(best) > by_hand
    slope = jax.grad(lambda x: returns.soft_value(jax.nn.log_softmax(x), jnp.asarray(values), 0.7))(logits)
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)


def test_a_masked_choice_has_no_part_in_the_soft_value():
    logits, values = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 50.0, 2.0])
    masked = dists.Categorical(logits).masked(jnp.array([1, 0, 1])).logits
    value, slope = jax.value_and_grad(lambda x: returns.soft_value(jax.nn.log_softmax(x), values, 0.7))(masked)
    apart = returns.soft_value(jax.nn.log_softmax(logits[::2]), values[::2], 0.7)
    assert float(value) == pytest.approx(float(apart), rel=1e-5) and float(slope[1]) == 0 and np.isfinite(slope).all()


def test_smoothed_action():
    action, noise = jnp.array([0.0, 0.0, 0.9, -0.95]), jnp.array([1.0, 9.0, 9.0, -1.0])
    np.testing.assert_allclose(returns.smoothed_action(action, noise, 0.2, 0.5, -1.0, 1.0), [0.2, 0.5, 1.0, -1.0], rtol=1e-6)
