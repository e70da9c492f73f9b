"""Goals put in afterwards: from the right episode and step, with the reward that follows, as often as asked for."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shoal.buffers.hindsight import Hindsight
from shoal.buffers.host import Host
from shoal.errors import ConfigError
from shoal.specs import ACHIEVED, DESIRED, OBSERVATION, Box, Discrete, EnvSpec, Group
from shoal.types import Transition


def reached(achieved, desired):
    there = jnp.all(achieved == desired)
    return jnp.where(there, 0.0, -1.0), there


PLACE = Box((3,), -1e9, 1e9)
SPEC = EnvSpec("toy", Group(((OBSERVATION, PLACE), (ACHIEVED, PLACE), (DESIRED, PLACE))), Discrete(2), reward_fn=reached)
ENVS, STEPS = 4, 8


def stream(chunks, seed=0, rate=0.15):
    """Chunks of environments whose place is (environment, episode, step), that end at random and never where they wanted to."""
    draw, number, step = np.random.default_rng(seed), np.zeros(ENVS), np.zeros(ENVS)
    for _ in range(chunks):
        here, after, last = (np.zeros((STEPS, ENVS, 3), np.float32), np.zeros((STEPS, ENVS, 3), np.float32), np.zeros((STEPS, ENVS), bool))
        for t in range(STEPS):
            here[t] = np.stack([np.arange(ENVS), number, step], -1)
            after[t] = np.stack([np.arange(ENVS), number, step + 1], -1)
            last[t] = draw.random(ENVS) < rate
            number, step = number + last[t], np.where(last[t], 0, step + 1)
        goal = np.full((STEPS, ENVS, 3), -1, np.float32)
        obs, following = ({OBSERVATION: x, ACHIEVED: x, DESIRED: goal} for x in (here, after))
        zero = np.zeros((STEPS, ENVS), np.float32)
        yield Transition(obs, zero.astype(np.int32), zero - 1, zero + 1, following, last, zero + 1, ())


def lengths_of(data):
    """The newest step that each (environment, episode) has come to."""
    newest: dict[tuple, float] = {}
    for chunk in data:
        for env, number, step in chunk.next_obs[ACHIEVED].reshape(-1, 3):
            newest[env, number] = max(newest.get((env, number), 0), step)
    return newest


def filled(buffer, chunks, lanes=2, **settings):
    data = list(stream(chunks, **settings))
    state = buffer.init(SPEC, ENVS, lanes, STEPS)
    add = jax.jit(buffer.add, static_argnums=1) if isinstance(buffer, Hindsight) else buffer.add
    for chunk in data:
        state = add(state, None, chunk)
    return state, data


def drawn(buffer, state, times):
    """Many draws as one batch."""
    sample = jax.jit(lambda key: buffer.sample(state, key)[1].batch)
    return jax.tree.map(lambda *x: np.concatenate(x), *(jax.device_get(sample(jax.random.key(i))) for i in range(times)))


@pytest.mark.parametrize("choice", ["future", "final", "episode"])
@pytest.mark.parametrize(("chunks", "rate"), [(3, 0.15), (23, 0.15), (23, 0.0)])
def test_goals_are_of_the_same_episode_and_rewards_follow(choice, chunks, rate):
    buffer = Hindsight(capacity=5 * STEPS * ENVS, batch_size=100, start=1, choice=choice)
    state, data = filled(buffer, chunks, rate=rate)
    batch = drawn(buffer, state, 20)
    newest, held = lengths_of(data), {tuple(x) for chunk in data[-5:] for x in chunk.next_obs[ACHIEVED].reshape(-1, 3)}
    put_in = batch.obs[DESIRED][:, 0] >= 0
    assert abs(put_in.mean() - 0.8) < 0.04
    np.testing.assert_array_equal(batch.obs[DESIRED], batch.next_obs[DESIRED])
    columns = batch.obs[ACHIEVED], batch.next_obs[ACHIEVED], batch.obs[DESIRED], batch.reward, batch.alive
    for here, after, goal, reward, alive in zip(*columns, strict=True):
        if goal[0] < 0:
            assert (reward, alive) == (-1.0, 1.0)
            continue
        assert (goal[:2] == here[:2]).all() and tuple(goal) in held
        assert goal[2] >= after[2] or choice == "episode"
        if choice == "final" and rate:
            assert goal[2] == newest[goal[0], goal[1]]
        there = bool((goal == after).all())
        assert (reward, alive) == ((0.0, 0.0) if there else (-1.0, 1.0))


def test_every_later_step_is_equally_likely():
    buffer = Hindsight(capacity=STEPS * ENVS * 4, batch_size=128, start=1)
    state, _ = filled(buffer, 2, lanes=1, rate=0.0)  # one episode of 16 steps in each environment
    batch = drawn(buffer, state, 300)
    chosen = (batch.obs[DESIRED][:, 0] >= 0) & (batch.obs[ACHIEVED][:, 2] == 4)
    counts = Counter(batch.obs[DESIRED][chosen, 2].tolist())
    assert set(counts) == set(range(5, 17))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_rows_in_memory_give_the_same_bits():
    device = Hindsight(capacity=5 * STEPS * ENVS, batch_size=64, start=1)
    one, two = (filled(buffer, 23)[0] for buffer in (device, Host(device)))
    first, second = (buffer.sample(state, jax.random.key(4))[1].batch for buffer, state in ((device, one), (Host(device), two)))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize(("fields", "spec", "said"), [
    ({"n_step": 3}, SPEC, "n_step"), ({"length": 4}, SPEC, "length"), ({}, EnvSpec("plain", PLACE, Discrete(2)), "'plain' has no goals"),
])
def test_what_cannot_work_is_refused(fields, spec, said):
    with pytest.raises(ConfigError, match=said):
        Hindsight(capacity=64, batch_size=8, start=1, **fields).init(spec, ENVS)
