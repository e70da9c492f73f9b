"""SAC (continuous, choices, state-dependent noise), TD3 and DDPG solve every probe from replay, on both paths."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.ddpg import DDPG
from shoal.algos.sac import SAC
from shoal.algos.td3 import TD3
from shoal.specs import Discrete
from shoal.testing.probes import PLAIN, ContinuousProbe, Kind, Probe, expected
from shoal.testing.solve import solve_probes

DISCOUNT, ITERATIONS = 0.8, 40
COMMON = {"num_steps": 8, "capacity": 512, "start_size": 64, "batch_size": 32, "update_every": 2, "hidden": (16,), "learning_rate": 1e-2,
          "learning_rate_schedule": "linear", "horizon": 64.0 * ITERATIONS, "discount": DISCOUNT, "tau": 0.05, "activation": "tanh"}
SOFT = {"temperature": 0.1}
AGENTS = {
    "sac": (SAC(**COMMON, **SOFT), ContinuousProbe),
    "choices": (SAC(**COMMON, **SOFT, target_entropy_share=0.05), Probe),
    "state_noise": (SAC(**COMMON, **SOFT, state_noise=True, log_std=-1.0, noise_every=2), ContinuousProbe),
    "td3": (TD3(**COMMON), ContinuousProbe),
    "ddpg": (DDPG(**COMMON), ContinuousProbe),
}
# on the ported path one of them, and the others where there is time
SLOW = {("ported", "choices"), ("ported", "state_noise"), ("ported", "td3"), ("ported", "ddpg"), ("fused", "state_noise")}
PAIRS = [pytest.param(pair, marks=pytest.mark.slow if pair in SLOW else ()) for pair in itertools.product(("fused", "ported"), AGENTS)]


def value_of(state, obs):
    """What the smaller critic makes of the greedy action."""
    x = state.actor.features(obs)
    if isinstance(state.actor.action, Discrete):
        return state.critics(x).min(-1).max(-1)
    mean = state.actor.squashed(x).mean if hasattr(state.actor, "squashed") else state.actor.net(x)
    return state.critics(x, jnp.tanh(mean)).min(-1)


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: "-".join(pair))
def solved(request):
    path, name = request.param
    agent, world = AGENTS[name]
    kinds = PLAIN if path == "fused" else (Kind.BOTH, Kind.TRUNCATION)
    return kinds, world, solve_probes(agent, path, kinds, (0, 1) if path == "fused" else (2**40,), ITERATIONS, value_fn=value_of,
                                      env_fn=world)


def test_probes_are_solved(solved):
    kinds, world, answer = solved
    for row, kind in enumerate(kinds):
        wanted = expected(kind, DISCOUNT)
        value, action = (np.asarray(x[row, :, :len(wanted.value)]) for x in (answer.value, answer.action))
        np.testing.assert_allclose(value, np.broadcast_to(wanted.value, value.shape), rtol=0.05, atol=0.1, err_msg=kind.name)
        matters = wanted.action >= 0
        if world is Probe:
            assert (action[:, matters] == wanted.action[matters]).all(), kind.name
        else:
            assert np.abs(action[:, matters, 0] - wanted.level[matters]).max(initial=0.0) < 0.15, kind.name
