"""Frame stack, flatten, sticky actions and shaping, compiled and host: the same numbers on both sides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import rng
from shoal.envs import make, maps, replay
from shoal.envs.build import from_plan
from shoal.envs.cartpole import CartPole
from shoal.envs.matrix_game import MatrixGame
from shoal.envs.stacking import FlattenObs, FrameStack, HostFlattenObs, HostFrameStack, Observer
from shoal.envs.stacking import flat_space, flatten, stacked_space
from shoal.envs.sticky import HostStickyActions, StickyActions
from shoal.errors import ConfigError
from shoal.plan import Plan
from shoal.specs import MASK, STATE, Box, Discrete, EnvSpec, Group, MultiBinary, MultiDiscrete
from shoal.types import Step, pytree

KEY = jax.random.key(0)
SPACES = {
    "vector": Box((2,), (0.0, -1.0), (99.0, 199.0)), "scalar": Box(()), "grey": Box((2, 3), 0.0, 255.0, "uint8"),
    "image": Box((2, 2, 3), 0.0, 255.0, "uint8"), "choice": Discrete(5), "choices": MultiDiscrete((2, 3)),
    "switches": MultiBinary(3),
    "group": Group((("place", Discrete(3)), ("speed", Box((2,), -99.0, 99.0)), (MASK, MultiBinary(2)), (STATE, Box((4,))))),
}


def shown(space, count, xp):
    """What a world of this space shows at step ``count``: other numbers at every step and place."""
    if isinstance(space, Group):
        return {name: shown(inner, count, xp) for name, inner in space.items}
    size = int(np.prod(space.shape))
    numbers = xp.arange(size).reshape(space.shape) + 7 * count
    most = {"Discrete": lambda: space.num, "MultiDiscrete": lambda: np.array(space.nums), "MultiBinary": lambda: 2}
    most_of = most.get(type(space).__name__)
    return xp.asarray(numbers % most_of() if most_of else numbers, space.dtype)


@pytree
class Counter:
    """Counts its steps, shows the count in its space, ends after 4; the reward is the action."""

    kind: str
    limit: int = 4

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("counter", SPACES[self.kind], Discrete(10), max_episode_steps=self.limit)

    def reset(self, key):
        return jnp.int32(0), shown(self.spec.obs, jnp.int32(0), jnp)

    def step(self, state, action, key):
        state = state + 1
        obs, never = shown(self.spec.obs, state, jnp), jnp.zeros((), bool)
        return state, Step(obs, jnp.asarray(action, jnp.float32), state >= self.limit, never, {})


class HostCounter:
    def __init__(self, kind, limit=4):
        self.spec, self.count, self.limit = Counter(kind, limit).spec, 0, limit

    def reset(self, seed):
        self.count = 0
        return shown(self.spec.obs, 0, np)

    def step(self, action):
        self.count += 1
        return shown(self.spec.obs, self.count, np), float(action), self.count >= self.limit, False, {}

    def close(self):
        pass


class Remembering(HostCounter):
    def get_state(self):
        return {"count": np.int32(self.count)}

    def set_state(self, state):
        self.count = int(state["count"])


def play_compiled(env, actions, key=KEY):
    """Every observation, reward and flag."""
    state, obs = env.reset(key)
    seen = [obs]
    for i, action in enumerate(actions):
        state, step = env.step(state, action, jax.random.fold_in(key, i))
        seen.append((step.obs, step.reward, step.terminated))
    return seen


def play_host(env, actions, seed=3):
    seen = [env.reset(seed)]
    for action in actions:
        obs, reward, terminated, _, _ = env.step(action)
        seen.append((obs, reward, terminated))
    return seen


def assert_same(a, b, **tolerance):
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(left, right, strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), **(tolerance or {"rtol": 0, "atol": 0}))


def assert_belongs(space, obs):
    if isinstance(space, Group):
        assert set(obs) == {name for name, _ in space.items}
        for name, inner in space.items:
            assert_belongs(inner, obs[name])
    else:
        assert np.shape(obs) == space.shape and np.asarray(obs).dtype == space.dtype, (space, obs)
        if isinstance(space, Box):
            low, high = space.bounds()
            assert (np.asarray(obs) >= low).all() and (np.asarray(obs) <= high).all()


# frame stack ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPACES)
def test_stack_is_the_same_compiled_and_host_and_belongs_to_its_space(kind):
    ours, host = FrameStack(Counter(kind), 3), HostFrameStack(HostCounter(kind), 3)
    assert ours.spec == host.spec and hash(ours.spec) == hash(host.spec)
    left, right = play_compiled(ours, [0, 1, 2]), play_host(host, [0, 1, 2])
    assert_same(left, right)
    for side in (left, right):
        assert_belongs(ours.spec.obs, side[0])
        assert_belongs(ours.spec.obs, side[3][0])


def test_stack_of_vectors_holds_the_newest_last_and_fills_after_a_reset():
    env = HostFrameStack(HostCounter("vector"), 3)
    for _ in range(2):  # nothing of one episode is seen in the next
        seen = play_host(env, [0, 0, 0, 0])
        assert seen[0].tolist() == [0, 1, 0, 1, 0, 1]
        assert seen[1][0].tolist() == [0, 1, 0, 1, 7, 8]
        assert seen[4][0].tolist() == [14, 15, 21, 22, 28, 29] and seen[4][2]  # the true successor, across the end
    assert env.spec.obs.low == (0.0, -1.0) * 3 and env.spec.obs.shape == (6,)


def test_stack_of_images_is_along_the_channels():
    first, second = (shown(SPACES["image"], count, np) for count in (0, 1))
    seen = play_host(HostFrameStack(HostCounter("image"), 2), [0])
    assert seen[1][0].shape == (2, 2, 6)
    np.testing.assert_array_equal(seen[1][0], np.concatenate([first, second], axis=2))
    grey = play_host(HostFrameStack(HostCounter("grey"), 2), [0])
    assert grey[1][0].shape == (2, 3, 2) and grey[1][0][..., 1].tolist() == shown(SPACES["grey"], 1, np).tolist()


def test_stack_leaves_mask_and_state_alone():
    space = stacked_space(SPACES["group"], 2)
    assert space[MASK] == MultiBinary(2) and space[STATE] == Box((4,))
    assert space["place"] == MultiDiscrete((3, 3)) and space["speed"].shape == (4,)


def test_stack_keeps_the_agents_axis_in_front():
    env = FrameStack(MatrixGame(length=3), 2)
    seen = play_compiled(env, [jnp.array([0, 1]), jnp.array([1, 1])])
    assert seen[1][0].shape == (2, 8) and env.spec.obs.shape == (8,)
    np.testing.assert_array_equal(seen[2][0][:, :4], seen[1][0][:, 4:])


def test_stack_refuses_nothing_to_stack():
    with pytest.raises(ConfigError, match="frame_stack = 0"):
        HostFrameStack(HostCounter("vector"), 0)


# flatten -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPACES)
def test_flat_is_the_same_compiled_and_host_and_belongs_to_its_space(kind):
    ours, host = FlattenObs(Counter(kind)), HostFlattenObs(HostCounter(kind))
    assert ours.spec == host.spec
    left, right = play_compiled(ours, [0, 1]), play_host(host, [0, 1])
    assert_same(left, right)
    for side in (left, right):
        assert_belongs(ours.spec.obs, side[0])
        assert_belongs(ours.spec.obs, side[2][0])


def test_flat_numbers():
    space = Group((("a", Discrete(3)), ("b", Box((2,), -2.0, 2.0)), ("c", MultiDiscrete((2, 2))), ("d", MultiBinary(2))))
    obs = {"a": 2, "b": np.array([0.5, -1.0]), "c": np.array([1, 0]), "d": np.array([1, 0])}
    flat = flatten(space, obs, np)
    assert flat.tolist() == [0, 0, 1, 0.5, -1, 0, 1, 1, 0, 1, 0] and flat.dtype == np.float32
    assert flat_space(space) == Box((11,), (0, 0, 0, -2, -2, 0, 0, 0, 0, 0, 0), (1, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1))
    assert flat_space(Discrete(4)) == Box((4,), 0.0, 1.0) and flat_space(Box((2, 3))) == Box((6,))
    assert set(flatten(SPACES["group"], shown(SPACES["group"], 0, np), np)) == {"obs", MASK, STATE}


# sticky actions ------------------------------------------------------------------------------------------------------


def taken_by(env, seed, num):
    """The rewards of the actions 0, 1, 2 … 9, 0 …: what the environment was given."""
    env.reset(seed)
    return [int(env.step(i % 10)[1]) for i in range(num)]


def test_sticky_repeats_what_was_taken_at_the_right_rate():
    num = 2000
    env = StickyActions(Counter("choice", 10**6), 0.25)

    def one(state, i):
        state, step = env.step(state, i % 10, jax.random.fold_in(KEY, i))
        return state, step.reward

    compiled = jax.jit(lambda: jax.lax.scan(one, env.reset(KEY)[0], jnp.arange(num))[1])()
    host = taken_by(HostStickyActions(HostCounter("choice", 10**6), 0.25), 5, num)
    for given in (np.asarray(compiled, int), np.asarray(host)):
        wanted = np.arange(num) % 10
        new = given == wanted
        assert given[0] == 0
        assert (given[1:][~new[1:]] == given[:-1][~new[1:]]).all()  # either the new action or the one taken before
        assert abs((~new).mean() - 0.25) < 0.035  # 3.5 standard deviations


@pytest.mark.parametrize(("probability", "expected"), [(0.0, [0, 1, 2, 3]), (1.0, [0, 0, 0, 0])])
def test_sticky_never_and_always(probability, expected):
    assert taken_by(HostStickyActions(HostCounter("choice", 9), probability), 1, 4) == expected
    seen = play_compiled(StickyActions(Counter("choice", 9), probability), range(4))
    assert [int(reward) for _, reward, _ in seen[1:]] == expected


def test_sticky_replays_from_seed_and_actions_and_differs_by_seed():
    used, new = (HostStickyActions(HostCounter("choice", 50), 0.5) for _ in range(2))
    taken_by(used, 8, 17)
    assert taken_by(used, 4, 40) == taken_by(new, 4, 40) != taken_by(new, 5, 40)
    assert replay.replay_mode(lambda: HostStickyActions(HostCounter("choice", 50), 0.5), 3) == "reset"


def test_sticky_agents_stick_each_for_itself():
    env = StickyActions(MatrixGame(length=300), 0.5)
    state, _ = env.reset(KEY)
    step_fn, alone = jax.jit(env.step), 0
    for i in range(60):
        wanted = jnp.array([i % 2, i % 2])
        state, _ = step_fn(state, wanted, jax.random.fold_in(KEY, i))
        alone += int((state.previous == wanted).sum() == 1)
    assert alone > 15  # half of the time on average


def test_sticky_host_agents():
    class Pair(HostCounter):
        def __init__(self):
            super().__init__("vector", 1000)
            self.spec = EnvSpec("pair", Box((1,)), Discrete(10), num_agents=2)

        def step(self, action):
            return np.zeros((2, 1)), action, np.zeros(2, bool), np.zeros(2, bool), {}

    env = HostStickyActions(Pair(), 0.5)
    env.reset(1)
    taken = np.array([env.step(np.array([i % 10, i % 10]))[1] for i in range(200)])
    stuck = taken[1:] != (np.arange(1, 200) % 10)[:, None]
    assert 0.4 < stuck.mean() < 0.6 and (stuck[:, 0] != stuck[:, 1]).mean() > 0.3
    np.testing.assert_array_equal(taken[1:][stuck], taken[:-1][stuck])


# shaping -------------------------------------------------------------------------------------------------------------


def total(obs):
    return 0.1 * obs.sum() + 1.0


def test_shaping_numbers():
    rewards = [2, 4, 6, 8]  # potentials 1.1, 2.5, 3.9, 5.3, 6.7; the last is an end, so nothing
    expected = [2 + 0.9 * 2.5 - 1.1, 4 + 0.9 * 3.9 - 2.5, 6 + 0.9 * 5.3 - 3.9, 8 - 5.3]
    ours = play_compiled(maps.ShapeReward(Counter("vector"), total, 0.9), rewards)
    host = play_host(maps.HostShapeReward(HostCounter("vector"), total, 0.9), rewards)
    np.testing.assert_allclose([r for _, r, _ in ours[1:]], expected, rtol=1e-6)
    np.testing.assert_allclose([r for _, r, _ in host[1:]], expected, rtol=1e-6)
    assert np.asarray(host[1][1]).dtype == np.float32


def test_a_truncated_state_keeps_its_potential():
    _, *steps = play_compiled(maps.ShapeReward(maps.TimeLimit(Counter("vector"), 1), total, 0.9), [2])
    assert float(steps[0][1]) == pytest.approx(2 + 0.9 * 2.5 - 1.1)


def test_shaping_is_one_program_and_its_discount_is_data():
    compiled = 0

    def one(env, action):
        nonlocal compiled
        compiled += 1
        return env.step(env.reset(KEY)[0], action, KEY)[1].reward

    step_fn = jax.jit(one)
    values = [float(step_fn(maps.ShapeReward(Counter("vector"), total, discount), 2)) for discount in (0.9, 0.5)]
    np.testing.assert_allclose(values, [2 + 0.9 * 2.5 - 1.1, 2 + 0.5 * 2.5 - 1.1], rtol=1e-6)
    assert compiled == 1


@pytree
class Maze:
    """Six cells in a ring with two ends: a small world that can be solved exactly. Actions: left, right, stay."""

    slip: float = 0.2

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("maze", Discrete(6), Discrete(3))

    def reset(self, key):
        return jnp.int32(0), jnp.int32(0)

    def step(self, state, action, key):
        way = jnp.where(jax.random.uniform(key) < self.slip, 2 - action, action)
        after = (state + jnp.array([-1, 1, 0])[way]) % 6
        reward = jnp.where(after == 3, 1.0, jnp.where(after == 5, 0.35, -0.01)) - 0.02 * action
        return after, Step(after, reward, (after == 3) | (after == 5), jnp.zeros((), bool), {})


def solved(env, states, discount, num_keys=256):
    """Values and greedy policy of the empirical process over fixed keys, by value iteration: exact for that process."""
    keys = jax.random.split(KEY, num_keys)

    @jax.jit
    def outcome(state):
        act = jax.vmap(lambda action, key: env.step(state, action, key)[1], in_axes=(None, 0))
        return jax.vmap(act, in_axes=(0, None))(jnp.arange(3), keys)

    steps = [jax.device_get(outcome(state)) for state in states]
    obs, reward, ended = (np.stack([getattr(step, name) for step in steps]) for name in ("obs", "reward", "terminated"))
    values = np.zeros(6)
    for _ in range(2000):
        quality = (reward.astype(np.float64) + discount * np.where(ended, 0.0, values[obs])).mean(-1)  # [6, 3]
        values = quality.max(1)
    return values, quality


def test_shaping_does_not_move_the_optimum():
    table = np.array([0.3, -2.0, 5.0, 7.0, -4.0, 1.0], np.float32)  # misleading on purpose
    discount = 0.9
    plain, quality = solved(Maze(), [jnp.int32(i) for i in range(6)], discount)
    env = maps.ShapeReward(Maze(), lambda obs: jnp.asarray(table)[obs], discount)
    shaped, shaped_quality = solved(env, [maps.Shaped(jnp.int32(i), jnp.asarray(table)[i]) for i in range(6)], discount)
    going = [0, 1, 2, 4]  # 3 and 5 are ends
    assert set(quality[going].argmax(1)) == {0, 1}  # the world asks for different actions in different places
    np.testing.assert_array_equal(shaped_quality[going].argmax(1), quality[going].argmax(1))
    np.testing.assert_allclose(shaped[going], plain[going] - table[going], atol=1e-5)  # Ng et al., eq. 3
    # what is not potential-based does move it: the same table added outright
    bonus = quality + table[(np.arange(6)[:, None] + np.array([-1, 1, 0])) % 6]
    assert (bonus[going].argmax(1) != quality[going].argmax(1)).any()


# states --------------------------------------------------------------------------------------------------------------

WRAPS = {
    "stack": lambda env: HostFrameStack(env, 3), "sticky": lambda env: HostStickyActions(env, 0.5), "flat": HostFlattenObs,
    "shaping": lambda env: maps.HostShapeReward(env, total, 0.9),
    "all": lambda env: HostFlattenObs(HostFrameStack(maps.HostTimeLimit(HostStickyActions(env, 0.5), 30), 2)),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_state_continues_a_copy_exactly(kind):
    env, other = (WRAPS[kind](Remembering("vector", 40)) for _ in range(2))
    play_host(env, range(7), seed=11)
    other.reset(99)
    other.set_state(jax.tree.map(np.array, env.get_state()))
    assert_same([env.step(i)[:4] for i in range(25)], [other.step(i)[:4] for i in range(25)])


@pytest.mark.parametrize("kind", WRAPS)
def test_without_a_state_an_episode_is_replayed_exactly(kind):
    env, other = (WRAPS[kind](HostCounter("vector", 40)) for _ in range(2))
    assert not hasattr(env, "get_state")
    seen = play_host(env, range(9), seed=11)
    play_host(other, range(4), seed=2)
    assert_same(replay.replay(other, 11, list(range(9))), seen[-1][0])
    assert_same(env.step(3)[:4], other.step(3)[:4])


# by name -------------------------------------------------------------------------------------------------------------


def test_make_applies_maps_in_their_order():
    env = make("pendulum", 7, sticky_actions=0.25, frame_stack=4, flatten_obs=True)
    chain = []
    inner = env
    while inner is not None:
        chain.append(type(inner).__name__)
        inner = getattr(inner, "env", None)
    assert chain == ["RescaleAction", "FlattenObs", "FrameStack", "TimeLimit", "StickyActions", "Pendulum"]
    assert env.spec.obs == Box((12,)) and env.spec.max_episode_steps == 7 and env.spec.action == Box((1,), -1.0, 1.0)
    gym = make("CartPole-v1", sticky_actions=0.25, frame_stack=4)
    assert [type(gym), type(gym.env)] == [HostFrameStack, HostStickyActions] and gym.spec.obs.shape == (16,)
    assert type(make("cartpole")) is maps.TimeLimit  # nothing asked for, nothing added


@pytest.mark.parametrize(("setting", "message"), [
    ({"sticky_actions": 1.5}, "sticky_actions = 1.5: expected a probability"),
    ({"sticky_actions": True}, "sticky_actions = True"),
    ({"frame_stack": 0}, "frame_stack = 0"), ({"frame_stack": 2.0}, "frame_stack = 2.0"), ({"flatten_obs": 1}, "flatten_obs = 1"),
])
def test_make_refuses(setting, message):
    with pytest.raises(ConfigError, match=message):
        make("cartpole", **setting)


def test_a_plan_maps_names_and_objects_alike():
    plan = Plan(env="cartpole", frame_stack=3, flatten_obs=True)
    named, given = from_plan(plan), from_plan(plan, maps.TimeLimit(CartPole(), 500))
    assert named == given and named.spec.obs.shape == (12,)


def test_an_observer_sees_what_the_maps_would_show():
    env = HostFlattenObs(HostFrameStack(HostCounter("group"), 3))
    observer = Observer(env)
    for _ in range(2):
        observer.reset()
        seen = play_host(env, [0, 1])
        raw = [shown(SPACES["group"], count, np) for count in range(3)]
        assert_same([observer(obs) for obs in raw], [seen[0], seen[1][0], seen[2][0]])
        assert observer(seen[2][0]) is seen[2][0]  # mapped already


def test_host_draws_of_sticky_actions_are_named_by_address():
    env = HostStickyActions(HostCounter("choice", 100), 0.5)
    given = taken_by(env, 6, 30)
    stuck = [rng.host_seed(6, rng.Stream.ENV, count) < 2**30 for count in range(30)]
    assert [i for i in range(1, 30) if stuck[i]] == [i for i in range(1, 30) if given[i] == given[i - 1]]
