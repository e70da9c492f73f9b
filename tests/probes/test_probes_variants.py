"""Memory, images, several choices, switches, dropped units, state-dependent noise: each solves its probe, on both paths."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.ppo import PPO
from shoal.algos.recurrent_ppo import RecurrentPPO
from shoal.testing.probes import ContinuousProbe, Kind, MultiBinaryProbe, MultiDiscreteProbe, PixelProbe, Probe, expected
from shoal.testing.solve import solve_probes, solve_score

DISCOUNT = 0.8
COMMON = {"num_steps": 16, "num_minibatches": 2, "learning_rate": 1e-2, "learning_rate_schedule": "linear", "horizon": 16 * 8 * 40.0,
          "discount": DISCOUNT, "init_scheme": "xavier", "entropy_coef": 0.0, "max_grad_norm": float("inf")}
RECURRENT = RecurrentPPO(**COMMON, hidden=(16,), memory_size=16)
PATHS = ("fused", "ported")
BOTH = np.int32(Kind.BOTH)
# the agent, a world of it, iterations, and the least score that only a solution has
VARIANTS = {
    "choices": (PPO(**COMMON, hidden=(16,)), MultiDiscreteProbe(BOTH), 40, 1.0),
    "switches": (PPO(**COMMON, hidden=(16,)), MultiBinaryProbe(BOTH), 40, 1.0),
    "dropout": (PPO(**COMMON, hidden=(32,), dropout=0.2), Probe(BOTH), 40, 1.0),
    "state_noise": (PPO(**COMMON, hidden=(16,), state_noise=True, log_std=-1.5, noise_every=4), ContinuousProbe(BOTH), 40, 0.97),
    "pixels": (PPO(**{**COMMON, "learning_rate": 3e-3}, activation="relu", hidden=(16,), channels=(8,), kernels=(3,), strides=(2,)),
               PixelProbe(), 40, 0.9),
}


def value_of(state, obs):
    net = state.actor.net
    return net.judge(net.recall(jnp.zeros((obs.shape[0], 2, 16)), state.actor.features(obs)))


# through ports those whose chunks look otherwise; the others, which differ in the distribution alone, where there is time; and there
# switches, which are choices
@pytest.mark.parametrize(("name", "path"), [
    pytest.param(name, path, marks=pytest.mark.slow if name == "switches" or path == "ported" and name not in ("pixels", "choices") else ())
    for name in VARIANTS for path in PATHS])
def test_variant_solves_its_probe(name, path):
    agent, world, iterations, least = VARIANTS[name]
    scores = solve_score(agent, world, path, [0] if path == "ported" else [0, 1], iterations)
    assert min(scores) >= least - 1e-6


@pytest.fixture(scope="module", params=["fused", pytest.param("ported", marks=pytest.mark.slow)])
def remembered(request):
    return solve_probes(RECURRENT, request.param, list(Kind), [0] if request.param == "ported" else [0, 1], 40, value_fn=value_of)


@pytest.mark.parametrize("kind", Kind, ids=lambda k: k.name.lower())
def test_memory_solves_every_probe(remembered, kind):
    wanted = expected(kind, DISCOUNT)
    rows = 1 if kind is Kind.DELAYED else len(wanted.value)  # its second observation is never seen without a memory of the first
    value, action = remembered.value[kind, :, :rows], remembered.action[kind, :, :rows]
    np.testing.assert_allclose(value, np.broadcast_to(wanted.value[:rows], value.shape), rtol=0.05, atol=0.1)
    matters = wanted.action[:rows] >= 0
    assert (action[:, matters] == wanted.action[:rows][matters]).all()


def test_the_memory_probe_needs_memory():
    """The value of the first step is the discount for whoever remembers, and nothing for whoever does not."""
    agent = PPO(**COMMON, hidden=(16,))
    assert abs(solve_score(agent, Probe(np.int32(Kind.MEMORY)), "fused", [0], 20)[0]) < 0.6
