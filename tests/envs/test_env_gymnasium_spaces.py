"""Gymnasium's spaces: what becomes of observations and actions, what is refused, and the way back of a world made of them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.envs import gym_spaces, maps
from shoal.envs.gymnasium import GymEnv
from shoal.errors import ConfigError, EnvError
from shoal.host_lane import HostLane
from shoal.lane import role
from shoal.runtime.ported import Ported
from shoal.specs import Box, Discrete, Group, MultiBinary, MultiDiscrete
from shoal.types import Acted, Limits

ONE = Limits(1, 2**30, float("inf"))

AGENT = shoal.PPO(num_steps=12, num_epochs=1, num_minibatches=1, hidden=(4,), net="mlp", learning_rate=1e-2)
BUTTONS = spaces.MultiDiscrete([[3, 2], [2, 2]], start=[[1, 0], [0, 5]])


class Maze(gymnasium.Env):
    """Random walks that actions steer; everything it shows follows from its seed and the actions."""

    observation_space = spaces.Dict({
        "inner": spaces.Dict({"state": spaces.Box(-np.inf, np.inf, (2,), np.float64),
                              "tile": spaces.MultiDiscrete([4, 4], start=[1, 1])}),
        "pair": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2))]),
    })
    action_space = BUTTONS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.spot, self.count = self.np_random.normal(size=2), 0
        return self.show(), {}

    def step(self, action):
        assert self.action_space.contains(action) and action.dtype == BUTTONS.dtype
        self.spot = self.spot + self.np_random.normal(size=2) * 0.3 + (action - BUTTONS.start).sum(1) / 7
        self.count += 1
        return self.show(), float(self.spot[0]), self.count == 9, False, {}

    def show(self):
        cell = (np.abs(self.spot * 10).astype(int) % 4) + 1
        switches = np.arange(4).reshape(2, 2) < cell[1]
        return {"inner": {"state": self.spot, "tile": cell}, "pair": (int(cell[0]) % 3 - 1, switches)}


class StatefulMaze(Maze):
    """The same, with a state of its own: 64 bits that matter."""

    def get_state(self):
        inner = self.np_random.bit_generator.state["state"]
        words = [inner[name] >> (32 * k) & 0xFFFFFFFF for name in ("state", "inc") for k in range(4)]
        return {"spot": self.spot.copy(), "count": np.int64(self.count), "draw": np.array(words, np.uint64)}

    def set_state(self, state):
        words = [int(w) for w in state["draw"]]
        whole = [sum(w << (32 * k) for k, w in enumerate(words[i : i + 4])) for i in (0, 4)]
        self.np_random.bit_generator.state = {"bit_generator": "PCG64", "state": dict(zip(("state", "inc"), whole, strict=True)),
                                              "has_uint32": 0, "uinteger": 0}
        self.spot, self.count = np.array(state["spot"], np.float64), int(state["count"])


class Shown(gymnasium.Env):
    """Shows what it is told to, and keeps the actions it was given."""

    def __init__(self, obs=None, action=None, info=None):
        self.observation_space, self.action_space, self.info, self.given = obs, action, info or {}, []

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self.shown = self.observation_space.sample()
        return self.shown, self.info

    def step(self, action):
        assert self.action_space.contains(action)
        self.given.append(action)
        return self.shown, 0.0, False, False, self.info


@pytest.fixture(autouse=True, scope="module")
def _ids():
    before = dict(gymnasium.registry)
    gymnasium.register("ShoalMaze-v0", entry_point=Maze)
    gymnasium.register("ShoalStatefulMaze-v0", entry_point=StatefulMaze)
    gymnasium.register("ShoalShown-v0", entry_point=Shown)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_every_observation_space_has_its_spec():
    def spec(space):
        return gym_spaces.observed("obs", space)[0]

    assert spec(spaces.MultiDiscrete([[2, 3], [4, 5]])) == MultiDiscrete((2, 3, 4, 5))
    assert spec(spaces.MultiBinary([2, 3])) == MultiBinary(6)
    assert spec(spaces.Box(0, 255, (8, 9, 3), np.uint8)) == Box((8, 9, 3), 0.0, 255.0, "uint8")
    assert spec(spaces.Box(0, 1, (2,), bool)) == Box((2,), 0.0, 1.0, "bool")
    assert spec(Maze.observation_space) == Group((
        ("inner", Group((("state_", Box((2,))), ("tile", MultiDiscrete((4, 4)))))),
        ("pair", Group((("0", Discrete(3)), ("1", MultiBinary(4)))))))
    masked = spaces.Dict({"x": spaces.Discrete(2), "action_mask": spaces.Box(0, 1, (2, 2), np.int8),
                          "b": spaces.Dict(action_mask=spaces.Discrete(2))})
    inner = Group((("action_mask_", Discrete(2)),))
    assert spec(masked) == Group((("action_mask", MultiBinary(4)), ("b", inner), ("x", Discrete(2))))


def test_observations_are_read_to_the_number():
    _, read = gym_spaces.observed("obs", Maze.observation_space)
    seen = read({"inner": {"state": np.array([0.5, 2.0]), "tile": np.array([4, 1])}, "pair": (-1, np.array([[1, 0], [0, 1]]))})
    assert list(seen) == ["inner", "pair"] and seen["inner"]["state_"].tolist() == [0.5, 2.0]
    assert seen["inner"]["tile"].tolist() == [3, 0] and seen["pair"]["0"] == 0 and seen["pair"]["1"].tolist() == [1, 0, 0, 1]
    _, read = gym_spaces.observed("obs", spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, -3]]))
    assert read(np.array([[1, 2], [3, 0]])).tolist() == [1, 1, 1, 3]
    assert read(np.array([[[1, 2], [3, 0]], [[0, 1], [2, -3]]])).tolist() == [[1, 1, 1, 3], [0, 0, 0, 0]]  # a vector of two
    assert gym_spaces.observed("obs", spaces.MultiDiscrete([2, 3]))[1] is None


def test_images_stay_bytes_in_a_lane():
    make_fn = lambda: GymEnv("ShoalShown-v0", obs=spaces.Box(0, 255, (4, 5, 3), np.uint8), action=spaces.Discrete(2))
    act = lambda *_: Acted(np.zeros(2, np.int32), (), ())
    lane = HostLane(0, 2, make_fn, seed=1, num_steps=3, mode="reset", memory_fn=lambda _: (), acting_fn=lambda _: act,
                    noise_fn=lambda *_: np.zeros(3), role=role(0.0, 2))
    data = lane.make(None, 0, 0).data
    assert data.obs.dtype == data.next_obs.dtype == np.uint8 and data.obs.shape == (3, 2, 4, 5, 3)
    np.testing.assert_array_equal(data.obs[2, 1], lane.envs[1]._env.unwrapped.shown)
    assert data.obs.max() > 200


CHOICES = spaces.Dict({"b": spaces.Discrete(3, start=4), "a": spaces.MultiDiscrete([2, 5], start=[7, 0])})  # Gymnasium sorts them
WIDE = spaces.Box(np.array([[-0.1], [-1.0]]), np.array([[0.7], [1.0]]), dtype=np.float64)  # in float32, -0.1 lies below this -0.1
NUMBERS = spaces.Tuple([spaces.Box(-2.0, 2.0, (2,)), spaces.Dict(x=WIDE)])


@pytest.mark.parametrize(("space", "spec", "action", "expected"), [
    (spaces.Discrete(4, start=-2), Discrete(4), np.int64(3), 1),
    (BUTTONS, MultiDiscrete((3, 2, 2, 2)), [2, 0, 1, 1], [[3, 0], [1, 6]]),
    (spaces.MultiBinary([2, 2]), MultiBinary(4), [1, 0, 0, 1], [[1, 0], [0, 1]]),
    (spaces.Box(-1, 1, (2, 1)), Box((2,), -1.0, 1.0), [0.5, -0.5], [[0.5], [-0.5]]),
    (CHOICES, MultiDiscrete((2, 5, 3)), [1, 3, 2], {"a": [8, 3], "b": 6}),
    (spaces.Tuple([spaces.MultiBinary(1), spaces.MultiBinary(2)]), MultiBinary(3), [0, 1, 1], ([0], [1, 1])),
    (NUMBERS, Box((4,), (-2.0, -2.0, np.float32(-0.1).item(), -1.0), (2.0, 2.0, np.float32(0.7).item(), 1.0)),
     [2.0, -2.0, -0.1, 0.25], ([2.0, -2.0], {"x": [[-0.1], [0.25]]})),
], ids=lambda x: type(x).__name__)
def test_actions_reach_the_environment_in_its_own_space(space, spec, action, expected):
    env = GymEnv("ShoalShown-v0", obs=spaces.Discrete(2), action=space)
    assert env.spec.action == spec
    action = action if np.ndim(action) == 0 else np.asarray(action, np.float32 if isinstance(spec, Box) else np.int32)
    env.reset(0)
    env.step(action)  # the environment asserts that its space contains what it is given
    np.testing.assert_equal(env._env.unwrapped.given[0], expected)
    np.testing.assert_equal(maps.native(env, action), expected)  # what a loaded policy answers
    if np.ndim(action):  # one function serves a vector, too
        batch = env.write_action(np.stack([action, action])) if env.write_action else np.stack([action, action])
        assert spaces.utils.flatten_space(space).contains(spaces.flatten(space, next(iter(_rows(space, batch)))))


def _rows(space, batch):
    from gymnasium.vector.utils import batch_space, iterate

    assert batch_space(space, 2).contains(batch)
    return iterate(batch_space(space, 2), batch)


@pytest.mark.parametrize(("space", "text"), [
    (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
     "mixes Discrete, Box: expected members that are all Discrete or MultiDiscrete, all Box, or all MultiBinary"),
    (spaces.Dict(a=spaces.Discrete(2), b=spaces.MultiBinary(2)), r"mixes .*MultiDiscrete\(\[2\] \* n\)"),
    (spaces.Dict(a=spaces.Tuple([spaces.Text(4)])), "member 'a', member '0' is Text"),
    (spaces.Dict(a=spaces.Box(0, 3, (2,), np.int32)), "member 'a' is Box.*int32"),
    (spaces.Dict({}), "action space of 'ShoalShown-v0' is empty"),
])
def test_actions_that_cannot_be_one_vector_are_refused(space, text):
    with pytest.raises(ConfigError, match=text) as caught:
        GymEnv("ShoalShown-v0", obs=spaces.Discrete(2), action=space)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("space", "text"), [
    (spaces.Dict(a=spaces.Dict(b=spaces.Sequence(spaces.Discrete(2)))), "member 'a', member 'b' is Sequence"),
    (spaces.Tuple([]), "observation space of 'ShoalShown-v0' is empty"),
    (spaces.Dict({"1": spaces.Discrete(2), 1: spaces.Discrete(2)}), "two keys that read alike"),
    (spaces.Dict(action_mask=spaces.MultiBinary(3)), r"'action_mask' is .*expected MultiBinary\(2\)"),
    (spaces.Dict(action_mask=spaces.Discrete(2)), "'action_mask' is Discrete.*expected a MultiBinary"),
])
def test_observations_that_have_no_place_are_refused(space, text):
    with pytest.raises(ConfigError, match=text):
        GymEnv("ShoalShown-v0", obs=space, action=spaces.Discrete(2))


def test_masks_need_choices():
    with pytest.raises(ConfigError, match="but actions are Box: expected Discrete or MultiDiscrete"):
        GymEnv("ShoalShown-v0", obs=spaces.Dict(action_mask=spaces.MultiBinary(1)), action=spaces.Box(0, 1, (1,)))
    with pytest.raises(ConfigError, match="info_mask: the actions of 'Pendulum-v1' are Box"):
        GymEnv("Pendulum-v1", info_mask=True)


def test_plain_spaces_add_no_call_to_a_step():
    env = GymEnv("CartPole-v1")
    assert env.read_obs is None and env.write_action is None and env.bare_step == env._env.step


def test_masks_from_the_info_are_shown():
    env = GymEnv("Taxi-v4", info_mask=True)
    assert env.spec.obs == Group((("action_mask", MultiBinary(6)), ("obs", Discrete(500))))
    seen = env.reset(3)
    bare = gymnasium.make("Taxi-v4")
    obs, info = bare.reset(seed=3)
    for action in range(6):
        assert seen["obs"] == obs and seen["action_mask"].tolist() == info["action_mask"].tolist()
        assert 0 < info["action_mask"].sum() < 6
        seen = env.step(action)[0]
        obs, *_, info = bare.step(action)
    env = GymEnv("ShoalShown-v0", info_mask=True, obs=spaces.Dict(x=spaces.Discrete(2)), action=spaces.MultiDiscrete([2, 2]))
    assert env.spec.obs == Group((("action_mask", MultiBinary(4)), ("x", Discrete(2))))
    with pytest.raises(EnvError, match="its info has no 'action_mask'; leave info_mask out"):
        env.reset(0)


# --- the way back ----------------------------------------------------------------------------------------------------


def engine_of(name: str) -> Ported:
    engine = Ported(AGENT, None, lambda: shoal.make(name), num_envs=2, lane_envs=2)
    engine.init(5)
    return engine


def run(engine: Ported, count: int) -> None:
    for _ in range(count):
        engine.run(ONE)


@pytest.mark.parametrize(("name", "mode"), [("ShoalMaze-v0", "reset"), ("ShoalStatefulMaze-v0", "state")])
def test_a_cut_goes_on_as_if_it_had_not_been(name, mode):
    straight, back = engine_of(name), engine_of(name)
    run(straight, 3)
    assert straight.replay_mode == mode
    cut = {name: x.copy() for name, x in straight.cut().items()}
    assert cut["lane0.lengths"].tolist() == [0, 0]  # 36 steps: four episodes of 9
    run(straight, 1)
    middle = {name: x.copy() for name, x in straight.cut().items()}  # 48 steps: inside an episode of 9
    assert middle["lane0.lengths"].tolist() == [3, 3] and middle["lane0.actions.0"].shape == (3, 4)
    run(straight, 2)
    run(back, 1)  # stands somewhere else before it is brought back
    assert back.load(cut) == []  # between two episodes
    run(back, 1)
    np.testing.assert_array_equal(back.cut()["lane0.checksum"], middle["lane0.checksum"])
    assert back.load(middle) == []
    run(back, 2)
    one, two = straight.cut(), back.cut()
    assert one.keys() == two.keys() and "lane0.obs['inner']['state_']" in one
    for key in one:
        np.testing.assert_array_equal(one[key], two[key], err_msg=key)
    assert any((one[key] != middle[key]).any() for key in one if "actor" in key)  # it did learn meanwhile


def test_a_loaded_policy_takes_and_answers_the_environments_own(tmp_path):
    made = shoal.train(AGENT, "ShoalMaze-v0", steps=48, num_envs=2, seed=5, eval_episodes=2, out=tmp_path / "run")
    assert np.isfinite(made.result["eval_return"])
    policy, env = shoal.load(made.folder), Maze()
    seen, params = set(), made._loop.engine.policy()
    obs, _ = env.reset(seed=0)
    _, read = gym_spaces.observed("obs", env.observation_space)
    for _ in range(8):
        action = policy.act(obs)
        assert env.action_space.contains(action)
        logits = np.asarray(params.dist(params.features({k: _batched(v) for k, v in read(obs).items()}), None).logits)[0]
        parts = np.split(logits, np.cumsum([3, 2, 2, 2])[:-1])
        assert (action - BUTTONS.start).reshape(-1).tolist() == [int(p.argmax()) for p in parts]
        seen.add(action.tobytes())
        obs = env.step(env.action_space.sample())[0]
    assert seen


def _batched(tree):
    return {k: _batched(v) for k, v in tree.items()} if isinstance(tree, dict) else np.asarray(tree)[None]


def test_final_observations_survive_a_reset_in_place():
    class InPlace(Shown):
        def reset(self, *, seed=None, options=None):
            if not hasattr(self, "board"):
                self.board = {"x": np.zeros(2, np.float32)}
            self.board["x"][:] = 0
            return self.board, {}

        def step(self, action):
            self.board["x"] += 1
            return self.board, 0.0, bool(self.board["x"][0] == 3), False, {}

    gymnasium.register("ShoalInPlace-v0", entry_point=InPlace)
    make_fn = lambda: GymEnv("ShoalInPlace-v0", obs=spaces.Dict(x=spaces.Box(0, 9, (2,))), action=spaces.Discrete(2))
    act = lambda *_: Acted(np.zeros(1, np.int32), (), ())
    lane = HostLane(0, 1, make_fn, seed=1, num_steps=6, mode="reset", memory_fn=lambda _: (), acting_fn=lambda _: act,
                    noise_fn=lambda *_: np.zeros(6), role=role(0.0, 1))
    data = lane.make(None, 0, 0).data
    assert data.obs["x"][:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2] and data.next_obs["x"][:, 0, 0].tolist() == [1, 2, 3, 1, 2, 3]
