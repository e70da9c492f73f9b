"""Exploration: shares of actions against exact probabilities, processes against their moments, and scales by number."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import explore

KEY = jax.random.key(0)
NUM = 40_000
VALUES = jnp.array([1.0, 3.0, 2.0, 3.0])


def shares(actions, num=4):
    return np.bincount(np.asarray(actions), minlength=num) / len(actions)


def close(got, wanted):
    """Within five standard deviations of a share of NUM draws; what cannot happen must not."""
    wanted = np.asarray(wanted)
    assert (np.abs(got - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / NUM) + 1e-9).all(), (got, wanted)


@pytest.mark.parametrize(("epsilon", "mask", "ties", "wanted"), [
    (0.0, None, False, [0, 1, 0, 0]),
    (0.4, None, False, [0.1, 0.7, 0.1, 0.1]),
    (0.4, None, True, [0.1, 0.4, 0.1, 0.4]),
    (1.0, None, False, [0.25] * 4),
    (0.3, [1, 0, 1, 0], False, [0.15, 0, 0.85, 0]),
    (0.3, [1, 1, 0, 1], True, [0.1, 0.45, 0, 0.45]),
    (0.3, [0, 0, 1, 0], False, [0, 0, 1, 0]),
    (0.3, [0, 0, 0, 0], False, [1, 0, 0, 0]),  # nothing is allowed: still a number
])
def test_epsilon_greedy(epsilon, mask, ties, wanted):
    values = jnp.broadcast_to(VALUES, (NUM, 4))
    mask = None if mask is None else jnp.broadcast_to(jnp.array(mask, jnp.int8), (NUM, 4))
    got = explore.epsilon_greedy(values, explore.coins(KEY, (NUM,)), epsilon, mask, random_ties=ties)
    assert got.dtype == jnp.int32
    close(shares(got), wanted)


def test_epsilon_is_data_of_each_row():
    noise = explore.coins(KEY, (NUM,))
    got = explore.epsilon_greedy(jnp.broadcast_to(VALUES, (NUM, 4)), noise, jnp.arange(NUM) % 2)
    assert (got[::2] == 1).all()
    close(shares(got[1::2]), [0.25] * 4)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 255])
def test_the_largest_draw_is_still_a_choice(count):
    draw = np.nextafter(np.float32(1), np.float32(0))
    choices = jnp.concatenate([jnp.zeros(1, bool), jnp.ones(count, bool), jnp.zeros(3, bool)])
    assert int(explore.pick(choices, draw)) == count and int(explore.pick(choices, np.float32(0))) == 1
    assert int(explore.epsilon_greedy(jnp.zeros(count), jnp.array([0.0, draw]), 1.0)) == count - 1


@pytest.mark.parametrize(("temperature", "mask"), [(0.7, None), (2.0, [1, 0, 1, 1]), (0.0, None), (0.0, [1, 0, 1, 0])])
def test_boltzmann(temperature, mask):
    noise = jax.random.gumbel(KEY, (NUM, 4))
    got = explore.boltzmann(jnp.broadcast_to(VALUES, (NUM, 4)), noise, temperature, None if mask is None else jnp.array(mask))
    allowed = np.ones(4) if mask is None else np.array(mask)
    if temperature:
        weight = allowed * np.exp(np.asarray(VALUES) / temperature)
        close(shares(got), weight / weight.sum())
    else:
        assert set(np.asarray(got).tolist()) == {1 if mask is None else 2}


def test_upper_confidence():
    values, counts = jnp.array([0.5, 0.4, 0.9]), jnp.array([10, 2, 8])
    bonus = [math.sqrt(math.log(20) / n) for n in (10, 2, 8)]  # 0.547, 1.224, 0.612
    for width in (0.1, 0.5, 0.9, 2.0):
        by_hand = np.argmax([v + width * b for v, b in zip([0.5, 0.4, 0.9], bonus, strict=True)])
        assert int(explore.upper_confidence(values, counts, width)) == by_hand
    assert {int(explore.upper_confidence(values, counts, w)) for w in (0.5, 0.9)} == {1, 2}  # 0.5 · 0.612 … lies between
    assert int(explore.upper_confidence(values, jnp.array([3, 0, 0]), 0.1)) == 1  # untried first
    assert int(explore.upper_confidence(values, jnp.array([3, 0, 1]), 0.1, jnp.array([1, 0, 1]))) == 2
    assert int(explore.upper_confidence(values, jnp.zeros(3, jnp.int32), 0.1)) == 0


def test_upper_confidence_finds_the_best_arm_and_leaves_the_others():
    means = jnp.array([0.1, 0.5, 0.9])

    def pull(carry, key):
        sums, counts = carry
        arm = explore.upper_confidence(sums / jnp.maximum(counts, 1), counts, 1.0)
        hit = jnp.arange(3) == arm
        return (sums + hit * (jax.random.uniform(key) < means[arm]), counts + hit), arm

    (_, counts), _ = jax.lax.scan(pull, (jnp.zeros(3), jnp.zeros(3, jnp.int32)), jax.random.split(KEY, 2000))
    assert int(counts.sum()) == 2000 and int(counts[2]) > 1850 and (counts[:2] > 2).all()


def test_lanes_explore_by_their_rank():
    rank = jnp.arange(8) / 8
    np.testing.assert_allclose(explore.lane_epsilon(rank, 0.4, 7.0), [0.4 ** (1 + 7 * i / 8) for i in range(8)], rtol=1e-5)
    np.testing.assert_allclose(explore.lane_epsilon(jnp.array([0.0, 1.0]), 0.4, 7.0), [0.4, 0.4**8], rtol=1e-5)  # the paper's ends


def test_gaussian_stays_in_the_box():
    got = explore.gaussian(jnp.array([0.0, 0.9, -2.0]), jnp.array([0.5, 3.0, -9.0]), 0.2, jnp.array([-1, -1, -2]), jnp.array([1, 1, 5]))
    np.testing.assert_allclose(got, [0.1, 1.0, -2.0], rtol=1e-6)


def test_ornstein_uhlenbeck_one_step_by_hand():
    got = explore.ornstein_uhlenbeck(jnp.float32(2.0), jnp.float32(-1.0), 0.5, 0.3, 1.0, 2.0)
    assert float(got) == pytest.approx(1 + math.exp(-1) - 0.3 * math.sqrt((1 - math.exp(-2)) / 1.0), rel=1e-5)
    free = explore.ornstein_uhlenbeck(jnp.float32(2.0), jnp.float32(1.0), 0.0, 0.3, 1.0, 4.0)  # no pull: a random walk
    assert float(free) == pytest.approx(2 + 0.3 * 2, rel=1e-5)


@pytest.mark.parametrize("interval", [0.1, 3.0])
def test_ornstein_uhlenbeck_has_its_variance_whatever_the_interval(interval):
    """An Euler step would be far off at 3."""
    theta, sigma, mean = 0.6, 0.4, -1.0
    noise = jax.random.normal(KEY, (200, 4000))
    step = lambda x, drawn: (explore.ornstein_uhlenbeck(x, drawn, theta, sigma, mean, interval),) * 2
    _, xs = jax.lax.scan(step, jnp.full(4000, mean), noise)
    xs = np.asarray(xs[-2:], np.float64)
    variance = sigma**2 / (2 * theta) * (1 - math.exp(-2 * theta * interval * 200))
    assert xs[1].mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / 4000))
    assert xs[1].var() == pytest.approx(variance, rel=0.12)
    assert np.corrcoef(xs)[0, 1] == pytest.approx(math.exp(-theta * interval), abs=0.06)


def test_perturbed_weights():
    weights = {"w": jnp.zeros((200, 100)), "b": jnp.full(300, 2.0)}
    noise = explore.normal_like(KEY, weights)
    moved = explore.perturb(weights, noise, 0.3)
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, weights)
    assert float(moved["w"].std()) == pytest.approx(0.3, rel=0.03) and float(moved["b"].mean()) == pytest.approx(2.0, abs=0.1)
    assert abs(float(jnp.corrcoef(noise["w"][0, :], noise["b"][:100])[0, 1])) < 0.4  # leaves do not share their noise
    np.testing.assert_array_equal(explore.perturb(weights, noise, 0.0)["b"], weights["b"])


def test_the_scale_follows_the_distance():
    scale = jnp.array([0.2, 0.2, 0.2])
    got = explore.adapt_scale(scale, jnp.array([0.05, 0.1, 0.2]), 0.1, 1.25)
    np.testing.assert_allclose(got, [0.25, 0.25, 0.16], rtol=1e-6)
    distance = 0.0  # a policy that moves by 3 times the scale: the scale settles where the distance is as wanted
    scale = jnp.float32(1.0)
    for _ in range(400):
        distance = 3 * scale
        scale = explore.adapt_scale(scale, distance, 0.6)
    assert float(distance) == pytest.approx(0.6, rel=0.02)


def test_distances():
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.25, 0.25])
    kl = (p * np.log(p / q)).sum()
    assert float(explore.values_distance(jnp.log(p) + 4, jnp.log(q) - 1)) == pytest.approx(kl, rel=1e-4)
    masked = explore.values_distance(jnp.array([0.0, 9.0, 0.0]), jnp.array([0.0, -9.0, math.log(3)]), jnp.array([1, 0, 1]))
    assert float(masked) == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), rel=1e-4)
    # ε-greedy against greedy: KL of a sure choice from a nearly sure one
    assert float(explore.epsilon_distance(0.2, 4)) == pytest.approx(-math.log(0.85), rel=1e-5)
    assert float(explore.action_distance(jnp.array([1.0, 2.0]), jnp.array([0.0, 4.0]))) == 2.5
