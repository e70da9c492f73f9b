"""V-trace against numbers worked out by hand and against its equations, summed term by term; and what it is at its limits."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import returns

INF = float("inf")
# four steps: 0 goes on, 1 is truncated, 2 terminates, 3 is where the chunk stops; ratios 2, 1/2, 4, 1
REWARD = jnp.array([1.0, 3.0, 3.0, 2.0])
ALIVE = jnp.array([1.0, 1.0, 0.0, 1.0])
LAST = jnp.array([False, True, True, False])
VALUE = jnp.array([1.0, 2.0, 1.0, 6.0])
NEXT_VALUE = jnp.array([2.0, 20.0, 100.0, 8.0])  # 100 lies beyond a termination: it must not count
RATIO = jnp.array([2.0, 0.5, 4.0, 1.0])
STEPS = (REWARD, ALIVE, LAST, VALUE, NEXT_VALUE)


def test_vtrace_by_hand():
    # errors: 1 + 2/2 - 1 = 1; 3 + 20/2 - 2 = 11; 3 - 1 = 2; 2 + 8/2 - 6 = 0. ρ: 2, 1/2, 3, 1; c: 1, 1/2, 1, 1
    # v - V: 3: 0; 2: 3·2 = 6, cut; 1: 11/2, cut; 0: 2·1 + 1/2·1·11/2 = 4.75. Advantages: 0 looks on to 11/2, the others do not
    out = returns.vtrace(*STEPS, jnp.log(RATIO), 0.5, 1.0, rho_bar=3.0, c_bar=1.0)
    np.testing.assert_allclose(out.target, [5.75, 7.5, 7.0, 6.0], rtol=1e-6)
    np.testing.assert_allclose(out.advantage, [1 + 0.5 * 5.5, 11.0, 2.0, 0.0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(out.ratio, [2.0, 0.5, 3.0, 1.0], rtol=1e-6)


def test_a_time_limit_differs_from_an_end_only_by_the_value_beyond():
    limited, ended = (returns.vtrace(REWARD, alive, LAST, VALUE, NEXT_VALUE, jnp.log(RATIO), 0.5, 1.0, rho_bar=3.0, c_bar=1.0)
                      for alive in (ALIVE, ALIVE.at[1].set(0.0)))
    np.testing.assert_allclose(limited.target - ended.target, [0.5 * 1 * 0.5 * 10, 0.5 * 10, 0, 0], atol=1e-6)
    np.testing.assert_allclose(limited.advantage - ended.advantage, [0.5 * 0.5 * 10, 10, 0, 0], atol=1e-6)


def equations(reward, alive, last, value, next_value, ratio, discount, trace, rho_bar, c_bar):
    """Espeholt et al. (2018), eq. 1 and section 4.2, of one column: every v_s as its sum over t, every product of c as a product."""
    num = len(reward)
    rho, c = [min(rho_bar, x) for x in ratio], [trace * min(c_bar, x) for x in ratio]
    target, advantage = [0.0] * num, [0.0] * num
    for s in range(num):
        target[s] = value[s]
        for t in range(s, num):
            error = rho[t] * (reward[t] + discount * alive[t] * next_value[t] - value[t])
            target[s] += discount ** (t - s) * math.prod(c[s:t]) * error
            if last[t]:
                break
    for s in range(num):
        goes_on = s + 1 < num and not last[s]
        after = trace * target[s + 1] + (1 - trace) * value[s + 1] if goes_on else alive[s] * next_value[s]
        advantage[s] = reward[s] + discount * after - value[s]
    return target, advantage, rho


def steps(shape, seed=0):
    """Random steps [T, ...] in which the successor is the next row unless an episode ends; and log-ratios."""
    draw = np.random.default_rng(seed)
    reward, value, beyond, log_ratio = (draw.normal(size=shape).astype(np.float32) for _ in range(4))
    terminated, truncated = draw.random(shape) < 0.15, draw.random(shape) < 0.15
    last, alive = terminated | truncated, (1.0 - terminated).astype(np.float32)
    next_value = np.where(last, beyond, np.concatenate([value[1:], beyond[-1:]]))
    return (reward, alive, last, value, next_value), log_ratio


@pytest.mark.parametrize(("trace", "rho_bar", "c_bar"), [(1.0, 1.0, 1.0), (1.0, INF, INF), (0.9, 2.0, 0.7), (0.0, 1.0, 1.0)])
@pytest.mark.parametrize("shape", [(1,), (23, 3), (9, 2, 2)])
def test_equal_to_the_equations_on_random_data(shape, trace, rho_bar, c_bar):
    given, log_ratio = steps(shape)
    out = jax.jit(returns.vtrace)(*given, log_ratio, 0.97, trace, rho_bar=rho_bar, c_bar=c_bar)
    columns = [np.asarray(x, np.float64).reshape(shape[0], -1) for x in (*given, np.exp(log_ratio))]
    wanted = np.array([equations(*(x[:, i] for x in columns), 0.97, trace, rho_bar, c_bar) for i in range(columns[0].shape[1])])
    for got, want in zip(out, np.moveaxis(wanted, 0, -1), strict=True):
        np.testing.assert_allclose(got, want.reshape(shape), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("trace", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("bars", [(1.0, 1.0), (5.0, INF)])
def test_with_one_policy_it_is_gae_and_the_lambda_return(trace, bars):
    given, log_ratio = steps((40, 3), seed=1)
    out = returns.vtrace(*given, 0 * log_ratio, 0.97, trace, rho_bar=bars[0], c_bar=bars[1])
    advantage = returns.gae(*given, 0.97, trace)
    np.testing.assert_allclose(out.advantage, advantage, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out.target, advantage + given[3], rtol=1e-5, atol=1e-5)
    if trace == 1.0:
        reward, alive, last, _, next_value = given
        whole = returns.discounted_returns(reward, alive, jnp.asarray(last), next_value, 0.97)
        np.testing.assert_allclose(out.target, whole, rtol=1e-4, atol=1e-5)


def test_the_bars_are_limits_from_above_only():
    given, log_ratio = steps((30, 4), seed=2)

    def made(log_ratio, rho_bar, c_bar):
        return returns.vtrace(*given, log_ratio, 0.97, 1.0, rho_bar=rho_bar, c_bar=c_bar)

    def apart(a, b):
        return float(np.abs(a.target - b.target).max())

    held = made(log_ratio, 1.0, 1.0)
    likelier = made(np.where(log_ratio > 0, log_ratio + 5.0, log_ratio), 1.0, 1.0)
    np.testing.assert_array_equal(held.target, likelier.target)  # above both bars, how far does not matter
    rarer = made(np.where(log_ratio < 0, log_ratio - 1.0, log_ratio), 1.0, 1.0)
    assert apart(held, rarer) > 0.1 and float(held.ratio.max()) == 1.0 > float(held.ratio.min())
    free = made(log_ratio, INF, INF)
    np.testing.assert_allclose(free.ratio, np.exp(log_ratio), rtol=1e-6)
    assert apart(held, made(log_ratio, INF, 1.0)) > 0.1 and apart(made(log_ratio, INF, 1.0), free) > 0.1


def test_nothing_counts_at_bars_of_nothing():
    given, log_ratio = steps((30, 4), seed=3)
    reward, alive, _, value, next_value = given
    stays = returns.vtrace(*given, log_ratio, 0.97, 1.0, rho_bar=0.0, c_bar=1.0)
    np.testing.assert_array_equal(stays.target, value)
    one_step = returns.vtrace(*given, log_ratio, 0.97, 1.0, rho_bar=1.0, c_bar=0.0)
    error = reward + 0.97 * alive * next_value - value
    np.testing.assert_allclose(one_step.target, value + np.minimum(np.exp(log_ratio), 1.0) * error, rtol=1e-5, atol=1e-5)
