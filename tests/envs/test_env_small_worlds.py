"""The small worlds with known answers: moves, chances and optima by number."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs import make
from shoal.envs.bandit import Bandit
from shoal.envs.chain import Chain
from shoal.envs.gridworld import GridWorld
from shoal.errors import ConfigError
from shoal.specs import Discrete

KEY = jax.random.key(0)
UP, DOWN, LEFT, RIGHT = range(4)
WALLED = GridWorld(width=4, height=3, obstacles=((1, 1), (3, 1)), goal=(3, 0))  # . . . G / . # . # / . . . .

step_fn = jax.jit(lambda env, *rest: env.step(*rest))
many_fn = jax.jit(lambda env, state, action, keys: jax.vmap(env.step, in_axes=(None, None, 0))(state, action, keys))


@jax.jit
def table_fn(env, states, actions, keys):
    """Every state with every action and key: [S, A, K]."""
    inner = jax.vmap(env.step, in_axes=(None, None, 0))
    return jax.vmap(jax.vmap(inner, in_axes=(None, 0, None)), in_axes=(0, None, None))(states, actions, keys)


def enumerate_steps(env, num_keys=1):
    spec = env.spec
    return table_fn(env, jnp.arange(spec.obs.num), jnp.arange(spec.action.num), jax.random.split(KEY, num_keys))


def iterate_values(after, reward, alive, chance, discount):
    """Optimal values [S] and choices [S, A] from what each effect e does, [S, E], and how likely an action causes it, [A, E]."""
    value = np.zeros(len(after))
    for _ in range(5000):
        choices = (reward + discount * alive * value[after]) @ chance.T
        value = choices.max(1)
    return value, choices


# gridworld ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "action", "after"), [
    ((0, 0), RIGHT, (1, 0)), ((1, 0), LEFT, (0, 0)), ((0, 0), DOWN, (0, 1)), ((0, 2), UP, (0, 1)),
    ((0, 0), UP, (0, 0)), ((0, 0), LEFT, (0, 0)), ((3, 2), DOWN, (3, 2)), ((3, 2), RIGHT, (3, 2)),  # the edge
    ((1, 0), DOWN, (1, 0)), ((0, 1), RIGHT, (0, 1)), ((2, 1), LEFT, (2, 1)), ((1, 2), UP, (1, 2)),  # obstacles
])
def test_gridworld_moves_and_is_blocked(cell, action, after):
    state, step = step_fn(WALLED, jnp.int32(cell[1] * 4 + cell[0]), jnp.int32(action), KEY)
    assert int(state) == int(step.obs) == after[1] * 4 + after[0]
    assert float(step.reward) == pytest.approx(-0.01) and not step.terminated and not step.info["success"]


def test_gridworld_ends_at_the_goal_with_its_reward():
    state, step = step_fn(WALLED, jnp.int32(2), jnp.int32(RIGHT), KEY)
    assert int(state) == 3 and step.terminated and step.info["success"] and not step.truncated and float(step.reward) == 1
    assert state.dtype == step.obs.dtype == jnp.int32 and step.reward.dtype == jnp.float32
    assert int(WALLED.reset(KEY)[0]) == 0


def test_gridworld_says_what_it_is():
    spec = make("gridworld", width=4, height=3, obstacles=[[1, 1]], start=[-1, 0], goal=[0, -1]).spec
    assert (spec.obs, spec.action, spec.info, spec.max_episode_steps) == (Discrete(12), Discrete(4), ("success",), 48)
    world = GridWorld(width=4, height=3, start=(-1, 0), goal=(0, -1))
    assert int(world.reset(KEY)[1]) == 3 and step_fn(world, jnp.int32(4), jnp.int32(DOWN), KEY)[1].terminated


def test_gridworld_slips_in_every_direction_alike():
    num, slip, middle = 20_000, 0.4, 12
    after, _ = many_fn(GridWorld(slip=slip), jnp.int32(middle), jnp.int32(RIGHT), jax.random.split(KEY, num))
    moves = {UP: -5, DOWN: 5, LEFT: -1, RIGHT: 1}
    share = {way: float((np.asarray(after) == middle + move).mean()) for way, move in moves.items()}
    deviation = np.sqrt(0.1 * 0.9 / num)
    assert share == {UP: pytest.approx(0.1, abs=4 * deviation), DOWN: pytest.approx(0.1, abs=4 * deviation),
                     LEFT: pytest.approx(0.1, abs=4 * deviation), RIGHT: pytest.approx(0.7, abs=6 * deviation)}
    assert sum(share.values()) == pytest.approx(1.0)


def test_slip_and_rewards_are_data():
    before = step_fn._cache_size()
    for slip, reward in ((0.1, -1.0), (0.9, -2.0)):
        _, step = step_fn(GridWorld(width=2, height=7, slip=slip, step_reward=reward), jnp.int32(0), jnp.int32(UP), KEY)
        assert float(step.reward) == reward
    assert step_fn._cache_size() == before + 1


def ways(env):
    """What the four directions do, from steps without slip; what an action causes, with it."""
    sure = GridWorld(env.width, env.height, env.obstacles, 0.0, env.goal_reward, env.step_reward, env.start, env.goal)
    after, step = jax.tree.map(lambda x: np.asarray(x)[..., 0], enumerate_steps(sure))
    return after, step.reward, ~step.terminated, (1 - env.slip) * np.eye(4) + env.slip / 4


def test_gridworld_values_are_the_lengths_of_the_ways():
    value, choices = iterate_values(*ways(WALLED), discount=0.9)
    distance = {0: 3, 1: 2, 2: 1, 4: 4, 6: 2, 8: 5, 9: 4, 10: 3, 11: 4}  # by hand; round the obstacles
    for cell, steps in distance.items():
        expected = 0.9 ** (steps - 1) - 0.01 * (1 - 0.9 ** (steps - 1)) / 0.1
        assert value[cell] == pytest.approx(expected, abs=1e-6), cell
    assert choices[0].argmax() == RIGHT and choices[11].argmax() == LEFT and choices[6].argmax() == UP


def test_gridworld_slippery_values_by_hand():
    """Two cells side by side: an action right gets there with probability 1 - 3/4 · slip, any other with slip / 4."""
    env = GridWorld(width=2, height=1, slip=0.4)
    value, _ = iterate_values(*ways(env), discount=0.9)
    assert value[0] == pytest.approx((0.7 - 0.3 * 0.01) / (1 - 0.9 * 0.3), abs=1e-6)
    within = sum(0.3**n * (0.7 - 0.3 * 0.01) for n in range(8))  # eight steps are the limit, nothing discounted
    assert env.optimum == pytest.approx(within, abs=1e-9)


def test_gridworld_optimum():
    assert GridWorld().optimum == pytest.approx(1 - 7 * 0.01)  # eight steps
    assert WALLED.optimum == pytest.approx(1 - 2 * 0.01)
    assert GridWorld(width=3, height=1, step_reward=1.0, goal_reward=0.0).optimum == 12  # never arriving is best
    slippery = GridWorld(width=4, height=3, obstacles=((1, 1), (3, 1)), goal=(3, 0), slip=0.3)
    assert slippery.optimum == pytest.approx(iterate_values(*ways(slippery), discount=1.0)[0][0], abs=1e-4)


@pytest.mark.parametrize(("options", "message"), [
    ({"obstacles": [[0, 0]]}, r"start = \(0, 0\): expected a free cell"),
    ({"obstacles": [[4, 4]]}, r"goal = \(-1, -1\): expected a free cell"),
    ({"obstacles": [[5, 0]]}, r"obstacles = \(5, 0\): lies outside the grid, which is 5 wide and 5 high"),
    ({"obstacles": [[0, -6]]}, r"obstacles = \(0, -6\): lies outside"),
    ({"obstacles": [1, 2]}, "obstacles = 1: expected a pair"),
    ({"obstacles": [[1, 2, 3]]}, r"obstacles = \(1, 2, 3\): expected a pair"),
    ({"obstacles": [[1, 2.5]]}, "expected a pair of whole numbers"),
    ({"obstacles": 3}, "obstacles = 3: expected pairs"),
    ({"obstacles": [[x, 2] for x in range(5)]}, r"goal = \(-1, -1\): cannot be reached from start = \(0, 0\)"),
    ({"obstacles": [[3, 4], [4, 3]]}, "cannot be reached"),
    ({"start": [4, 4]}, r"goal = \(-1, -1\): expected another cell than the start"),
    ({"start": [0, 7]}, r"start = \(0, 7\): lies outside"),
    ({"goal": "corner"}, "goal = 'corner': expected a pair"),
    ({"slip": 1.5}, "slip = 1.5.*from 0 to 1"),
    ({"width": 0}, "width = 0.*from 1 to 256"),
])
def test_impossible_maps_are_refused(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make("gridworld", **options)
    assert "\n" not in str(caught.value)


# bandit ------------------------------------------------------------------------------------------------------------


def test_bandit_pays_its_means_and_noise():
    env, num = Bandit(means=(1.0, -2.0, 0.5), noise=0.5), 10_000
    after, step = enumerate_steps(env, num)
    reward = np.asarray(step.reward)[0]
    np.testing.assert_allclose(reward.mean(1), env.means, atol=4 * 0.5 / np.sqrt(num))
    np.testing.assert_allclose(reward.std(1), 0.5, atol=0.02)
    assert step.terminated.all() and not step.truncated.any() and not step.obs.any() and not after.any()
    assert env.optimum == 1.0 and Bandit().optimum == max(Bandit.means)


def test_bandit_without_noise_pays_exactly_and_once():
    env = make("bandit", means=[0.25, 3], noise=0)
    assert env.spec.obs == Discrete(1) and env.spec.action == Discrete(2)
    assert [float(step_fn(env, jnp.int32(0), jnp.int32(arm), KEY)[1].reward) for arm in (0, 1)] == [0.25, 3.0]


@pytest.mark.parametrize("means", [[], 3, "high", [1, "two"], [[1, 2]], [float("nan")]])
def test_bad_arms_are_refused(means):
    with pytest.raises(ConfigError, match="means = .*one for each arm"):
        make("bandit", means=means)


# chain -------------------------------------------------------------------------------------------------------------


def effects(env):
    """What left and right do, from steps without slip; how likely each action causes them, with it."""
    sure = Chain(env.length, 0.0, env.back_reward, env.end_reward, env.limit)
    after, step = jax.tree.map(lambda x: np.asarray(x)[..., 0], enumerate_steps(sure))
    assert not step.terminated.any() and not step.truncated.any()
    return after, step.reward, ~step.terminated, np.array([[1 - env.slip, env.slip], [env.slip, 1 - env.slip]])


def test_chain_moves_and_pays():
    after, reward, _, _ = effects(Chain())
    np.testing.assert_array_equal(after, [[0, 1], [0, 2], [0, 3], [0, 4], [0, 4]])
    np.testing.assert_array_equal(reward, [[2, 0], [2, 0], [2, 0], [2, 0], [2, 10]])
    assert int(Chain().reset(KEY)[0]) == 0
    assert make("chain", length=7, limit=30).spec.max_episode_steps == 30 and Chain(length=7).spec.obs == Discrete(7)


def test_chain_slips_to_the_opposite():
    num = 10_000
    after, step = enumerate_steps(Chain(), num)
    moved = np.asarray(after[2] == 3).mean(1)  # from place 2: share that moved on, under left and under right
    np.testing.assert_allclose(moved, [0.2, 0.8], atol=4 * np.sqrt(0.16 / num))
    np.testing.assert_array_equal(np.asarray(step.reward[2]), np.where(np.asarray(after[2]) == 0, 2.0, 0.0))


def test_right_everywhere_is_optimal_in_the_default_chain():
    """In the long run, exactly: 3.6768 a step, the best of all 32 policies, and the choice of value iteration."""
    after, reward, alive, chance = effects(Chain())
    gains = {}
    for policy in itertools.product((0, 1), repeat=5):
        likely = chance[list(policy)]  # [S, E]
        moves = np.zeros((5, 5))
        for effect in range(2):
            moves[np.arange(5), after[:, effect]] += likely[:, effect]
        stays = np.linalg.matrix_power(moves, 1000)[0]
        gains[policy] = float(stays @ (likely * reward).sum(1))
    assert max(gains, key=gains.__getitem__) == (1,) * 5
    assert gains[(1,) * 5] == pytest.approx(0.2 * 2 + 0.8**5 * 10) == pytest.approx(3.6768)
    assert gains[(0,) * 5] == pytest.approx(1.6032)
    value, choices = iterate_values(after, reward, alive, chance, discount=0.99)
    assert (choices.argmax(1) == 1).all() and value[0] == pytest.approx(0.99 * 0.2 * value[0] + 0.99 * 0.8 * value[1] + 0.4)


def test_chain_optimum_counts_the_episode():
    assert Chain(slip=0.0).optimum == pytest.approx(96 * 10)  # four steps there, then ten a step
    assert Chain(slip=0.0, limit=4).optimum == pytest.approx(4 * 2)  # too short to arrive: back is best
    place, total = np.array([1.0, 0, 0, 0, 0]), 0.0  # going right from the start, as a distribution over places
    for _ in range(100):
        total += 0.2 * 2 + place[4] * 0.8 * 10
        place = np.array([0.2, *(0.8 * place[:3]), 0.8 * (place[3] + place[4])])
    assert Chain().optimum == pytest.approx(total)
    assert Chain(end_reward=2.0).optimum == pytest.approx(effects_return(Chain(end_reward=2.0)))


def test_chain_values_of_a_policy():
    """Going right for certain without slip: by hand. Any other: what repeated backups of the enumerated steps come to."""
    np.testing.assert_allclose(Chain(slip=0.0).values(np.ones(5), 0.5), [20 / 16, 20 / 8, 20 / 4, 20 / 2, 20.0])
    env, right, value = Chain(), np.array([0.1, 0.9, 0.5, 0.3, 1.0]), np.zeros(5)
    after, reward, alive, chance = effects(env)
    likely = np.stack([1 - right, right], axis=1) @ chance
    for _ in range(400):
        value = (likely * (reward + 0.9 * alive * value[after])).sum(1)
    np.testing.assert_allclose(env.values(right, 0.9), value, rtol=1e-6)


def effects_return(env):
    """The best return of all stationary policies over the limit, one by one."""
    after, reward, _, chance = effects(env)
    best = -np.inf
    for policy in itertools.product((0, 1), repeat=env.length):
        likely, value = chance[list(policy)], np.zeros(env.length)
        for _ in range(env.limit):
            value = (likely * (reward + value[after])).sum(1)
        best = max(best, float(value[0]))
    return best


@pytest.mark.parametrize("name", ["mountain_car", "mountain_car_continuous", "gridworld", "bandit", "chain"])
def test_by_name_compiled_and_batched(name):
    env = make(name)
    spec = env.spec
    action = np.zeros((5, *spec.action.shape), spec.action.dtype)
    state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 5))
    after, step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, None)))(state, action, KEY)
    assert obs.shape == step.obs.shape == (5, *spec.obs.shape) and obs.dtype == step.obs.dtype == spec.obs.dtype
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert (step.reward.shape, step.reward.dtype) == ((5,), jnp.float32) and set(step.info) == set(spec.info)
    assert step.terminated.dtype == step.truncated.dtype == bool
