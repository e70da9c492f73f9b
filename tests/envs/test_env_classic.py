"""The compiled classics against Gymnasium's own, transition by transition."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs import make
from shoal.envs.acrobot import Acrobot
from shoal.envs.cartpole import CartPole
from shoal.envs.mountain_car import MountainCar
from shoal.envs.mountain_car_continuous import MountainCarContinuous
from shoal.envs.pendulum import Pendulum
from shoal.errors import ConfigError

CASES = {  # id: our class, bounds of states set at random, distance of a state from the edge of termination
    "CartPole-v1": (CartPole(), [2.6, 3.0, 0.25, 3.0],
                    lambda s: np.minimum(abs(abs(s[:, 0]) - 2.4), abs(abs(s[:, 2]) - np.pi / 15))),
    "Acrobot-v1": (Acrobot(), [np.pi, np.pi, 4.0, 6.0], lambda s: abs(-np.cos(s[:, 0]) - np.cos(s[:, 0] + s[:, 1]) - 1)),
    "Pendulum-v1": (Pendulum(), [np.pi, 8.0], lambda s: np.ones(len(s))),
}


def transitions(name: str, bounds: list[float], num_played: int, num_set: int) -> list[np.ndarray]:
    """(state, action, next state, obs, reward, terminated) of random play, then of states set at random."""
    env = gymnasium.make(name).unwrapped
    env.action_space.seed(0)
    draw, rows = np.random.default_rng(0), []
    env.reset(seed=0)
    for index in range(num_played + num_set):
        if index >= num_played:
            env.reset(seed=index)
            env.state = draw.uniform(-1, 1, len(bounds)) * bounds
        before, action = np.array(env.state, np.float64), env.action_space.sample()
        obs, reward, terminated, _, _ = env.step(action)
        rows.append((before, action, np.array(env.state, np.float64), obs, reward, terminated))
        if terminated or index % 200 == 199:
            env.reset(seed=index)
    env.close()
    return [np.array(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_gymnasium(name):
    env, bounds, margin = CASES[name]
    before, action, after, obs, reward, terminated = transitions(name, bounds, 2000, 500)
    keys = jax.random.split(jax.random.key(0), len(before))
    state, step = jax.jit(jax.vmap(env.step))(before.astype(np.float32), action, keys)
    sure = margin(after) > 1e-5
    assert sure.sum() > 0.99 * len(sure)
    np.testing.assert_allclose(step.obs, obs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(step.reward[sure], reward[sure], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(step.terminated[sure], terminated[sure])
    assert not step.truncated.any()
    if name != "Pendulum-v1":
        assert 50 < terminated.sum() < len(terminated) - 50  # both answers were asked for
    else:
        assert not terminated.any()
    turn = (np.asarray(state) - after)[:, :2] if name != "CartPole-v1" else np.zeros((len(after), 2))
    np.testing.assert_allclose(np.sin(turn[:, 0]), 0, atol=1e-5)  # angles may differ by whole turns, nothing else may
    np.testing.assert_allclose(np.asarray(state)[:, -1], after[:, -1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("env", "bound"), [(CartPole(), [0.05] * 4), (Acrobot(), [0.1] * 4), (Pendulum(), [np.pi, 1.0])])
def test_starts_fill_gymnasiums_range(env, bound):
    state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 2000))
    assert obs.dtype == jnp.float32 and obs.shape == (2000, *env.spec.obs.shape)
    state = np.asarray(state) / bound
    assert (abs(state) <= 1).all() and (state.max(0) > 0.98).all() and (state.min(0) < -0.98).all()
    np.testing.assert_allclose(state.std(0), 1 / np.sqrt(3), atol=0.03)


@pytest.mark.parametrize("env", [MountainCar(), MountainCarContinuous()])
def test_cars_start_at_rest_in_gymnasiums_range(env):
    state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 2000))
    np.testing.assert_array_equal(obs, state)
    position, velocity = np.asarray(state).T
    assert not velocity.any() and -0.6 <= position.min() < -0.598 and -0.402 < position.max() <= -0.4
    np.testing.assert_allclose([position.mean(), position.std()], [-0.5, 0.2 / np.sqrt(12)], atol=0.004)


@pytest.mark.parametrize("env", [CartPole(), CartPole(velocities=False), Acrobot(), Pendulum(), MountainCar(),
                                 MountainCarContinuous()])
def test_shapes_dtypes_and_spec(env):
    spec = env.spec
    name = {"cartpole": "CartPole-v1", "acrobot": "Acrobot-v1", "pendulum": "Pendulum-v1", "mountain_car": "MountainCar-v0",
            "mountain_car_continuous": "MountainCarContinuous-v0"}[spec.name]
    assert hash(spec) == hash(type(env)(*vars(env).values()).spec)
    assert spec.max_episode_steps == gymnasium.spec(name).max_episode_steps
    state, _ = env.reset(jax.random.key(0))
    for dtype in (jnp.int32, jnp.int8, jnp.uint8) if spec.action.shape == () else (jnp.float32,):
        after, step = jax.jit(type(env).step)(env, state, jnp.ones(spec.action.shape, dtype), jax.random.key(0))
        assert after.dtype == step.obs.dtype == step.reward.dtype == jnp.float32
        assert step.terminated.dtype == step.truncated.dtype == bool and step.reward.shape == step.terminated.shape == ()


def test_constants_are_data():
    """A new gravity compiles nothing, and changes the motion."""
    compiled = jax.jit(lambda env, *rest: env.step(*rest))
    state, key = jnp.array([0.0, 0.0, 0.1, 0.0]), jax.random.key(0)
    heavy, light = (compiled(CartPole(gravity=g), state, jnp.int32(1), key)[0] for g in (9.8, 1.6))
    assert compiled._cache_size() == 1 and heavy[3] > light[3]


def test_cartpole_by_hand():
    after, _ = CartPole().step(jnp.zeros(4), jnp.int32(1), jax.random.key(0))
    drive = 10 / 1.1
    angle_acc = -drive / (0.5 * (4 / 3 - 0.1 / 1.1))
    np.testing.assert_allclose(after, [0, 0.02 * (drive - 0.05 * angle_acc / 1.1), 0, 0.02 * angle_acc], rtol=1e-6)


def test_cartpole_without_velocities_moves_alike_and_shows_half():
    full, half = CartPole(), CartPole(velocities=False)
    start, shown = half.reset(jax.random.key(3))
    np.testing.assert_array_equal(start, full.reset(jax.random.key(3))[0])
    np.testing.assert_array_equal(shown, start[np.array([0, 2])])
    (after, step), (same, whole) = (env.step(start, jnp.int32(1), jax.random.key(0)) for env in (half, full))
    np.testing.assert_array_equal(after, same)
    np.testing.assert_array_equal(step.obs, whole.obs[np.array([0, 2])])
    assert half.spec.obs.shape == (2,) and full.spec.obs.shape == (4,)


def test_mountain_car_by_hand():
    key = jax.random.key(0)
    after, step = MountainCar().step(jnp.array([-0.5, 0.01]), jnp.int32(2), key)
    velocity = 0.01 + 0.001 - 0.0025 * np.cos(-1.5)
    np.testing.assert_allclose(after, [-0.5 + velocity, velocity], rtol=1e-6)
    assert step.reward == -1 and not step.terminated
    after, _ = MountainCar().step(jnp.array([-1.19, -0.05]), jnp.int32(0), key)
    np.testing.assert_allclose(after, [-1.2, 0.0])  # the wall takes the velocity
    after, step = MountainCar().step(jnp.array([0.49, 0.05]), jnp.int32(2), key)
    assert step.terminated and step.reward == -1 and after[0] > 0.5


def test_throttle_costs_its_square_and_the_goal_pays():
    env, key = MountainCarContinuous(), jax.random.key(0)
    _, step = env.step(jnp.array([-0.5, 0.0]), jnp.array([-0.5]), key)
    assert float(step.reward) == pytest.approx(-0.025) and not step.terminated
    _, step = env.step(jnp.array([0.44, 0.03]), jnp.array([1.0]), key)
    assert float(step.reward) == pytest.approx(99.9) and step.terminated
    _, step = MountainCarContinuous(goal_velocity=0.06).step(jnp.array([0.44, 0.03]), jnp.array([1.0]), key)
    assert float(step.reward) == pytest.approx(-0.1) and not step.terminated  # there, but too slow
    fast, step = env.step(jnp.array([-0.5, 0.0]), jnp.array([3.0]), key)
    np.testing.assert_array_equal(fast, env.step(jnp.array([-0.5, 0.0]), jnp.array([1.0]), key)[0])
    assert float(step.reward) == pytest.approx(-0.9)  # Gymnasium charges what was asked for


@pytest.mark.parametrize(("options", "message"), [
    ({"min_position": 0.6}, "min_position = 0.6: expected a number below max_position = 0.6"),
    ({"goal_position": 0.7}, "goal_position = 0.7: expected a place on the road, from -1.2 to 0.6"),
    ({"start_low": -1.3}, "start_low = -1.3: expected a place on the road"),
    ({"start_low": -0.3}, "start_low = -0.3: expected a number of at most start_high = -0.4"),
    ({"max_speed": 0.0}, "max_speed = 0.0.*from 1e-06"),
])
@pytest.mark.parametrize("name", ["mountain_car", "mountain_car_continuous"])
def test_impossible_roads_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make(name, **options)


def test_pendulum_stays_precise_over_many_turns():
    env = Pendulum()
    state, _ = env.step(jnp.array([0.3 + 200 * np.pi, 8.0], jnp.float32), jnp.zeros(1), jax.random.key(0))
    assert -np.pi <= state[0] <= np.pi + 0.4
