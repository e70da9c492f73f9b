"""Worlds with goals, and the cliff: moves by number, optima by search, and a reward that can be asked again for another goal."""

from __future__ import annotations

import itertools
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import nets
from shoal.envs import make, maps, stacking
from shoal.envs.bit_flip import BitFlip, Bits
from shoal.envs.blind_cliffwalk import BlindCliffwalk
from shoal.envs.goal_gridworld import GoalGridWorld, Walk
from shoal.errors import ConfigError
from shoal.specs import Discrete, num_features
from shoal.testing import check_env

KEY = jax.random.key(0)
UP, DOWN, LEFT, RIGHT = range(4)
WALLED = GoalGridWorld(size=3, obstacles=((1, 0), (1, 1)), limit=6)  # . # . / . # . / . . .
NAMES = ["bit_flip", "goal_gridworld", "blind_cliffwalk"]

table_fn = jax.jit(lambda env, states, actions: jax.vmap(jax.vmap(env.step, (None, 0, None)), (0, None, None))(states, actions, KEY))
resets_fn = jax.jit(lambda env, keys: jax.vmap(env.reset)(keys))


def best_return(after, reward, over, start, limit):
    """By search through all states [S, A]: the most that a way of at most ``limit`` steps brings."""
    value = np.zeros(len(after))
    for _ in range(limit):
        value = (reward + np.where(over, 0.0, value[after])).max(1)
    return value[start]


@pytest.mark.parametrize("name", NAMES)
def test_conforms(name):
    assert [f for f in check_env(name, episodes=4) if not f.ok] == []


# bit flip ----------------------------------------------------------------------------------------------------------


def test_bit_flip_flips_one_and_ends_at_the_goal():
    env = BitFlip(bits=3)
    state = Bits(jnp.array([0, 1, 0], jnp.uint8), jnp.array([1, 1, 0], jnp.uint8))
    after, step = env.step(state, 2, KEY)
    assert after.now.tolist() == step.obs["observation"].tolist() == step.obs["achieved"].tolist() == [0, 1, 1]
    assert step.obs["desired"].tolist() == [1, 1, 0] and after.now.dtype == jnp.uint8
    assert float(step.reward) == -1 and not step.terminated and not step.info["success"]
    _, step = env.step(state, 0, KEY)
    assert float(step.reward) == 0 and step.terminated and step.info["success"] and not step.truncated


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_bit_flip_optimum_by_search(bits):
    env = BitFlip(bits=bits)
    patterns = np.array(list(itertools.product((0, 1), repeat=bits)), np.uint8)
    pairs = Bits(jnp.asarray(np.repeat(patterns, len(patterns), 0)), jnp.asarray(np.tile(patterns, (len(patterns), 1))))
    after, step = table_fn(env, pairs, jnp.arange(bits))
    number = lambda x: np.asarray(x) @ (1 << np.arange(bits)[::-1])
    index = number(after.now) * len(patterns) + number(after.goal)
    best = best_return(index, np.asarray(step.reward), np.asarray(step.terminated), np.arange(len(index)), bits)
    assert env.optimum == pytest.approx(best.mean(), abs=1e-9)


def test_bit_flip_says_what_it_is():
    env = make("bit_flip")
    assert env.spec.max_episode_steps == 20 and env.spec.action == Discrete(20) and env.spec.goal and BitFlip().optimum < -8.99
    state, obs = resets_fn(BitFlip(), jax.random.split(KEY, 2000))
    for bits in (state.now, state.goal, state.now ^ state.goal):
        np.testing.assert_allclose(np.asarray(bits, float).mean(0), 0.5, atol=5 * 0.5 / np.sqrt(2000))
    seen = nets.features(env.spec.obs, obs)
    assert seen.shape == (2000, 60) and num_features(env.spec.obs) == 60 and seen.dtype == jnp.float32
    np.testing.assert_array_equal(seen, np.concatenate([state.now, state.now, state.goal], 1))


# goal gridworld ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cell", "action", "after"), [
    (0, DOWN, 3), (0, RIGHT, 0), (0, UP, 0), (6, RIGHT, 7), (7, UP, 7), (8, UP, 5), (5, LEFT, 5), (2, RIGHT, 2)])
def test_goal_gridworld_moves_and_is_blocked(cell, action, after):
    state, step = WALLED.step(Walk(jnp.int32(cell), jnp.int32(1)), action, KEY)
    assert int(state.now) == int(step.obs["observation"]) == int(step.obs["achieved"]) == after and int(step.obs["desired"]) == 1
    assert float(step.reward) == -1 and not step.terminated


def walk_lengths(env):
    """Steps from every cell to every other, breadth first, from what ``step`` answers alone."""
    cells = env.size**2
    after, _ = table_fn(env, Walk(jnp.arange(cells), jnp.zeros(cells, jnp.int32)), jnp.arange(4))
    after, found = np.asarray(after.now), {}
    for start in range(cells):
        queue, seen = deque([(start, 0)]), {start}
        while queue:
            cell, steps = queue.popleft()
            found[start, cell] = steps
            for near in set(after[cell].tolist()) - seen:
                seen.add(near)
                queue.append((near, steps + 1))
    return found


@pytest.mark.parametrize(("env", "by_hand"), [
    (WALLED, -70 / 42), (GoalGridWorld(size=3, obstacles=((1, 0), (1, 1)), limit=3), -62 / 42), (GoalGridWorld(size=4), -(8 / 3 - 1))])
