"""The Gymnasium adapter: spaces, seeds, limits, true final observations, refusals."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from shoal.envs import make
from shoal.envs.gymnasium import GymEnv
from shoal.errors import ConfigError, MissingError
from shoal.specs import Box, Discrete
from shoal.types import HostEnv


class Counter(gymnasium.Env):
    """Counts up from a random start; terminates when the wanted number is chosen. Choices are 5, 6, 7; observations 10 to 19."""

    action_space = spaces.Discrete(3, start=5)
    observation_space = spaces.Discrete(10, start=10)

    def __init__(self, wanted: int = 7, jump: int = 1):
        self.wanted, self.jump = wanted, jump

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = int(self.np_random.integers(10, 12))
        return self.now, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.now += self.jump
        return self.now, float(action), action == self.wanted, False, {"noise": 1}

    def get_state(self):
        return {"now": np.int32(self.now)}

    def set_state(self, state):
        self.now = int(state["now"])


class Spaced(gymnasium.Env):
    def __init__(self, obs=None, action=None):
        self.observation_space, self.action_space = obs, action
        self.given: list[np.ndarray] = []

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.given.append(action)
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.fixture(autouse=True)
def _ids():
    before = dict(gymnasium.registry)
    gymnasium.register("ShoalCounter-v0", entry_point=Counter, max_episode_steps=4)
    gymnasium.register("ShoalSpaced-v0", entry_point=Spaced)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_offsets_are_taken_out_both_ways():
    env = GymEnv("ShoalCounter-v0")
    assert isinstance(env, HostEnv)
    assert env.spec.action == Discrete(3) and env.spec.obs == Discrete(10) and env.spec.max_episode_steps == 4
    start = env.reset(0)
    assert start in (0, 1)
    obs, reward, terminated, truncated, info = env.step(0)
    assert (obs, reward, terminated, truncated, info) == (start + 1, 5.0, False, False, {})
    obs, reward, terminated, truncated, _ = env.step(np.int32(2))
    assert (obs, reward, terminated, truncated) == (start + 2, 7.0, True, False)  # the true final observation, not a reset one


def test_limit_is_the_ids_own_or_the_one_asked_for():
    for asked, limit in ((0, 4), (2, 2), (6, 6)):
        env = GymEnv("ShoalCounter-v0", asked)
        assert env.spec.max_episode_steps == limit
        for _ in range(2):
            env.reset(0)
            assert [bool(env.step(0)[3]) for _ in range(limit)] == [False] * (limit - 1) + [True]


def test_options_reach_the_environment():
    env = make("ShoalCounter-v0", jump=3)
    start = env.reset(1)
    assert env.step(0)[0] == start + 3


def test_state_carries_the_count():
    one, two = GymEnv("ShoalCounter-v0"), GymEnv("ShoalCounter-v0")
    one.reset(0)
    for _ in range(3):
        obs = one.step(0)[0]
    two.reset(5)
    two.set_state(one.get_state())
    after, _, _, truncated, _ = two.step(0)
    assert after == obs + 1 and truncated
    assert not hasattr(GymEnv("CartPole-v1"), "get_state")


def test_seeding_repeats_to_the_bit():
    def play(seed: int) -> bytes:
        env = GymEnv("CartPole-v1")
        seen = [env.reset(seed)] + [env.step(k % 2)[0] for k in range(20)]
        env.close()
        return np.array(seen).tobytes()

    assert play(3) == play(3) != play(4)


def test_cartpole_is_gymnasiums_to_the_bit():
    ours, theirs = make("CartPole-v1"), gymnasium.make("CartPole-v1")
    np.testing.assert_array_equal(ours.reset(7), theirs.reset(seed=7)[0])
    terminated, count = False, 0
    while not terminated:
        obs, reward, terminated, truncated, _ = ours.step(1)
        expected = theirs.step(1)
        np.testing.assert_array_equal(obs, expected[0])
        assert (reward, terminated, truncated) == expected[1:4]
        count += 1
    assert 5 < count < 20 and abs(obs[2]) > 0.2095  # the fallen pole itself


def test_spec_of_cartpole_and_pendulum():
    assert GymEnv("CartPole-v1").spec.obs.shape == (4,) and GymEnv("CartPole-v1").spec.max_episode_steps == 500
    pendulum = GymEnv("Pendulum-v1", g=9.81)
    assert pendulum.spec.action == Box((1,), -2.0, 2.0) and pendulum.spec.obs == Box((3,), (-1.0, -1.0, -8.0), (1.0, 1.0, 8.0))
    assert pendulum._env.unwrapped.g == 9.81


def test_bounded_actions_are_rescaled_by_make():
    ours, raw = make("Pendulum-v1"), GymEnv("Pendulum-v1")
    assert ours.spec.action == Box((1,), -1.0, 1.0) and ours.spec.max_episode_steps == 200
    np.testing.assert_array_equal(ours.reset(1), raw.reset(1))
    for action in (-1.0, 0.25, 5.0):
        got = ours.step(np.array([action], np.float32))
        want = raw.step(np.array([2 * min(action, 1.0)], np.float32))
        np.testing.assert_array_equal(got[0], want[0])
        assert got[1] == pytest.approx(want[1])


def test_dtypes_of_boxes():
    def spec(obs):
        return GymEnv("ShoalSpaced-v0", obs=obs, action=spaces.Discrete(2)).spec.obs

    assert spec(spaces.Box(0, 255, (2, 3, 1), np.uint8)) == Box((2, 3, 1), 0.0, 255.0, "uint8")
    assert spec(spaces.Box(-1.0, 1e300, (2,), np.float64)) == Box((2,), -1.0, float("inf"), "float32")
    assert spec(spaces.Box(np.array([0, -2]), np.array([1, 2]), dtype=np.int16)) == Box((2,), (0.0, -2.0), (1.0, 2.0), "int16")


def test_float64_actions_stay_inside_their_bounds():
    action = spaces.Box(np.array([-0.4, -0.1]), np.array([0.1, 0.7]), dtype=np.float64)
    env = make("ShoalSpaced-v0", obs=spaces.Box(0, 1, (1,)), action=action)
    env.reset(0)
    for edge in (-1.0, 1.0):
        env.step(np.full(2, edge, np.float32))  # the environment asserts that it is allowed
        assert action.contains(np.asarray(env.env._env.unwrapped.given[-1]))


def test_half_bounded_actions_are_clipped():
    action = spaces.Box(np.array([0.0], np.float32), np.array([np.inf], np.float32))
    env = make("ShoalSpaced-v0", obs=spaces.Box(0, 1, (1,)), action=action)
    env.reset(0)
    env.step(np.array([-3.0], np.float32))
    env.step(np.array([3.0], np.float32))
    given = env.env._env.unwrapped.given
    assert [float(a[0]) for a in given] == [0.0, 3.0] and not env.spec.action.bounded


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Graph(spaces.Discrete(2), None), spaces.Sequence(spaces.Discrete(2)),
                                   spaces.OneOf([spaces.Discrete(2)])])
def test_other_spaces_are_refused_by_name(space):
    name = type(space).__name__
    with pytest.raises(ConfigError, match=f"observation space of 'ShoalSpaced-v0' is {name}.*expected Box, Discrete, Multi"):
        GymEnv("ShoalSpaced-v0", obs=space, action=spaces.Discrete(2))
    with pytest.raises(ConfigError, match=f"action space of 'ShoalSpaced-v0' is {name}"):
        GymEnv("ShoalSpaced-v0", obs=spaces.Discrete(2), action=space)


def test_integer_box_actions_are_refused():
    with pytest.raises(ConfigError, match="action space.*int32"):
        GymEnv("ShoalSpaced-v0", obs=spaces.Discrete(2), action=spaces.Box(0, 3, (2,), np.int32))


def test_unknown_ids_and_options():
    with pytest.raises(MissingError, match="unknown env 'CartPol-v1'; did you mean 'CartPole-v1'"):
        make("CartPol-v1")
    with pytest.raises(MissingError, match="unknown env 'CartPole-v7'; did you mean 'CartPole-v"):
        make("CartPole-v7")
    with pytest.raises(ConfigError, match="'Pendulum-v1' has no option 'gg'; did you mean 'g'"):
        make("Pendulum-v1", gg=9.0)
    with pytest.raises(ConfigError, match="os:CartPole-v1.*--plugin"):
        make("os:CartPole-v1")


def test_a_constructor_that_refuses_is_one_line():
    def broken(size: int = 3):
        raise ValueError("size must be even\nand more")

    gymnasium.register("ShoalBroken-v0", entry_point=broken)
    with pytest.raises(ConfigError, match="'ShoalBroken-v0' cannot be made: size must be even") as caught:
        make("ShoalBroken-v0", size=5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("error", "command"), [
    (gymnasium.error.DependencyNotInstalled('X is not installed, run `pip install swig` then `pip install "gymnasium[box2d]"`'),
     "pip install 'shoal\\[box2d\\]'$"),
    (gymnasium.error.DependencyNotInstalled('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`'),
     "pip install 'shoal\\[mujoco\\]'$"),
    (gymnasium.error.DependencyNotInstalled('Y is not installed, run `pip install "gymnasium[atari]"`'),
     'pip install "gymnasium\\[atari\\]"$'),
    (ModuleNotFoundError("No module named 'frobnicate.core'", name="frobnicate.core"), "pip install frobnicate$"),
    (ImportError("moved elsewhere\nsee there"), "cannot be made: moved elsewhere$"),
])
def test_missing_packages_name_the_command(error, command):
    def broken():
        raise error

    gymnasium.register("ShoalMissing-v0", entry_point=broken)
    with pytest.raises(MissingError, match=f"env 'ShoalMissing-v0' .*{command}"):
        make("ShoalMissing-v0")


def test_atari_without_its_package_says_so():
    try:
        import ale_py  # noqa: F401
    except ImportError:
        with pytest.raises(MissingError, match="'ALE/Pong-v5' needs.*pip install ale-py"):
            make("ALE/Pong-v5")
    else:
        pytest.skip("ale-py is installed")
