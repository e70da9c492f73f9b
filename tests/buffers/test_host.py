"""Rows in memory: the same draws and the same bits as on the device, and errors with names at the boundary."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import SPEC, chunk, side_by_side

from shoal.buffers.host import Host
from shoal.buffers.prioritised import Prioritised
from shoal.buffers.uniform import Uniform
from shoal.errors import ConfigError, DivergedError, EnvError
from shoal.specs import Box, Discrete, EnvSpec

PICTURES = EnvSpec("pictures", Box((9, 9, 2), 0, 255, "uint8"), Discrete(3))
CASES = {
    "n-step": (SPEC, Uniform(capacity=96, batch_size=48, start=1, n_step=3, discount=0.9)),
    "sequences": (SPEC, Uniform(capacity=96, batch_size=16, start=1, length=4)),
    "pictures": (PICTURES, Prioritised(capacity=96, batch_size=48, start=1, n_step=2)),
}


def stream(spec, lane, seq):
    data = chunk(lane, seq, 4, 3)
    if spec is SPEC:
        return data
    pixels = np.random.default_rng([lane, seq]).integers(0, 255, (5, 3, 9, 9, 2)).astype(np.uint8)
    return data._replace(obs=pixels[:-1], next_obs=pixels[1:])


@pytest.mark.parametrize("name", CASES)
def test_same_bits_as_on_the_device(name):
    spec, buffer = CASES[name]
    host = Host(buffer)
    here, there = host.init(spec, 6, 2, 4), buffer.init(spec, 6, 2, 4)
    add, sample, update = jax.jit(buffer.add), jax.jit(buffer.sample), jax.jit(buffer.update)
    for i, lane in enumerate([0, 1, 0, 0, 0, 1, 0, 0]):
        data = stream(spec, lane, i)
        here, there = host.add(here, lane, data), add(there, lane, data)
        here, a = host.sample(here, jax.random.key(i))
        there, b = sample(there, jax.random.key(i))
        jax.tree.map(np.testing.assert_array_equal, a, b)
        delta = jnp.abs(b.batch.reward.reshape(-1)[:len(b.weight)])
        here, there = host.update(here, a.ticket, delta), update(there, b.ticket, delta)
    jax.tree.map(np.testing.assert_array_equal, here, there)
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(here.store)) and here.store.words.any()


def test_all_lanes_at_once():
    buffer = Uniform(capacity=96, batch_size=8, start=1)
    one = Host(buffer).init(SPEC, 6, 2, 4)
    together = Host(buffer).init(SPEC, 6, 2, 4)
    for seq in range(6):
        chunks = [chunk(lane, seq, 4, 3) for lane in range(2)]
        for lane in range(2):
            one = Host(buffer).add(one, lane, chunks[lane])
        together = Host(buffer).add(together, None, side_by_side(chunks))
    jax.tree.map(np.testing.assert_array_equal, one, together)
    np.testing.assert_array_equal(one.index.count, 6)


def test_errors_name_the_field():
    host = Host(Prioritised(capacity=96, batch_size=8, start=13))
    state = host.init(SPEC, 6, 2, 4)
    state = host.add(state, 0, chunk(0, 0, 4, 3))
    with pytest.raises(ConfigError, match="start = 13: sampled with 12 rows"):
        host.sample(state, jax.random.key(0))
    state = host.add(state, 1, chunk(1, 0, 4, 3))
    state, drawn = host.sample(state, jax.random.key(0))
    with pytest.raises(DivergedError, match=r"priorities\[2\] = nan"):
        host.update(state, drawn.ticket, np.array([1, 2, np.nan, 1, 1, 1, 1, 1], np.float32))
    with pytest.raises(EnvError, match="transition.action: dtype int64"):
        host.add(state, 0, chunk(0, 1, 4, 3)._replace(action=np.zeros((4, 3), np.int64)))
    assert host.pace(12) == (1, 1)
