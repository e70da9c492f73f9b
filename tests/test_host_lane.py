"""Lanes of Python environments: the same chunk as by hand, the same chunk as the compiled lane, and the way back."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lane import Leaving

from shoal import lane, rng
from shoal.algos import team
from shoal.algos.ppo import PPO
from shoal.envs import make
from shoal.errors import EnvError, ReplayError
from shoal.host_lane import HostLane, Log, grown
from shoal.host_act import acting
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Acted

AGENT = PPO(num_steps=60, hidden=(8,), init_scheme="xavier")
SEED, LANE, SIZE = 11, 3, 2


@pytest.fixture(scope="module")
def cartpole():
    """The compiled calls that every CartPole lane here shares, and parameters."""
    spec = make("CartPole-v1").spec
    params = AGENT.policy(AGENT.init(spec, jax.random.key(0)))
    draw = jax.jit(lambda index, seq: lane.draw_noise(AGENT, spec, rng.root(SEED), index, seq, SIZE))
    calls = {"acting_fn": acting(AGENT, spec, SIZE), "noise_fn": lambda index, seq: np.asarray(draw(index, seq)),
             "role": lane.role(0.0, SIZE)}
    return params, calls


def lane_of(calls, make_fn=lambda: make("CartPole-v1", 25), mode="reset", num_steps=60):
    return HostLane(LANE, SIZE, make_fn, seed=SEED, num_steps=num_steps, mode=mode, memory_fn=lambda size: (), **calls)


def stand(made, params):
    """Where a lane stands after its first chunk."""
    made.make(params, 0, 0)
    return made.record()


def assert_equal_trees(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_chunk_equals_gymnasium_by_hand(cartpole):
    params, calls = cartpole
    made = lane_of(calls)
    chunk, after = made.make(params, version=4, seq=7), made.record()
    assert (chunk.lane, chunk.seq, chunk.version, chunk.memory) == (LANE, 7, 4, ())
    data, ends = chunk.data, chunk.episodes
    assert data.obs.dtype == data.next_obs.dtype == data.reward.dtype == np.float32 and data.last.dtype == bool
    assert ends.ended.sum() >= 4 and data.alive.min() == 0 and (data.last & (data.alive == 1)).any()  # ends and limits
    for i in range(SIZE):
        env, episode, length = gymnasium.make("CartPole-v1", max_episode_steps=25), 0, 0
        obs, _ = env.reset(seed=rng.host_seed(SEED, rng.Stream.ENV, LANE, i, episode))
        for t in range(60):
            np.testing.assert_array_equal(data.obs[t, i], obs)
            obs, reward, terminated, truncated, _ = env.step(int(data.action[t, i]))
            length += 1
            np.testing.assert_array_equal(data.next_obs[t, i], obs)  # the true successor, at ends too
            assert data.reward[t, i] == reward and data.alive[t, i] == 1 - terminated and data.valid[t, i] == 1
            assert data.last[t, i] == ends.ended[t, i] == (terminated or truncated)
            if terminated or truncated:
                assert ends.lengths[t, i] == length == ends.returns[t, i]
                episode, length = episode + 1, 0
                obs, _ = env.reset(seed=rng.host_seed(SEED, rng.Stream.ENV, LANE, i, episode))
        np.testing.assert_array_equal(after.obs[i], obs)
        assert after.episode[i] == episode and after.lengths[i] == length == len(after.actions[i])
    # the actions are those of the policy, on what was observed, with the chunk's noise
    noise = calls["noise_fn"](LANE, 7)
    act_fn = calls["acting_fn"](params)
    np.testing.assert_array_equal(data.action[9], act_fn((), data.obs[9], calls["role"], noise[9]).action)


def test_actions_since_the_last_reset_follow_from_chunks(cartpole):
    params, calls = cartpole
    made, marks = lane_of(calls), [(Log(), 0) for _ in range(SIZE)]
    for seq in range(3):
        chunk = made.make(params, 0, seq)
        before, marks = marks, [grown(mark, chunk.data.action[:, i], chunk.episodes.ended[:, i]) for i, mark in enumerate(marks)]
        assert_equal_trees(tuple(log.rows(length) for log, length in marks), made.record().actions)
        again = [grown(mark, chunk.data.action[:, i], chunk.episodes.ended[:, i]) for i, mark in enumerate(before)]  # made once more
        assert_equal_trees(tuple(log.rows(length) for log, length in again), made.record().actions)
        assert_equal_trees(made.stand(), made.record()._replace(actions=()))


def test_record_and_restore_continue_identically(cartpole):
    params, calls = cartpole
    straight = lane_of(calls)
    straight.make(params, 0, 0)
    after = straight.record()
    second = straight.make(params, 0, 1)
    other = lane_of(calls)
    other.make(params, 0, 5)  # stands somewhere else before it is brought back
    assert other.restore(after, inexact=False) == []
    assert_equal_trees(other.make(params, 0, 1), second)
    assert_equal_trees(other.record(), straight.record())


class Noisy:
    """Its steps follow no seed; ``leak`` makes what was done before a reset matter after it."""

    spec = EnvSpec("noisy", Box((4,)), Discrete(2))

    def __init__(self, noise=0.0, leak=0.0):
        self.noise, self.leak, self.kept = noise, leak, 0.0

    def reset(self, seed):
        self.draw, self.count = np.random.default_rng(seed), 0
        return np.full(4, self.kept, np.float32)

    def step(self, action):
        self.count, self.kept = self.count + 1, self.kept + self.leak
        shown = self.draw.normal(size=4) + self.noise * np.random.default_rng().normal(size=4) + self.kept
        return shown.astype(np.float32), 1.0, self.count == 7, False, {}

    def close(self):
        self.spec = None


def test_a_world_that_does_not_repeat_itself_is_refused_or_starts_anew(cartpole):
    params, calls = cartpole
    make_fn = lambda: Noisy(noise=1.0)
    record = stand(lane_of(calls, make_fn), params)
    assert record.lengths.tolist() == [60 % 7] * 2 and record.episode.tolist() == [8, 8]
    with pytest.raises(ReplayError, match="noisy: replaying episode 8 of environment 0 in lane 3"):
        lane_of(calls, make_fn).restore(record, inexact=False)
    anew = lane_of(calls, make_fn)
    notes = anew.restore(record, inexact=True)
    assert notes == [f"noisy: environment {i} of lane 3 starts a new episode (replay differed)" for i in range(2)]
    after = anew.record()
    assert after.episode.tolist() == [9, 9] and after.lengths.tolist() == [0, 0] and after.returns.tolist() == [0, 0]
    ends = anew.make(params, 0, 1).episodes
    assert np.flatnonzero(ends.ended[:, 0])[0] == 6
    assert (ends.lengths[ends.ended] == 7).all() and (ends.returns[ends.ended] == 7).all()


def test_a_world_that_carries_state_over_a_reset_gets_a_fresh_copy_per_episode(cartpole):
    params, calls = cartpole
    made = lane_of(calls, lambda: Noisy(leak=1.0), mode="fresh")
    chunk = made.make(params, 0, 0)
    starts = np.flatnonzero(chunk.episodes.ended[:-1, 0]) + 1
    assert (chunk.data.obs[starts, 0] == 0).all()
    back = lane_of(calls, lambda: Noisy(leak=1.0), mode="fresh")
    assert back.restore(made.record(), inexact=False) == []


class Counting(Noisy):
    """What outlives a reset here is that there was one."""

    def reset(self, seed):
        obs = super().reset(seed)
        self.kept += 1.0
        return obs


def test_a_world_that_only_a_fresh_copy_repeats_is_brought_back_on_one(cartpole):
    params, calls = cartpole
    record = stand(lane_of(calls, Counting, mode="fresh"), params)
    assert lane_of(calls, Counting, mode="fresh").restore(record, inexact=False) == []


class Stateful(Noisy):
    def get_state(self):
        return {"count": np.int64(self.count)}

    def set_state(self, state):
        self.count = int(state["count"])


def test_own_state_is_used_where_there_is_one(cartpole):
    params, calls = cartpole
    record = stand(lane_of(calls, lambda: Stateful(noise=1.0), mode="state"), params)
    back = lane_of(calls, lambda: Stateful(noise=1.0), mode="state")
    assert back.restore(record, inexact=False) == []  # no replay: it would differ
    np.testing.assert_array_equal(back.record().obs, record.obs)
    assert [env.count for env in back.envs] == [4, 4]


class Faulty(Noisy):
    def __init__(self, reward=1.0, obs=0.0, fails=False):
        super().__init__()
        self.wrong, self.shown, self.fails = reward, obs, fails

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if self.count == 5:
            if self.fails:
                raise RuntimeError("the simulator lost its licence")
            return obs + self.shown, self.wrong, *rest
        return obs, reward, *rest


@pytest.mark.parametrize(("world", "text"), [
    (lambda: Faulty(reward=float("nan")), "noisy: reward is not finite at step 4 of environment 0"),
    (lambda: Faulty(reward=float("inf")), "noisy: reward is not finite at step 4 of environment 0"),
    (lambda: Faulty(obs=float("nan")), "noisy: observation is not finite at step 4 of environment 0"),
    (lambda: Faulty(fails=True), "noisy: RuntimeError in step or reset: the simulator lost its licence"),
])
def test_what_a_spec_does_not_allow_is_refused(cartpole, world, text):
    params, calls = cartpole
    with pytest.raises(EnvError, match=text):
        lane_of(calls, world).make(params, 0, 0)


def test_a_wrong_shape_is_refused(cartpole):
    class Wide(Noisy):
        def reset(self, seed):
            return np.zeros(5, np.float32)

    with pytest.raises(EnvError, match=r"noisy: observation from reset has shape \(5,\), its space says \(4,\)"):
        lane_of(cartpole[1], Wide)


class HostLeaving:
    """The compiled world of the lane's tests, stepped from Python."""

    def __init__(self):
        self.env = Leaving()
        self.spec = self.env.spec

    def reset(self, seed):
        self.state, obs = self.env.reset(jax.random.key(0))
        return np.asarray(obs)

    def step(self, action):
        self.state, answer = self.env.step(self.state, action, jax.random.key(0))
        return tuple(np.asarray(x) for x in answer[:4]) + ({},)

    def close(self):
        self.state = None


