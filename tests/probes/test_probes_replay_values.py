"""Every way to learn values of actions from replay solves every probe, fused and ported."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shoal.algos.dqn import DQN
from shoal.algos.linear_q import LinearQ
from shoal.algos.qr_dqn import QRDQN
from shoal.testing.probes import PLAIN, expected
from shoal.testing.solve import solve_probes

DISCOUNT = 0.8
ITERATIONS = 80  # of 8 environments × 8 steps, with 16 updates
REPLAY = {"num_steps": 8, "capacity": 512, "start_size": 128, "update_every": 4, "discount": DISCOUNT,
          "learning_rate_schedule": "linear", "horizon": 8.0 * 8 * ITERATIONS}
DEEP = REPLAY | {"hidden": (16,), "batch_size": 32, "learning_rate": 3e-2, "target_every": 20, "epsilon_end": 0.2}
AGENTS = {
    "plain": DQN(**DEEP, double=False, huber=float("inf")),
    "everything": DQN(**DEEP, duelling=True, noisy=True, n_step=3, prioritised=True),
    "boltzmann": DQN(**DEEP, exploration="boltzmann", duelling=True, temperature_end=0.5, huber=float("inf")),
    "parameter_noise": DQN(**DEEP | {"target_every": 1}, exploration="parameter_noise", tau=0.1, noise_updates=10),
    "quantiles": QRDQN(**DEEP, num_quantiles=8, prioritised=True),
    "fourier": LinearQ(**REPLAY, learning_rate=0.3, order=2, epsilon_end=0.2),
    "tiles": LinearQ(**REPLAY, learning_rate=0.3, basis="tiles", num_tilings=4, num_tiles=2, n_step=3, prioritised=True),
}
# through ports every algorithm once; ways to explore that differ in act alone only where there is time
SLOW = {*itertools.product(("fused", "ported"), ("boltzmann", "parameter_noise")), ("ported", "tiles"), ("ported", "everything")}
PAIRS = [pytest.param(pair, marks=pytest.mark.slow if pair in SLOW else ()) for pair in itertools.product(("fused", "ported"), AGENTS)]
SEEDS = {"fused": (0, 1), "ported": (2**40,)}


def value_fn(agent):
    """The value of the best action, as ``agent`` sees it."""
    if isinstance(agent, LinearQ):
        return lambda state, obs: agent.values(state.table, obs).max(axis=-1)
    return lambda state, obs: agent.expected(state.judge.head(obs)).max(axis=-1)


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: "-".join(pair))
def solved(request):
    path, name = request.param
    return solve_probes(AGENTS[name], path, PLAIN, SEEDS[path], ITERATIONS, value_fn=value_fn(AGENTS[name]))


@pytest.mark.parametrize("kind", PLAIN, ids=lambda k: k.name.lower())
def test_probe_is_solved(solved, kind):
    wanted = expected(kind, DISCOUNT)
    value, action = solved.value[kind, :, :len(wanted.value)], solved.action[kind, :, :len(wanted.value)]
    np.testing.assert_allclose(value, np.broadcast_to(wanted.value, value.shape), rtol=0.05, atol=0.1)
    matters = wanted.action >= 0
    assert (action[:, matters] == wanted.action[matters]).all()
