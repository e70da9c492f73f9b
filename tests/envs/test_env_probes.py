"""The probe environments themselves, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.specs import Box
from shoal.testing.probes import PLAIN, TARGET, ContinuousProbe, Kind, Probe, expected

KEY = jax.random.key(0)
STEPS = 6


@jax.jit
def play(env, action, key=KEY):
    """Observations [7], rewards, terminated, truncated [6] of one action repeated, past the end."""
    state, first = env.reset(key)

    def one(state, _):
        state, step = env.step(state, action, key)
        return state, (step.obs, step.reward, step.terminated, step.truncated)

    _, (obs, reward, terminated, truncated) = jax.lax.scan(one, state, length=STEPS)
    return jnp.concatenate([first[None], obs]), reward, terminated, truncated


def test_one_program_serves_all_kinds():
    compiled = jax.jit(jax.vmap(lambda kind: play(Probe(kind), jnp.int32(1))))
    obs, reward, terminated, truncated = (np.asarray(x) for x in compiled(jnp.arange(6)))
    sign = obs[1, 0, 0]
    assert abs(sign) == 1 and (obs[..., 1] == 0).all()
    assert obs[0, :2, 0].tolist() == [0, 0] and obs[2, :2, 0].tolist() == [0, 1] and (obs[5] == 0).all()
    assert obs[3, 0, 0] == 0 and obs[4, 0, 0] == sign
    assert reward[[0, 1, 3, 4], 0].tolist() == [1, sign, 1, sign]
    assert reward[2, :2].tolist() == [0, 1] and (reward[5] == 1).all()
    assert terminated[[0, 1, 3, 4], 0].all() and terminated[2, :2].tolist() == [False, True]
    assert not terminated[5].any() and truncated[5, :5].tolist() == [False] * 4 + [True] and not truncated[:5].any()


def test_rewards_follow_actions():
    for kind, action, sign, reward in ((3, 0, 1, -1), (3, 1, 1, 1), (4, 0, -1, 1), (4, 1, -1, -1), (4, 1, 1, 1), (4, 0, 1, -1)):
        state, _ = Probe(jnp.int32(kind)).reset(KEY)
        _, step = Probe(jnp.int32(kind)).step(state._replace(sign=jnp.float32(sign)), jnp.int32(action), KEY)
        assert float(step.reward) == reward and step.reward.dtype == jnp.float32 and bool(step.terminated)


def test_signs_are_even():
    _, obs = jax.vmap(Probe(jnp.int32(1)).reset)(jax.random.split(KEY, 4000))
    assert set(np.unique(obs[:, 0])) == {-1.0, 1.0} and abs(float(obs[:, 0].mean())) < 0.08


def test_continuous_twin():
    assert ContinuousProbe().spec.action == Box((1,), -1.0, 1.0) and ContinuousProbe().spec.obs == Probe().spec.obs
    cases = ((3, 0.5, 1, 1.0), (3, 0.0, -1, 0.75), (4, -0.5, -1, 1.0), (4, 0.5, -1, 0.0), (3, 9.0, 1, 0.75), (0, 0.3, 1, 1.0),
             (1, 0.3, -1, -1.0))
    for kind, action, sign, reward in cases:
        env = ContinuousProbe(jnp.int32(kind))
        state, _ = env.reset(KEY)
        _, step = env.step(state._replace(sign=jnp.float32(sign)), jnp.array([action], jnp.float32), KEY)
        assert float(step.reward) == pytest.approx(reward)
    obs, reward, terminated, truncated = jax.jit(jax.vmap(lambda k: play(ContinuousProbe(k), jnp.zeros(1))))(jnp.arange(6))
    assert truncated[5, 4] and not terminated[5].any() and reward[2, :2].tolist() == [0, 1]


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("continuous", [False, True])
def test_expected_values_are_what_play_returns(kind, continuous):
    """The greedy actions, played from each observation asked about, return the stated value."""
    discount, answer = 0.9, expected(kind, 0.9)
    for key in jax.random.split(KEY, 6):
        env = (ContinuousProbe if continuous else Probe)(jnp.int32(kind))
        _, first = env.reset(key)
        row = int(np.flatnonzero((answer.obs == np.asarray(first)).all(1))[0])
        action = jnp.array([np.nan_to_num(answer.level[row])]) if continuous else jnp.maximum(answer.action[row], 0)
        obs, reward, terminated, truncated = (np.asarray(x) for x in play(env, action, key))
        length = int(np.flatnonzero(terminated | truncated)[0]) + 1
        value = sum(discount**t * reward[t] for t in range(length))
        if truncated[length - 1]:
            value += discount**length * answer.value[row]  # what lies beyond the limit counts
        assert value == pytest.approx(answer.value[row], rel=1e-5)
        if kind == Kind.DELAYED:
            assert (answer.obs[1] == obs[1]).all() and answer.value[1] == reward[1]
    assert expected(Kind.BOTH, discount).level.tolist() == [-TARGET, TARGET]