def test_agents_on_the_host_equal_agents_compiled():
    agent, env, size = team.shared(PPO(num_steps=11, hidden=(8,), init_scheme="xavier")), Leaving(), 2
    params = agent.policy(agent.init(env.spec, jax.random.key(0)))
    draws = jax.jit(lane.draw, static_argnums=5)(agent, env, rng.root(SEED), 0, 0, size)
    start = lane.start(agent, env, rng.root(SEED), 0, size)
    _, data, episodes = jax.jit(lane.rollout)(agent, env, params, start, draws, lane.role(0.0, size))
    host = HostLane(0, size, HostLeaving, seed=SEED, num_steps=11, mode="reset", memory_fn=lambda n: (),
                    acting_fn=acting(agent, env.spec, size), noise_fn=lambda *_: np.asarray(draws.noise),
                    role=lane.role(0.0, size))
    chunk = host.make(params, 0, 0)
    assert_equal_trees(chunk.data, data)
    ended = np.asarray(episodes.ended)
    assert ended.sum() == 4 and (chunk.episodes.ended == ended).all()
    for mine, theirs in zip(chunk.episodes[1:], episodes[1:], strict=True):
        np.testing.assert_array_equal(mine[ended], np.asarray(theirs)[ended])
    after = host.record()
    assert after.present.tolist() == [[False, True]] * 2 and after.returns.tolist() == [[3, 36]] * 2


