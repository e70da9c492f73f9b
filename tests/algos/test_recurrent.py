"""PPO with memory: acting and learning see the same memory, episodes do not leak into each other, and columns stay whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal import lane, loops, rng
from shoal.algos.recurrent_ppo import RecurrentPPO, _unroll
from shoal.runtime.cut import on_device
from shoal.testing.probes import Kind, Probe
from shoal.types import Batch

AGENT = on_device(RecurrentPPO(num_steps=6, num_minibatches=2, num_epochs=1, hidden=(8,), memory_size=4, learning_rate=1e-2))
ENV = Probe(np.int32(Kind.TRUNCATION))  # episodes of five steps, so that ends lie inside a chunk
ROOT = rng.root(3)


def collected(agent=AGENT, envs=4):
    state = agent.init(ENV.spec, ROOT)
    start = lane.start(agent, ENV, ROOT, 0, envs)
    begun = start._replace(memory=jax.random.normal(ROOT, start.memory.shape))  # in the middle of something
    after, data, _ = lane.rollout(agent, ENV, agent.policy(state), begun, lane.draw(agent, ENV, ROOT, 0, 0, envs), lane.role(0.0, envs))
    return state, Batch(data, begun.memory, agent.policy(state), 6 * envs), after


def test_learning_replays_the_memory_of_acting():
    state, batch, after = collected()
    net, features = state.actor.net, state.actor.features(batch.data.obs)
    memory, seen = batch.memory, []
    for t in range(6):
        memory = net.recall(memory, features[t])
        seen.append(net.judge(memory))
        memory = jnp.where(batch.data.last[t][:, None, None], 0.0, memory)
    np.testing.assert_allclose(after.memory, memory, atol=1e-6)  # what acting left behind
    columns, _ = AGENT._columns(state, batch)
    np.testing.assert_allclose(columns.value.T, jnp.stack(seen), atol=1e-6)
    assert columns.memory.shape == (4, 2, 4) and bool(batch.data.last.any())


def test_what_was_before_an_end_does_not_matter_after_it():
    state, batch, _ = collected()
    other = batch._replace(memory=batch.memory + 1.0)
    one, two = (AGENT._columns(state, b)[0].value for b in (batch, other))
    ends = int(np.argmax(np.asarray(batch.data.last[:, 0])))
    assert ends == 4 and float(jnp.abs(one[:, :ends + 1] - two[:, :ends + 1]).min()) > 0
    np.testing.assert_array_equal(one[:, ends + 1:], two[:, ends + 1:])


def test_blocks_of_columns_change_nothing(monkeypatch):
    step = lambda memory, row: (memory * 0.5 + row, memory)
    memory, rows = jnp.arange(5.0), jnp.arange(15.0).reshape(3, 5)
    whole = _unroll(step, memory, rows)
    monkeypatch.setattr("shoal.ops.blocks.BLOCK_ROWS", 2)
    jax.tree.map(np.testing.assert_array_equal, _unroll(step, memory, rows), whole)


def test_gradients_reach_through_time():
    """Only the last step counts, and only the first shows anything: what the encoder learns went through the memory."""
    state, batch, _ = collected()
    data = batch.data._replace(obs=batch.data.obs.at[0].set(1.0), valid=jnp.zeros((6, 4)).at[3].set(1.0), reward=jnp.ones((6, 4)))
    after = loops.learn(AGENT, state, batch._replace(data=data), ROOT)[0]
    change = jnp.abs(after.actor.net.value.encoder.arrays.layers[0].weight - state.actor.net.value.encoder.arrays.layers[0].weight)
    assert float(change[0].max()) > 1e-4  # the input that was shown at step 0 alone


def test_invalid_steps_weigh_nothing():
    state, batch, _ = collected()
    valid = jnp.ones((6, 4)).at[2, 1].set(0.0)
    spoiled = batch.data._replace(valid=valid, action=batch.data.action.at[2, 1].set(1 - batch.data.action[2, 1]))
    plain = batch.data._replace(valid=valid)
    a, b = (loops.learn(AGENT, state, batch._replace(data=d), ROOT)[0].actor.net for d in (plain, spoiled))
    jax.tree.map(np.testing.assert_array_equal, a, b)
