"""Returns and advantages against numbers worked out by hand, with an end and a time limit in the middle of the chunk."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import returns

# five steps: 0 goes on, 1 terminates, 2 is truncated, 3 goes on, 4 is where the chunk stops
REWARD = jnp.array([1.0, 3.0, 3.0, 4.0, 2.0])
ALIVE = jnp.array([1.0, 0.0, 1.0, 1.0, 1.0])
LAST = jnp.array([False, True, True, False, False])
VALUE = jnp.array([1.0, 2.0, 3.0, 4.0, 6.0])
NEXT_VALUE = jnp.array([2.0, 100.0, 20.0, 6.0, 8.0])  # 100 lies beyond a termination: it must not count


def test_discounted_returns_by_hand():
    # 4: 2 + 8/2 = 6; 3: 4 + 6/2 = 7; 2: 3 + 20/2 = 13 (its true successor's value); 1: 3; 0: 1 + 3/2 = 2.5
    out = returns.discounted_returns(REWARD, ALIVE, LAST, NEXT_VALUE, 0.5)
    np.testing.assert_allclose(out, [2.5, 3.0, 13.0, 7.0, 6.0], rtol=1e-6)


def test_gae_by_hand():
    # errors: 1 + 2/2 - 1 = 1; 3 - 2 = 1; 3 + 20/2 - 3 = 10; 4 + 6/2 - 4 = 3; 2 + 8/2 - 6 = 0; carried on with 1/4
    out = returns.gae(REWARD, ALIVE, LAST, VALUE, NEXT_VALUE, 0.5, 0.5)
    np.testing.assert_allclose(out, [1.25, 1.0, 10.0, 3.0, 0.0], atol=1e-6)


def test_gae_at_a_time_limit_differs_from_an_end_only_by_the_value_beyond():
    ended = returns.gae(REWARD, ALIVE.at[2].set(0.0), LAST, VALUE, NEXT_VALUE, 0.5, 0.5)
    limited = returns.gae(REWARD, ALIVE, LAST, VALUE, NEXT_VALUE, 0.5, 0.5)
    np.testing.assert_allclose(limited - ended, [0, 0, 0.5 * 20.0, 0, 0], atol=1e-6)


def test_gae_with_full_trace_is_return_less_value_and_with_none_the_error():
    full = returns.gae(REWARD, ALIVE, LAST, VALUE, NEXT_VALUE.at[0].set(VALUE[1]).at[3].set(VALUE[4]), 0.9, 1.0)
    whole = returns.discounted_returns(REWARD, ALIVE, LAST, NEXT_VALUE, 0.9)
    np.testing.assert_allclose(full, whole - VALUE, rtol=1e-5, atol=1e-5)
    none = returns.gae(REWARD, ALIVE, LAST, VALUE, NEXT_VALUE, 0.9, 0.0)
    np.testing.assert_allclose(none, REWARD + 0.9 * ALIVE * NEXT_VALUE - VALUE, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1,), (37, 3), (16, 2, 2)])
def test_equal_to_the_backward_loop_on_random_data(shape):
    draw = np.random.default_rng(0)
    reward, value, next_value = (draw.normal(size=shape) for _ in range(3))
    terminated, truncated = draw.random(shape) < 0.15, draw.random(shape) < 0.15
    last, alive = terminated | truncated, 1.0 - terminated
    advantage, total = np.zeros(shape), np.zeros(shape)
    later, later_total = np.zeros(shape[1:]), None
    for t in reversed(range(shape[0])):
        later = reward[t] + 0.97 * alive[t] * next_value[t] - value[t] + 0.97 * 0.9 * (1 - last[t]) * later
        beyond = next_value[t] if later_total is None else np.where(last[t], next_value[t], later_total)
        later_total = reward[t] + 0.97 * alive[t] * beyond
        advantage[t], total[t] = later, later_total
    args = [jnp.asarray(x, jnp.float32) for x in (reward, alive)] + [jnp.asarray(last)]
    values = [jnp.asarray(x, jnp.float32) for x in (value, next_value)]
    np.testing.assert_allclose(jax.jit(returns.gae)(*args, *values, 0.97, 0.9), advantage, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(jax.jit(returns.discounted_returns)(*args, values[1], 0.97), total, rtol=2e-5, atol=2e-5)


def test_explained_variance():
    target, ones = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.ones(4)
    assert float(returns.explained_variance(target, target, ones)) == pytest.approx(1.0)
    assert float(returns.explained_variance(jnp.full(4, 2.5), target, ones)) == pytest.approx(0.0, abs=1e-6)
    assert float(returns.explained_variance(target + 7.0, target, ones)) == pytest.approx(1.0)  # an offset is no variance
    # errors 0, 0, 0, 4 have variance 3; targets 1.25
    assert float(returns.explained_variance(target.at[3].set(0.0), target, ones)) == pytest.approx(1 - 3 / 1.25)
    # the wrong row does not count
    assert float(returns.explained_variance(target.at[3].set(0.0), target, ones.at[3].set(0.0))) == pytest.approx(1.0)
    # weight 2 is the row twice: errors 0, 0, 4, 4 (mean 2, variance 4); targets 1, 2, 4, 4 (variance 1.6875)
    weight = jnp.array([1.0, 1.0, 0.0, 2.0])
    assert float(returns.explained_variance(target.at[3].set(0.0), target, weight)) == pytest.approx(1 - 4 / 1.6875)
