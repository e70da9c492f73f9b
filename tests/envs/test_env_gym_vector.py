"""Ready-made vector environments: the same rows as environments of our own in every autoreset mode, and training through each."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

import shoal
from shoal import rng
from shoal.envs.gym_vector import GymVector, adopt
from shoal.envs.gymnasium import GymEnv
from shoal.errors import ConfigError, EnvError
from shoal.host_lane import HostLane
from shoal.lane import role
from shoal.runtime.ported import Ported
from shoal.specs import Box, MultiDiscrete
from shoal.types import Acted, Limits
from shoal.vector_lane import VectorLane

ONE = Limits(1, 2**30, float("inf"))

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
AGENT = shoal.PPO(num_steps=32, num_epochs=2, num_minibatches=2, hidden=(8,), net="mlp", learning_rate=3e-3)
SIZE, STEPS = 3, 20


class Counting(gymnasium.Env):
    """Shows who it is, its episode and its step; how long an episode is, and how it ends, follow from the first two."""

    observation_space = spaces.Dict({"numbers": spaces.Box(0, 1000, (3,)),
                                     "pair": spaces.Tuple([spaces.Discrete(2, start=1), spaces.MultiBinary((1, 2))])})
    action_space = spaces.Tuple([spaces.Discrete(3, start=4), spaces.MultiDiscrete([2, 2])])

    def __init__(self, index: int = 0):
        self.index, self.episode = index, -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.count = self.episode + 1, 0
        return self.show(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.count += 1
        reward = 0.25 * action[0] + float(action[1].sum()) + self.count
        over, ends = self.count == (self.index + 3 * self.episode) % 4 + 2, (self.index + self.episode) % 2
        return self.show(), reward, bool(over and ends), bool(over and not ends), {"noise": self.count}

    def show(self):
        return {"numbers": np.array([self.index, self.episode, self.count], np.float32),
                "pair": (1 + self.count % 2, np.array([[self.count % 2, self.episode % 2]], np.int8))}


def policy(memory, obs, role, noise):
    """Actions that depend on the episode alone, so that a row more or less changes no other; a memory that counts."""
    seen, pair = obs["numbers"], obs["pair"]
    assert pair["0"].tolist() == (seen[:, 2] % 2).tolist() and pair["1"][:, 1].tolist() == (seen[:, 1] % 2).tolist()
    action = np.stack([(seen[:, 1] + seen[:, 2]) % 3, pair["0"], memory["age"] % 2], axis=1).astype(np.int32)
    return Acted(action, {"age": memory["age"] + 1}, ())


CALLS = {"seed": 1, "num_steps": STEPS, "memory_fn": lambda size: {"age": np.zeros(size, np.int32)},
         "acting_fn": lambda params: policy, "noise_fn": lambda *_: np.zeros(STEPS), "role": role(0.0, SIZE)}


def counting(mode: AutoresetMode, **options) -> GymVector:
    return GymVector(SyncVectorEnv([lambda i=i: Counting(i) for i in range(SIZE)], autoreset_mode=mode, **options))


@pytest.fixture(scope="module")
def ordinary():
    """Three chunks of the ordinary lane, joined in time."""
    before, number = dict(gymnasium.registry), itertools.count()
    gymnasium.register("ShoalCounting-v0", entry_point=Counting)
    lane = HostLane(0, SIZE, lambda: GymEnv("ShoalCounting-v0", index=next(number)), mode="reset", **CALLS)
    yield chunks(lane)
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def chunks(lane):
    """Rows and episodes of three chunks as flat dicts of arrays [60, B, ...]."""
    made = [lane.make(None, 0, seq) for seq in range(3)]
    rows = [_flat(chunk.data._replace(extras={})._asdict()) for chunk in made]
    ends = [chunk.episodes._asdict() for chunk in made]
    return tuple({name: np.concatenate([part[name] for part in parts]) for name in parts[0]} for parts in (rows, ends))


def _flat(tree, prefix=""):
    if not isinstance(tree, dict):
        return {prefix: np.asarray(tree)}
    return {name: x for key, inner in tree.items() for name, x in _flat(inner, f"{prefix}/{key}").items()}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_those_of_an_ordinary_lane(ordinary, mode, copy):
    lane = VectorLane(counting(mode, copy=copy), **CALLS)
    (rows, ends), (expected, expected_ends) = chunks(lane), ordinary
    assert rows.keys() == expected.keys() and "/next_obs/pair/1" in rows and "/alive" in rows
    for name in rows:
        assert rows[name].dtype == expected[name].dtype, name
    assert 0 < expected["/alive"].mean() < 1 and (expected["/last"] & (expected["/alive"] == 1)).any()
    if mode is not AutoresetMode.NEXT_STEP:
        for got, wanted in ((rows, expected), (ends, expected_ends)):
            for name in got:
                np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
        return
    valid = rows["/valid"] == 1
    for i in range(SIZE):
        kept = np.flatnonzero(valid[:, i])
        for name in rows:
            np.testing.assert_array_equal(rows[name][kept, i], expected[name][: len(kept), i], err_msg=name)
        for name in ends:
            np.testing.assert_array_equal(ends[name][kept, i], expected_ends[name][: len(kept), i], err_msg=name)
        resets = np.flatnonzero(~valid[:, i])
        np.testing.assert_array_equal(resets, np.flatnonzero(ends["ended"][:-1, i]) + 1)  # one after each end, and nowhere else
        assert len(resets) > 8 and not ends["ended"][resets, i].any() and (rows["/reward"][resets, i] == 0).all()
        assert rows["/last"][resets, i].all() and (rows["/alive"][resets, i] == 1).all()  # no trace, and no memory, runs over one


@pytest.mark.parametrize("mode", MODES)
def test_lane_says_where_it_stands_and_starts_anew(ordinary, mode):
    lane = VectorLane(counting(mode), **CALLS)
    chunk = lane.make(None, 0, 0)
    record = lane.record()
    assert record.episode.tolist() == chunk.episodes.ended.sum(0).tolist()
    assert record.actions == () and record.state == () and record.obs["numbers"].shape == (SIZE, 3)
    other = VectorLane(counting(mode), **CALLS)
    notes = other.restore(record, inexact=False)
    assert len(notes) == 1 and "cannot be brought back" in notes[0] and "its 3 environments start new episodes" in notes[0]
    after = other.record()
    assert after.episode.tolist() == (record.episode + 1).tolist()
    assert after.lengths.tolist() == [0, 0, 0] == after.returns.tolist()
    assert after.obs["numbers"][:, 2].tolist() == [0, 0, 0] and after.memory["age"].tolist() == [0, 0, 0]
    again = other.make(None, 0, 1)
    assert again.data.obs["numbers"][0, :, 1].tolist() == [1, 1, 1]  # its second reset: a new episode
    first = again.episodes.ended.argmax(0)
    np.testing.assert_array_equal(again.episodes.lengths[first, range(SIZE)], first + 1)


# --- CartPole --------------------------------------------------------------------------------------------------------


def cartpole(mode: AutoresetMode = AutoresetMode.NEXT_STEP, **options):
    return gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **options)


def engine_of(vector) -> Ported:
    adopted = GymVector(vector)
    engine = Ported(AGENT, None, lambda: adopted, num_envs=4, lane_envs=4, stream_episodes=True)
    engine.init(7)
    return engine


@pytest.mark.parametrize("mode", MODES)
def test_ppo_learns_through_every_mode(mode):
    # around each environment: the wrapper for vectors loses count when another environment is reset by a mask
    watched = cartpole(mode, wrappers=[RecordEpisodeStatistics])
    engine = engine_of(watched)
    assert engine.spec.name == "CartPole-v1" and engine.spec.max_episode_steps == 500
    iterations = [engine.run(ONE).iterations[0] for _ in range(4)]
    for iteration in iterations:
        assert np.isfinite(list(iteration.metrics.values())).all() and iteration.metrics["refused"] == 0
    ended = [(end.length, end.returns) for iteration in iterations for end in iteration.ended]
    assert len(ended) >= 10 and sum(i.episodes for i in iterations) == len(ended)
    for i, env in enumerate(watched.envs):
        mine = [(end.length, end.returns) for iteration in iterations for end in iteration.ended if end.env == i]
        assert mine == list(zip(env.length_queue, env.return_queue, strict=True))
    assert all(length == reward for length, reward in ended)
    watched.close()


def test_evaluation_is_the_same_in_every_mode_and_by_hand():
    engines = [engine_of(cartpole(mode)) for mode in MODES]
    first, *others = [engine.evaluate(6) for engine in engines]  # two waves, of four and of two
    for other in others:
        np.testing.assert_array_equal(first.returns, other.returns)
        np.testing.assert_array_equal(first.lengths, other.lengths)
    act_fn = engines[0]._acting(engines[0].policy())
    for wave in (0, 4):
        seed = rng.host_seed(7, rng.Stream.EVAL_ENV, wave)
        for i in range(min(4, 6 - wave)):
            env, length, over = gymnasium.make("CartPole-v1"), 0, False
            obs, _ = env.reset(seed=seed + i)
            while not over:
                acted = act_fn((), np.tile(obs, (4, 1)), role(0.0, 4, greedy=True), np.zeros((4, 2), np.float32))
                obs, _, terminated, truncated, _ = env.step(int(acted.action[0]))
                length, over = length + 1, terminated or truncated
            assert first.lengths[wave + i] == length == first.returns[wave + i]
    assert all(engine.lanes[0].record().lengths.tolist() == [0] * 4 for engine in engines)  # training starts new episodes


def test_training_on_a_vector_repeats_itself(tmp_path):
    def train(number: int, **settings):
        vector = cartpole(AutoresetMode.SAME_STEP)
        run = shoal.train(AGENT, vector, steps=384, seed=7, eval_episodes=4, checkpoint_every="0", out=tmp_path / str(number),
                          **settings)
        assert not vector.closed  # it is its maker's
        vector.close()
        return run.result

    first, second, other = train(0), train(1), train(2, eval_every=128)
    assert first["steps"] == 384 and first["env"] == "object:GymVector" and first["path"] == "ported"
    assert first["params_sha256"] == second["params_sha256"] != other["params_sha256"]  # evaluation gives running episodes up
    with pytest.raises(ConfigError, match="given as an object without a name; register it"):
        shoal.resume(tmp_path / "0")


def test_a_cut_continues_with_new_episodes():
    one, two = engine_of(cartpole()), engine_of(cartpole())
    one.run(ONE)
    cut = one.cut()
    notes = two.load(cut)
    assert notes == ["CartPole-v1: a ready-made vector cannot be brought back to where it stood; "
                     "its 4 environments start new episodes"]
    for name, value in one.learner().items():
        np.testing.assert_array_equal(value, two.learner()[name])
    assert two.lanes[0].record().episode.tolist() == (cut["lane0.episode"] + 1).tolist()
    assert np.isfinite(list(two.run(ONE).iterations[0].metrics.values())).all()


def test_processes_give_the_rows_of_one_process():
    def chunk(vector):
        act = lambda memory, obs, role, noise: Acted((obs[:, 2] > 0.1).astype(np.int32), (), ())
        calls = CALLS | {"memory_fn": lambda size: (), "acting_fn": lambda _: act}
        made = VectorLane(GymVector(vector), **calls).make(None, 0, 0)
        vector.close()
        return made

    fns = [lambda: gymnasium.make("CartPole-v1") for _ in range(2)]
    apart = chunk(AsyncVectorEnv(fns, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP))
    together = chunk(SyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP))
    assert together.data.last.any()
    for name in ("obs", "action", "reward", "alive", "next_obs", "last", "valid"):
        np.testing.assert_array_equal(getattr(apart.data, name), getattr(together.data, name), err_msg=name)


def test_vectors_of_their_own_make_are_taken():
    """CartPole's own vector, which is no list of environments, in next-step mode."""
    vector = GymVector(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"))
    obs, moved, length = vector.reset(3), None, 0
    while moved is None or not (moved.terminated | moved.truncated).any():
        moved, length = vector.step(np.ones(2, np.int32)), length + 1
    assert obs.shape == (2, 4) and 5 < length < 15 and moved.played.all()
    ended = moved.terminated
    after = vector.step(np.ones(2, np.int32))
    np.testing.assert_array_equal(after.played, ~ended)
    assert (np.abs(after.obs[ended]) <= 0.05).all() and (after.reward[ended] == 0).all()


def test_actions_are_in_the_vectors_own_units():
    vector = gymnasium.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync")
    ours, theirs = GymVector(vector), gymnasium.make("Pendulum-v1")
    assert ours.spec.action == Box((1,), -1.0, 1.0)
    ours.reset(3)
    theirs.reset(seed=3)
    moved = ours.step(np.array([[0.25], [9.0]], np.float32))
    obs, reward, *_ = theirs.step(np.array([0.5], np.float32))
    np.testing.assert_array_equal(moved.obs[0], obs)
    assert moved.reward[0] == pytest.approx(reward, rel=1e-6) and moved.played.all()
    assert counting(AutoresetMode.DISABLED).spec.action == MultiDiscrete((3, 2, 2))


def test_what_does_not_fit_a_vector_is_refused():
    vector = cartpole()
    adopted, settings = adopt(vector, {"seed": 3, "frame_stack": 1})
    assert isinstance(adopted, GymVector) and settings == {"seed": 3, "frame_stack": 1, "num_envs": 4, "lane_envs": 4}
    assert adopt("CartPole-v1", {"num_envs": 2}) == ("CartPole-v1", {"num_envs": 2})
    for wrong, text in (({"num_envs": 8}, "num_envs = 8: 'CartPole-v1' is a vector of 4; leave num_envs out"),
                        ({"lane_envs": 2}, "lane_envs = 2"), ({"max_episode_steps": 9}, "max_episode_steps = 9: .*ready-made"),
                        ({"frame_stack": 4}, "frame_stack = 4"), ({"env_options": {"g": 1}}, "env_options")):
        with pytest.raises(ConfigError, match=text):
            adopt(vector, wrong)
    with pytest.raises(ConfigError, match=r"one CartPoleEnv object.*give its id \('CartPole-v1'\), a vector made by"):
        shoal.train(AGENT, gymnasium.make("CartPole-v1"), steps=64)
    with pytest.raises(ConfigError, match="one GymEnv object, and a run needs copies: register it"):
        shoal.train(AGENT, GymEnv("CartPole-v1"), steps=64)
    with pytest.raises(ConfigError, match=r'env is a function that makes environments: register it, shoal.register\(env={"mine": …}\)'):
        shoal.train(AGENT, lambda: GymEnv("CartPole-v1"), steps=64)
    with pytest.raises(ConfigError, match=r'env is a class .*"mine": GymEnv}\), and give its name'):
        shoal.train(AGENT, GymEnv, steps=64)
    with pytest.raises(ConfigError, match="lives in Python and cannot be compiled"):
        shoal.train(AGENT, vector, steps=64, path="fused")
    vector.metadata = {}
    with pytest.raises(ConfigError, match=r"CartPole-v1: metadata\['autoreset_mode'\] is None: expected 'NextStep'"):
        adopt(vector, {})


def test_what_a_vector_does_wrong_names_it():
    vector = SyncVectorEnv([lambda i=i: Counting(i) for i in range(SIZE)], autoreset_mode=AutoresetMode.NEXT_STEP)
    vector.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # it says one thing and does another
    with pytest.raises(EnvError, match="SyncVectorEnv: episodes ended in same-step mode, and its info has no 'final_obs'"):
        VectorLane(GymVector(vector), **CALLS).make(None, 0, 0)
    broken = VectorLane(counting(AutoresetMode.DISABLED), **CALLS)
    broken._vector._vector.envs[1].step = lambda action: 1 / 0
    with pytest.raises(EnvError, match="SyncVectorEnv: ZeroDivisionError in step or reset"):
        broken.make(None, 0, 0)


def test_a_main_loop_takes_a_vector_too(tmp_path):
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    agent = shoal.PPO(num_steps=8, num_minibatches=2, num_epochs=1, hidden=(4,))
    assert shoal.MainLoop(vector, agent, steps=32, eval_episodes=2, out=tmp_path / "run").run()["steps"] == 32
    with pytest.raises(ConfigError, match="a vector of 2; leave num_envs out"):
        shoal.MainLoop(vector, agent, steps=32, num_envs=4)