def test_goal_gridworld_optimum_by_search(env, by_hand):
    """By hand: the walled grid is a path of seven cells; on an open one two random coordinates differ by (n + 1) / 3 each."""
    blocked = {y * env.size + x for x, y in env.obstacles}
    lengths = [n for (a, b), n in walk_lengths(env).items() if n and not {a, b} & blocked]
    free = env.size**2 - len(blocked)
    assert len(lengths) == free * (free - 1)
    assert env.optimum == pytest.approx(np.mean([1 - n if n <= env.limit else -env.limit for n in lengths]))
    assert env.optimum == pytest.approx(by_hand)


def test_goal_gridworld_draws_all_pairs_alike():
    num, pairs = 20_000, 7 * 6
    state, _ = resets_fn(WALLED, jax.random.split(KEY, num))
    counts = np.zeros((9, 9))
    np.add.at(counts, (np.asarray(state.now), np.asarray(state.goal)), 1)
    drawn = counts[counts > 0]
    assert len(drawn) == pairs and not counts[[1, 4]].any() and not counts[:, [1, 4]].any() and not np.diag(counts).any()
    wanted = num / pairs
    assert ((drawn - wanted) ** 2 / wanted).sum() < pairs - 1 + 5 * np.sqrt(2 * (pairs - 1))  # chi-square


def test_goal_gridworld_shows_cells_one_hot():
    env = make("goal_gridworld", size=3, limit=7)
    seen = nets.features(env.spec.obs, {"observation": jnp.int32(4), "achieved": jnp.int32(4), "desired": jnp.int32(8)})
    assert np.flatnonzero(seen).tolist() == [4, 13, 26] and num_features(env.spec.obs) == 27
    assert env.spec.max_episode_steps == 7 and env.spec.goal and env.spec.info == ("success",)


@pytest.mark.parametrize(("options", "message"), [
    ({"obstacles": [[8, 0]]}, r"obstacles = \(8, 0\): lies outside the grid"),
    ({"obstacles": [[x, 3] for x in range(8)]}, "cut the grid in two"),
    ({"size": 2, "obstacles": [[0, 0], [0, 1], [1, 1]]}, "at least two free cells"),
    ({"obstacles": 3}, "obstacles = 3: expected pairs"),
    ({"size": 1}, "size = 1.*from 2 to 64"),
])
def test_impossible_grids_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make("goal_gridworld", **options)


# goals in general --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [BitFlip(bits=2), WALLED])
def test_the_reward_can_be_asked_again(env):
    """What step answered is what reward_fn answers; with another goal put in, what that goal would have paid."""
    state, _ = resets_fn(env, jax.random.split(KEY, 300))
    action = jnp.arange(300) % env.spec.action.num
    _, step = jax.jit(jax.vmap(env.step, (0, 0, None)))(state, action, KEY)
    reward_fn = jax.vmap(env.spec.reward_fn)
    reward, over = reward_fn(step.obs["achieved"], step.obs["desired"])
    np.testing.assert_array_equal(reward, step.reward)
    np.testing.assert_array_equal(over, step.terminated)
    assert 0 < over.sum() < 300 and reward.dtype == jnp.float32 and over.dtype == bool
    reward, over = reward_fn(step.obs["achieved"], step.obs["achieved"])
    assert over.all() and not reward.any()


def test_specs_with_goals_are_static_and_maps_that_break_them_say_so():
    env = BitFlip(bits=4)
    assert env.spec == BitFlip(bits=4).spec and hash(env.spec) == hash(BitFlip(bits=4).spec)
    assert maps.TimeLimit(env, 3).spec.goal and not make("cartpole").spec.goal
    broken = [maps.ScaleReward(env, 2.0), maps.ShapeReward(env, lambda obs: 0.0, 0.9), stacking.FrameStack(env, 2),
              stacking.FlattenObs(env)]
    assert [mapped.spec.goal for mapped in broken] == [False] * 4
    assert make("bit_flip", flatten_obs=True).spec.obs.shape == (60,)


# blind cliffwalk ---------------------------------------------------------------------------------------------------


def test_cliffwalk_moves_ends_and_pays():
    after, step = table_fn(BlindCliffwalk(length=4), jnp.arange(4), jnp.arange(2))
    np.testing.assert_array_equal(after, [[1, 0], [1, 2], [3, 2], [3, 3]])
    np.testing.assert_array_equal(step.terminated, [[False, True], [True, False], [False, True], [True, True]])
    np.testing.assert_array_equal(step.reward, [[0, 0], [0, 0], [0, 0], [0, 1]])
    np.testing.assert_array_equal(step.info["success"], np.asarray(step.reward) > 0)
    assert step.reward.dtype == jnp.float32 and not step.truncated.any()


def test_cliffwalk_one_way_in_all_is_paid():
    """Of all sequences of actions exactly one is paid: 2^-length by chance, and 1 at best."""
    env = BlindCliffwalk(length=5)
    after, step = table_fn(env, jnp.arange(5), jnp.arange(2))
    after, reward, over = (np.asarray(x) for x in (after, step.reward, step.terminated))
    returns = []
    for actions in itertools.product((0, 1), repeat=5):
        state, total = 0, 0.0
        for action in actions:
            total += reward[state, action]
            if over[state, action]:
                break
            state = after[state, action]
        returns.append((total, actions))
    assert [actions for total, actions in returns if total] == [(0, 1, 0, 1, 0)] and max(returns)[0] == env.optimum == 1
    assert best_return(after, reward, over, 0, 5) == 1 and best_return(after, reward, over, 0, 4) == 0
    assert make("blind_cliffwalk", length=9).spec.obs == Discrete(9)
