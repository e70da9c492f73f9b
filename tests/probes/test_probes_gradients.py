"""A2C, IMPALA and REINFORCE solve every probe that they can, on both paths; those without a baseline cannot see past a time limit."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algos.a2c import A2C
from shoal.algos.impala import IMPALA
from shoal.algos.reinforce import REINFORCE
from shoal.testing.probes import PLAIN, Kind, expected
from shoal.testing.solve import solve_probes

DISCOUNT = 0.8
COMMON = {"discount": DISCOUNT, "hidden": (16,), "init_scheme": "xavier", "entropy_coef": 0.0, "max_grad_norm": float("inf"),
          "learning_rate_schedule": "linear", "optimiser": "adam", "learning_rate": 2e-2, "num_steps": 16, "horizon": 16 * 8 * 150.0}
AGENTS = {
    "a2c": A2C(**COMMON),
    "impala": IMPALA(**COMMON),
    "baseline": REINFORCE(**COMMON),
    "reward_to_go": REINFORCE(**COMMON, weighting="reward_to_go"),
    "total": REINFORCE(**COMMON, weighting="total"),
}
SEEDS = {"fused": (0, 1), "ported": (2**40,)}


def value_of(state, obs):
    return state.critic(state.actor.features(obs))[:, 0]


@pytest.fixture(scope="module", params=[(path, name) for path in SEEDS for name in AGENTS], ids="-".join)
def solved(request):
    path, name = request.param
    return name, solve_probes(AGENTS[name], path, PLAIN, SEEDS[path], 150, value_fn=value_of)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda k: k.name.lower())
def test_probe_is_solved(solved, kind):
    name, answer = solved
    wanted = expected(kind, DISCOUNT)
    value, action = answer.value[kind, :, :len(wanted.value)], answer.action[kind, :, :len(wanted.value)]
    if kind is Kind.TRUNCATION and name in ("reward_to_go", "total"):
        # nothing to continue with: the mean of what is left of five rewards, all steps alike
        left = np.mean([(1 - DISCOUNT**n) / (1 - DISCOUNT) for n in range(1, 6)])
        np.testing.assert_allclose(value, np.full(value.shape, left), atol=0.35)
    else:
        np.testing.assert_allclose(value, np.broadcast_to(wanted.value, value.shape), rtol=0.05, atol=0.1)
    matters = wanted.action >= 0
    assert (action[:, matters] == wanted.action[matters]).all()
