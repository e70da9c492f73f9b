"""Linear Q-learning against arithmetic done by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.linear_q import LinearQ
from shoal.errors import ConfigError
from shoal.runtime.cut import on_device
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Batch, Transition

SPEC = EnvSpec("toy", Box((2,), -1.0, 1.0), Discrete(3))
TILED = {"basis": "tiles", "num_tilings": 4, "num_tiles": 2, "tile_memory": 7}
KEY = jax.random.key(0)
update = jax.jit(lambda agent, state, batch: agent.update(state, batch, KEY))


def batch_of(rows, draw):
    obs, following = (draw.uniform(-1, 1, (rows, 2)).astype(np.float32) for _ in range(2))
    valid, alive = np.ones(rows, np.float32), np.ones(rows, np.float32)
    valid[0], alive[1] = 0.0, 0.0
    data = Transition(obs, draw.integers(0, 3, rows).astype(np.int32), draw.normal(size=rows).astype(np.float32), alive, following,
                      alive == 0, valid, ())
    return Batch(jax.tree.map(jnp.asarray, data), (), (), 1.0, jnp.asarray(draw.uniform(0.5, 1, rows).astype(np.float32)))


def features_by_hand(agent, obs):
    """[B, K]: cosines of all sums of frequencies, or how many tilings each number stands for."""
    unit = (np.asarray(obs, np.float64) + 1) / 2
    if agent.basis == "fourier":
        pairs = [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
        scale = [1 / max(np.hypot(*pair), 1.0) for pair in pairs]  # all norms but that of 0 are at least 1
        return np.stack([np.cos(np.pi * (unit @ pair)) for pair in pairs], 1), np.array(scale)
    from shoal.ops.features import tiles

    places = np.asarray(tiles(jnp.asarray(unit, jnp.float32), 4, 2, 7))
    return np.stack([np.bincount(row, minlength=7) for row in places]).astype(float), np.full(7, 0.25)


@pytest.mark.parametrize("setting", [{"order": 2}, TILED], ids=["fourier", "tiles"])
@pytest.mark.parametrize("rows", [6, 300])
def test_an_update_is_one_semi_gradient_step(setting, rows):
    agent = on_device(LinearQ(discount=0.9, learning_rate=0.2, huber=1.0, prioritised=True, **setting))
    draw = np.random.default_rng(0)
    batch, state = batch_of(rows, draw), agent.init(SPEC, KEY)
    assert not np.asarray(state.table.weights).any()
    weights = draw.normal(size=state.table.weights.shape).astype(np.float32)
    table = jax.tree.map(lambda _: jnp.asarray(weights), state.table)
    data = batch.data
    (now, scale), (then, _) = (features_by_hand(agent, obs) for obs in (data.obs, data.next_obs))
    np.testing.assert_allclose(agent.values(table, data.obs), now @ weights, atol=1e-4)
    target = np.asarray(data.reward) + 0.9 * np.asarray(data.alive) * (then @ weights).max(1)
    error = target - (now @ weights)[np.arange(rows), data.action]
    assert (np.abs(error) > 1).any() and (np.abs(error) < 1).any()
    wanted = weights.astype(float)
    for row in range(1, rows):  # the first is not valid
        wanted[:, data.action[row]] += 0.2 * scale * now[row] * np.clip(error[row], -1, 1) * batch.weight[row] / (rows - 1)
    after = update(agent, state._replace(table=table), batch)
    np.testing.assert_allclose(after.state.table.weights, wanted, atol=2e-5)
    np.testing.assert_allclose(after.priorities, np.abs(error), atol=1e-4)
    assert int(after.state.updates) == 1


def test_a_numbered_state_is_a_table():
    spec = EnvSpec("table", Discrete(4), Discrete(2))
    agent = on_device(LinearQ(basis="plain", learning_rate=1.0, discount=0.5))
    state = agent.init(spec, KEY)
    assert state.table.weights.shape == (4, 2)
    data = Transition(np.int32([2]), np.int32([1]), np.float32([3]), np.ones(1, np.float32), np.int32([0]), np.zeros(1, bool),
                      np.ones(1, np.float32), ())
    after = update(agent, state, Batch(jax.tree.map(jnp.asarray, data), (), (), 1.0, jnp.ones(1))).state
    wanted = np.zeros((4, 2))
    wanted[2, 1] = 3.0
    np.testing.assert_array_equal(after.table.weights, wanted)
    np.testing.assert_array_equal(agent.values(after.table, jnp.int32([2, 0])), [[0, 3], [0, 0]])


def test_observations_without_bounds_need_some():
    spec = EnvSpec("open", Box((2,), (-1.0, -np.inf), (1.0, np.inf)), Discrete(2))
    with pytest.raises(ConfigError, match="feature_low"):
        LinearQ().init(spec, KEY)
    table = LinearQ(order=1, feature_low=(-1.0, -2.0), feature_high=(1.0, 2.0)).init(spec, KEY).table
    assert table.weights.shape == (4, 2) and table.low == (-1.0, -2.0)
