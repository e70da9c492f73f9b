"""Distributions against closed forms, numerical integrals and frequencies."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import dists
from shoal.ops.dists import Categorical, Gaussian, SquashedGaussian
from shoal.specs import MultiBinary, MultiDiscrete

PROBS = np.array([0.5, 0.25, 0.2, 0.05])
LOGITS = jnp.asarray(np.log(PROBS) + 3.0, jnp.float32)  # not normalised
NUM = 40_000
CHI_SQUARE = {3: 21.1, 15: 44.3}  # degrees of freedom → exceeded once in 10,000


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    wanted = counts.sum() * probs
    return float(((counts - wanted) ** 2 / wanted).sum())


def normal_cdf(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def test_categorical_closed_forms():
    dist = Categorical(LOGITS)
    np.testing.assert_allclose([dist.log_prob(jnp.array(i)) for i in range(4)], np.log(PROBS), rtol=1e-5)
    assert float(dist.entropy()) == pytest.approx(-(PROBS * np.log(PROBS)).sum(), rel=1e-5)
    rows = Categorical(jnp.stack([LOGITS, jnp.zeros(4)]))
    np.testing.assert_allclose(rows.log_prob(jnp.array([3, 3])), np.log([0.05, 0.25]), rtol=1e-5)
    np.testing.assert_allclose(rows.entropy()[1], math.log(4), rtol=1e-6)


def test_categorical_frequencies():
    noise = Categorical.noise(jax.random.key(0), (NUM,), 4)
    assert noise.shape == (NUM, 4)
    drawn = Categorical(LOGITS).sample(noise, jnp.ones(NUM))
    assert drawn.dtype == jnp.int32
    assert chi_square(np.bincount(drawn, minlength=4), PROBS) < CHI_SQUARE[3]
    assert chi_square(np.bincount(drawn, minlength=4), np.array([0.25, 0.5, 0.2, 0.05])) > CHI_SQUARE[3]


def test_categorical_greedy_is_the_mode_row_by_row():
    noise = Categorical.noise(jax.random.key(1), (1000,), 4)
    explore = jnp.arange(1000) % 2.0
    drawn = np.asarray(Categorical(LOGITS).sample(noise, explore))
    assert (drawn[::2] == 0).all() and len(set(drawn[1::2])) == 4


def test_masked_choices_have_no_probability_and_are_never_drawn():
    dist = Categorical(LOGITS).masked(jnp.array([0.0, 1.0, 0.0, 1.0]))
    drawn = dist.sample(Categorical.noise(jax.random.key(2), (NUM,), 4), jnp.ones(NUM))
    counts = np.bincount(drawn, minlength=4)
    assert counts[0] == counts[2] == 0
    left = np.array([0.25, 0.05]) / 0.3
    assert chi_square(counts[[1, 3]], left) < CHI_SQUARE[3]
    probs = np.exp([dist.log_prob(jnp.array(i)) for i in range(4)])
    np.testing.assert_allclose(probs, [0, left[0], 0, left[1]], rtol=1e-5)
    assert float(dist.entropy()) == pytest.approx(-(left * np.log(left)).sum(), rel=1e-5)
    assert int(dist.sample(jnp.zeros(4), jnp.zeros(()))) == 1  # the likeliest of those left
    nothing = Categorical(LOGITS).masked(jnp.zeros(4))
    assert np.isfinite(nothing.log_prob(jnp.array(0))) and np.isfinite(nothing.entropy())


def test_gaussian_closed_forms():
    dist = Gaussian(jnp.array([1.0, -2.0]), jnp.log(jnp.array([0.5, 2.0])))
    action = np.array([1.3, 0.4])
    z = (action - [1.0, -2.0]) / [0.5, 2.0]
    by_hand = (-0.5 * z**2).sum() - math.log(0.5 * 2.0) - math.log(2 * math.pi)
    assert float(dist.log_prob(jnp.asarray(action))) == pytest.approx(by_hand, rel=1e-5)
    assert float(dist.entropy()) == pytest.approx(math.log(0.5 * 2.0) + math.log(2 * math.pi * math.e), rel=1e-5)
    np.testing.assert_allclose(dist.sample(jnp.array([9.0, 9.0]), jnp.zeros(())), [1.0, -2.0])  # greedy: the mean
    np.testing.assert_allclose(dist.sample(jnp.array([2.0, -1.0]), jnp.ones(())), [2.0, -4.0], rtol=1e-6)
    rows = Gaussian(jnp.zeros((3, 2)), jnp.zeros(2))  # one spread for all rows
    assert rows.entropy().shape == (3,) and rows.log_prob(jnp.zeros((3, 2))).shape == (3,)


def test_gaussian_integrates_to_one_and_its_entropy_is_the_integral():
    dist = Gaussian(jnp.array([0.3]), jnp.array([-0.4]))
    x = np.linspace(-9, 9, 20_001)
    log_prob = np.asarray(dist.log_prob(jnp.asarray(x[:, None], jnp.float32)), np.float64)
    assert np.trapezoid(np.exp(log_prob), x) == pytest.approx(1.0, rel=1e-4)
    assert -np.trapezoid(np.exp(log_prob) * log_prob, x) == pytest.approx(float(dist.entropy()[()]), rel=1e-4)


def test_gaussian_frequencies():
    noise = Gaussian.noise(jax.random.key(3), (NUM,), 1)
    drawn = np.asarray(Gaussian(jnp.array([1.0]), jnp.log(jnp.array([0.5]))).sample(noise, jnp.ones(NUM)))[:, 0]
    edges = np.linspace(-0.2, 2.2, 15)
    counts = np.histogram(drawn, [-np.inf, *edges, np.inf])[0]
    cdf = np.array([0.0, *(normal_cdf((e - 1.0) / 0.5) for e in edges), 1.0])
    assert chi_square(counts, np.diff(cdf)) < CHI_SQUARE[15]


def test_squashed_gaussian_is_the_change_of_variables():
    mean, log_std = jnp.array([0.4, -1.0]), jnp.array([-0.5, 0.2])
    dist = SquashedGaussian(mean, log_std)
    action = jnp.array([[0.1, -0.6], [0.9, 0.95], [-0.999, 0.0]])
    raw = np.arctanh(np.asarray(action, np.float64))
    z = (raw - np.asarray(mean)) / np.exp(np.asarray(log_std))
    normal = (-0.5 * z**2 - np.asarray(log_std) - 0.5 * math.log(2 * math.pi)).sum(1)
    by_hand = normal - np.log(1 - np.asarray(action, np.float64) ** 2).sum(1)
    np.testing.assert_allclose(dist.log_prob(action), by_hand, rtol=1e-3)
    assert np.isfinite(dist.log_prob(jnp.array([1.0, -1.0])))
    np.testing.assert_allclose(dist.sample(jnp.ones(2), jnp.zeros(())), np.tanh([0.4, -1.0]), rtol=1e-6)  # greedy
    pushed = np.tanh(np.array([0.4, -1.0]) + np.exp([-0.5, 0.2]))
    np.testing.assert_allclose(dist.sample(jnp.ones(2), jnp.ones(())), pushed, rtol=1e-5)
    assert float(dist.entropy()) == pytest.approx(float(Gaussian(mean, log_std).entropy()))  # as documented


def test_squashed_gaussian_integrates_to_one_and_frequencies():
    dist = SquashedGaussian(jnp.array([0.3]), jnp.array([-0.5]))
    x = np.linspace(-0.9999, 0.9999, 20_001)
    density = np.exp(np.asarray(dist.log_prob(jnp.asarray(x[:, None], jnp.float32)), np.float64))
    assert np.trapezoid(density, x) == pytest.approx(1.0, rel=2e-3)
    drawn = np.asarray(dist.sample(SquashedGaussian.noise(jax.random.key(4), (NUM,), 1), jnp.ones(NUM)))[:, 0]
    edges = np.linspace(-0.6, 0.8, 15)
    cdf = np.array([0.0, *(normal_cdf((math.atanh(e) - 0.3) / math.exp(-0.5)) for e in edges), 1.0])
    assert chi_square(np.histogram(drawn, [-np.inf, *edges, np.inf])[0], np.diff(cdf)) < CHI_SQUARE[15]


def test_several_choices_are_independent():
    """Against every combination listed: probabilities sum to one, entropies add up, frequencies agree."""
    logits = jnp.array([0.5, -1.0, 2.0, 0.0, 0.3])
    dist = dists.MultiCategorical(logits, (2, 3))
    every = jnp.array([(a, b) for a in range(2) for b in range(3)])
    probability = np.exp(jax.vmap(dist.log_prob)(every))
    first, second = jax.nn.softmax(logits[:2]), jax.nn.softmax(logits[2:])
    np.testing.assert_allclose(probability, [float(first[a] * second[b]) for a, b in every.tolist()], rtol=1e-5)
    assert float(dist.entropy()) == pytest.approx(-(probability * np.log(probability)).sum(), rel=1e-5)
    noise = dists.noise(MultiDiscrete((2, 3)), jax.random.key(1), (20_000,))
    drawn = np.asarray(dists.MultiCategorical(jnp.broadcast_to(logits, (20_000, 5)), (2, 3)).sample(noise, jnp.ones(20_000)))
    seen = [(drawn == combination).all(1).mean() for combination in every.tolist()]
    np.testing.assert_allclose(seen, probability, atol=0.012)
    assert dist.sample(noise[0], jnp.zeros(())).tolist() == [0, 0]  # the mode


def test_a_mask_covers_all_parts_of_a_choice():
    dist = dists.MultiCategorical(jnp.zeros((1, 5)), (2, 3)).masked(jnp.array([[0, 1, 1, 0, 0]]))
    assert dist.sample(jnp.zeros((1, 5)), jnp.zeros(1)).tolist() == [[1, 0]]
    assert float(dist.log_prob(jnp.array([[1, 0]]))[0]) == pytest.approx(0.0, abs=1e-6)


def test_switches():
    logits = jnp.array([0.7, -1.2, 0.0])
    dist, on = dists.Bernoulli(logits), np.asarray(jax.nn.sigmoid(logits))
    every = jnp.array(list(np.ndindex(2, 2, 2)))
    probability = np.exp(jax.vmap(dist.log_prob)(every))
    np.testing.assert_allclose(probability, [np.prod(np.where(row, on, 1 - on)) for row in np.asarray(every)], rtol=1e-5)
    assert float(dist.entropy()) == pytest.approx(-(probability * np.log(probability)).sum(), rel=1e-5)
    noise = dists.noise(MultiBinary(3), jax.random.key(2), (20_000,))
    drawn = dists.Bernoulli(jnp.broadcast_to(logits, (20_000, 3))).sample(noise, jnp.ones(20_000))
    np.testing.assert_allclose(np.asarray(drawn).mean(0), on, atol=0.012)
    assert drawn.dtype == jnp.int32 and dist.sample(noise[0], jnp.zeros(())).tolist() == [1, 0, 0]


def test_state_dependent_noise_is_a_kept_function_of_the_state():
    """Its spread over functions is the normal's of log_prob; with one function, the same state gives the same noise."""
    latent, log_std = jnp.array([0.5, -1.0, 2.0]), jnp.array([[0.1, -0.4], [-0.2, 0.3], [-1.0, 0.0]])
    noise = dists.StateDependent.noise(jax.random.key(0), (20_000, 1), 1)
    many = dists.StateDependent(jnp.zeros((20_000, 1, 2)), log_std, jnp.broadcast_to(latent, (20_000, 1, 3)))
    drawn = np.asarray(many.sample(noise, jnp.ones((20_000, 1))))[:, 0]
    std = np.sqrt(np.asarray(latent) ** 2 @ np.exp(2 * np.asarray(log_std)))
    np.testing.assert_allclose(drawn.std(0), std, rtol=0.02)
    np.testing.assert_allclose(drawn.mean(0), 0, atol=0.05)
    dist, action = dists.StateDependent(jnp.zeros(2), log_std, latent), jnp.array([0.3, -0.8])
    wanted = dists.Gaussian(jnp.zeros(2), jnp.log(jnp.asarray(std)))
    assert float(dist.log_prob(action)) == pytest.approx(float(wanted.log_prob(action)), rel=1e-4)
    assert float(dist.entropy()) == pytest.approx(float(wanted.entropy()), rel=1e-4)
    kept = np.asarray(dists.StateDependent.noise(jax.random.key(0), (10, 4), 3))
    assert (kept[0] == kept[2]).all() and (kept[9] != kept[6]).any() and (kept[2] != kept[3]).any()
    assert len({tuple(k) for k in kept[0]}) == 4
    whole = np.asarray(dists.StateDependent.noise(jax.random.key(0), (10, 4), 0))
    assert (whole == whole[0]).all()
    assert dist.sample(jnp.asarray(kept[0, 0]), jnp.zeros(())).tolist() == [0.0, 0.0]  # greedy: none
