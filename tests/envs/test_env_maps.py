"""Fixed maps, compiled and host: the same numbers on both sides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs import maps
from shoal.envs.cartpole import CartPole
from shoal.envs.matrix_game import MatrixGame
from shoal.errors import ConfigError
from shoal.specs import Box, EnvSpec
from shoal.types import Env, HostEnv, Step, pytree

KEY = jax.random.key(0)
BOUNDS = Box((2,), (-0.3, 1.0), (0.7, 5.0))


@pytree
class Echo:
    """Shows the action it received; reward 3."""

    start: float = 0.0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("echo", Box((2,)), BOUNDS)

    def reset(self, key):
        return (), jnp.zeros(2)

    def step(self, state, action, key):
        return (), Step(action, jnp.float32(3), jnp.zeros((), bool), jnp.zeros((), bool), {})


class HostEcho:
    def __init__(self, action=BOUNDS):
        self.spec = EnvSpec("host_echo", Box((2,)), action)
        self.closed, self.steps = False, 0

    def reset(self, seed):
        self.steps = 0
        return np.full(2, seed, np.float32)

    def step(self, action):
        self.steps += 1
        return action, 3.0, False, False, {}

    def close(self):
        self.closed = True

    def get_state(self):
        return {"steps": np.int32(self.steps)}

    def set_state(self, state):
        self.steps = int(state["steps"])


def received(env: Env | HostEnv, action: list[float]) -> np.ndarray:
    """What the environment inside was given."""
    if isinstance(env, HostEnv):
        return np.asarray(env.step(np.array(action, np.float32))[0])
    return np.asarray(jax.jit(lambda a: env.step((), a, KEY)[1].obs)(jnp.array(action, jnp.float32)))


@pytest.mark.parametrize("env", [maps.RescaleAction(Echo()), maps.HostRescaleAction(HostEcho())], ids=["compiled", "host"])
def test_rescale(env):
    assert env.spec.action == Box((2,), -1.0, 1.0)
    low, high = BOUNDS.bounds()
    np.testing.assert_array_equal(received(env, [-1, -1]), low)  # the bounds exactly
    np.testing.assert_array_equal(received(env, [1, 1]), high)
    np.testing.assert_array_equal(received(env, [-7, 9]), [low[0], high[1]])
    np.testing.assert_allclose(received(env, [0, 0.5]), [0.2, 4.0], rtol=1e-6)


@pytest.mark.parametrize("env", [maps.ClipAction(Echo()), maps.HostClipAction(HostEcho())], ids=["compiled", "host"])
def test_clip(env):
    assert env.spec.action == Box((2,))
    np.testing.assert_allclose(received(env, [-9, 9]), [-0.3, 5.0], rtol=1e-6)
    np.testing.assert_allclose(received(env, [0.1, 1.5]), [0.1, 1.5], rtol=1e-6)


def test_host_arithmetic_keeps_float32():
    assert received(maps.HostRescaleAction(HostEcho()), [0.1, 0.2]).dtype == np.float32


def test_scale_reward():
    _, step = maps.ScaleReward(Echo(), 0.5).step((), jnp.zeros(2), KEY)
    assert step.reward == 1.5
    assert maps.HostScaleReward(HostEcho(), -2.0).step(np.zeros(2))[1] == -6.0


@pytest.mark.parametrize("space", [Box((2,)), Box((2,), 0.0, float("inf"))])
def test_rescale_refuses_unbounded(space):
    with pytest.raises(ConfigError, match="host_echo.*finite bounds"):
        maps.HostRescaleAction(HostEcho(space))


def test_clip_and_rescale_refuse_choices():
    for wrap in (maps.RescaleAction, maps.ClipAction):
        with pytest.raises(ConfigError, match="cartpole.*Discrete"):
            _ = wrap(CartPole()).spec


def test_time_limit_truncates_at_the_limit_and_counts_anew():
    env = maps.TimeLimit(CartPole(), 3)
    assert env.spec.max_episode_steps == 3 and CartPole().spec.max_episode_steps == 500
    step_fn = jax.jit(jax.vmap(env.step, in_axes=(0, 0, None)))
    state, _ = jax.vmap(env.reset)(jax.random.split(KEY, 2))
    seen = []
    for number in range(3):
        state, step = step_fn(state, jnp.array([0, 1]), KEY)
        seen.append(step.truncated.tolist())
        assert not step.terminated.any() and state.count.tolist() == [number + 1] * 2
    assert seen == [[False] * 2, [False] * 2, [True] * 2]
    assert env.reset(KEY)[0].count == 0


def test_time_limit_truncates_all_agents_and_keeps_terminated():
    env = maps.TimeLimit(MatrixGame(length=2), 2)
    state, _ = env.reset(KEY)
    state, step = env.step(state, jnp.array([0, 0]), KEY)
    assert step.truncated.tolist() == [False, False]
    _, step = env.step(state, jnp.array([0, 0]), KEY)
    assert step.truncated.tolist() == step.terminated.tolist() == [True, True]


def test_host_time_limit():
    inner = HostEcho()
    env = maps.HostTimeLimit(inner, 2)
    assert isinstance(env, HostEnv) and env.spec.max_episode_steps == 2
    for seed in (4, 5):  # the count starts anew
        assert env.reset(seed)[0] == seed
        assert [bool(env.step(np.zeros(2))[3]) for _ in range(2)] == [False, True]
    env.close()
    assert inner.closed


def test_host_time_limit_carries_its_count_in_the_state():
    env, other = maps.HostTimeLimit(HostEcho(), 2), maps.HostTimeLimit(HostEcho(), 2)
    env.reset(0)
    env.step(np.zeros(2))
    other.reset(0)
    other.set_state(env.get_state())
    assert other.env.steps == 1 and other.step(np.zeros(2))[3]


def test_state_passes_through_only_where_there_is_one():
    assert maps.HostRescaleAction(HostEcho()).get_state() == {"steps": 0}

    class Plain:
        spec, reset, step, close = HostEcho().spec, HostEcho.reset, HostEcho.step, HostEcho.close

    for wrap in (maps.HostClipAction, maps.HostRescaleAction, lambda env: maps.HostTimeLimit(env, 3)):
        assert not hasattr(wrap(Plain()), "get_state")


def test_maps_compose_under_jit_and_vmap():
    env = maps.ScaleReward(maps.RescaleAction(maps.TimeLimit(Echo(), 2)), 2.0)
    state, _ = jax.vmap(env.reset)(jax.random.split(KEY, 3))
    _, step = jax.jit(jax.vmap(type(env).step, in_axes=(None, 0, 0, None)))(env, state, jnp.zeros((3, 2)), KEY)
    np.testing.assert_allclose(step.obs, [[0.2, 3.0]] * 3, rtol=1e-6)
    assert step.reward.tolist() == [6.0] * 3 and step.truncated.tolist() == [False] * 3
