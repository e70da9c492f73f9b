"""PPO solves every probe, on both paths, for several seeds; the tolerances would catch a value that collapses at a time limit."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algos.ppo import PPO
from shoal.testing.probes import PLAIN, TARGET, ContinuousProbe, Kind, Probe, expected
from shoal.testing.solve import solve_probes

DISCOUNT = 0.8  # V = 5 under the time limit; 2.4 if its end were taken for a termination (seen)
AGENT = PPO(num_steps=16, num_epochs=4, num_minibatches=2, learning_rate=1e-2, learning_rate_schedule="linear",
            horizon=16 * 8 * 40.0, discount=DISCOUNT, hidden=(16,), init_scheme="xavier", entropy_coef=0.0,
            max_grad_norm=float("inf"), log_std=-0.5)
SEEDS = {"fused": (0, 1, 2, 3), "ported": (0, 2**40)}
ITERATIONS = 40


def value_of(state, obs):
    return state.critic(state.actor.features(obs))[:, 0]


@pytest.fixture(scope="module", params=[(path, world) for path in ("fused", "ported") for world in (Probe, ContinuousProbe)],
                ids=lambda p: f"{p[0]}-{p[1].__name__}")
def solved(request):
    path, world = request.param
    answer = solve_probes(AGENT, path, PLAIN, SEEDS[path], ITERATIONS, value_fn=value_of, env_fn=world)
    assert answer.value.shape == (len(PLAIN), len(SEEDS[path]), 2)
    return world, answer


@pytest.mark.parametrize("kind", PLAIN, ids=lambda k: k.name.lower())
def test_probe_is_solved(solved, kind):
    world, answer = solved
    wanted = expected(kind, DISCOUNT)
    rows = len(wanted.value)
    value, action = answer.value[kind, :, :rows], answer.action[kind, :, :rows]
    np.testing.assert_allclose(value, np.broadcast_to(wanted.value, value.shape), rtol=0.05, atol=0.1)
    if world is Probe:
        matters = wanted.action >= 0
        assert (action[:, matters] == wanted.action[matters]).all()
    else:
        matters = ~np.isnan(wanted.level)
        assert np.abs(action[:, matters, 0] - wanted.level[matters]).max(initial=0.0) < 0.15


def test_tolerances_are_narrower_than_the_mistakes():
    """Truncation taken for an end gives V = 1 + 0.8·γ·V, a delayed reward not discounted 1; one action for both is far off."""
    collapsed, right = 1 / (1 - 0.8 * DISCOUNT), expected(Kind.TRUNCATION, DISCOUNT).value[0]
    assert right - collapsed > 4 * (0.1 + 0.05 * right)  # one-step; with traces it falls further
    assert abs(1 - expected(Kind.DELAYED, DISCOUNT).value[0]) > 0.1 + 0.05 * DISCOUNT
    assert TARGET > 2 * 0.15