@pytest.mark.parametrize("fresh", [lambda size: {"steps": np.zeros(size, np.int32)},
                                   lambda size: (np.zeros((size, 1), np.int32),),
                                   lambda size: np.zeros(size, np.int32)],
                         ids=["dict", "tuple", "array"])
def test_memory_starts_afresh_with_every_episode(fresh):
    """A policy that counts its own steps sees 0 at the start of each episode, and its memory comes back with the lane."""

    def act(memory, obs, role, noise):
        seen.append(np.asarray(jax.tree.leaves(memory)[0]).reshape(-1).copy())
        return Acted(jnp.zeros(SIZE, jnp.int32), jax.tree.map(lambda x: x + 1, memory), ())

    seen: list[np.ndarray] = []

    def build():
        return HostLane(0, SIZE, Noisy, seed=1, num_steps=10, mode="reset", memory_fn=fresh, acting_fn=lambda params: act,
                        noise_fn=lambda *_: np.zeros(10), role=lane.role(0.0, SIZE))

    straight = build()
    chunk = straight.make(None, 0, 0)
    assert [row.tolist() for row in seen] == [[t % 7] * 2 for t in range(10)]
    assert np.asarray(jax.tree.leaves(chunk.memory)[0]).sum() == 0
    back = build()
    back.restore(straight.record(), inexact=False)
    seen.clear()
    again = back.make(None, 0, 1)
    assert [row.tolist() for row in seen] == [[(t + 10) % 7] * 2 for t in range(10)]
    assert np.asarray(jax.tree.leaves(again.memory)[0]).reshape(-1).tolist() == [3, 3]
