"""The rigged bandit: what its arms pay, compiled and as a model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.build import _construct
from shoal.envs.rigged_bandit import RiggedBandit
from shoal.errors import ConfigError
from shoal.specs import Discrete
from shoal.testing.check_env import check_env

KEYS = jax.random.split(jax.random.key(0), 20_000)


@jax.jit
def pulls(env):
    """Every key with each arm: [2, K]."""
    state, _ = env.reset(KEYS[0])
    return jax.vmap(lambda arm: jax.vmap(lambda key: env.step(state, arm, key)[1])(KEYS))(jnp.arange(2))


@pytest.mark.parametrize(("options", "means"), [
    ({}, (0.2, 0.8)), ({"good_arm": 0}, (0.8, 0.2)), ({"probability": 0.6}, (0.4, 0.6)), ({"probability": 1.0}, (0.0, 1.0)),
])
def test_arms_pay_as_often_as_the_model_says(options, means):
    env = RiggedBandit(**options)
    step = pulls(env)
    assert set(np.unique(step.reward)) <= {0.0, 1.0}
    np.testing.assert_allclose(np.mean(step.reward, 1), means, atol=0.015)  # five standard deviations
    assert step.terminated.all() and not step.truncated.any() and not step.obs.any()
    model = env.model()
    chance = np.diff(model.chance, axis=-1, prepend=0.0)
    np.testing.assert_allclose((chance * model.reward).sum(-1), [means], atol=1e-12)
    assert env.optimum == max(means)


def test_the_model_is_one_state_and_one_step():
    model = RiggedBandit().model()
    assert {name: field.dtype for name, field in model._asdict().items() if isinstance(field, np.ndarray)} == {
        "chance": np.float64, "after": np.int64, "reward": np.float64, "over": np.uint8, "start_chance": np.float64,
        "start": np.int64, "row": np.int64}
    assert model.chance.shape == model.after.shape == model.reward.shape == model.over.shape == (1, 2, 2)
    assert (model.chance[..., -1] == 1).all() and model.over.all() and not model.after.any()
    assert (model.start_chance, model.start, model.row, model.num_rows, model.legal, model.limit) == ([1.0], [0], [0], 1, None, 0)


def test_it_conforms():
    wrong = [finding for finding in check_env(RiggedBandit()) if not finding.ok]
    assert not wrong, wrong
    assert RiggedBandit().spec.obs == Discrete(1) and RiggedBandit().spec.action == Discrete(2)


@pytest.mark.parametrize(("option", "value"), [("probability", 0.4), ("probability", 1.1), ("good_arm", 2), ("good_arm", -1)])
def test_settings_out_of_range(option, value):
    with pytest.raises(ConfigError, match=f"{option} = {value}: env 'rigged_bandit' expects a number from"):
        _construct("rigged_bandit", RiggedBandit, {option: value})
