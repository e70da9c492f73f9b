"""From names to environments: what is found, what is wrapped, what is refused and how."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import registry
from shoal.envs import make, maps
from shoal.envs.build import check_name
from shoal.errors import ConfigError, MissingError
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import HostEnv, Step, pytree


@pytree
class Half:
    """A user's compiled world: one half-bounded action, limit 3."""

    slope: float = 1.0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("half", Box((1,)), Box((1,), 0.0, float("inf")), max_episode_steps=3)

    def reset(self, key):
        return (), jnp.zeros(1)

    def step(self, state, action, key):
        return (), Step(action, self.slope * action[0], jnp.zeros((), bool), jnp.zeros((), bool), {})


class Host:
    """A user's host world, limit 2."""

    def __init__(self, width: int = 2):
        self.spec = EnvSpec("host", Box((width,)), Box((1,), 0.0, 10.0), max_episode_steps=2)

    def reset(self, seed):
        return np.zeros(self.spec.obs.shape, np.float32)

    def step(self, action):
        return np.full(self.spec.obs.shape, action[0]), 1.0, False, False, {}

    def close(self):
        pass


class NotATree(Half):
    pass


@pytest.fixture(autouse=True)
def _names(monkeypatch):
    monkeypatch.setitem(registry._added, "env", {})
    registry.register(env={"half": Half, "host": Host, "not_a_tree": lambda: object.__new__(NotATree), "nothing": lambda: 3})


def test_built_ins_get_their_own_limit_or_the_one_asked_for():
    limits = {"cartpole": 500, "acrobot": 500, "pendulum": 200, "rendezvous": 25, "matrix_game": 0, "probe": 0}
    for name, limit in limits.items():
        assert make(name).spec.max_episode_steps == limit
        assert make(name, 7).spec.max_episode_steps == 7


def test_limit_is_counted():
    env = make("pendulum", 2)
    state, _ = env.reset(jax.random.key(0))
    seen = []
    for _ in range(2):
        state, step = env.step(state, jnp.zeros(1), jax.random.key(0))
        seen.append(bool(step.truncated))
    assert seen == [False, True]


def test_pendulum_acts_in_unit_range():
    env = make("pendulum")
    assert isinstance(env, maps.RescaleAction) and env.spec.action == Box((1,), -1.0, 1.0)
    state = maps.Counted(jnp.zeros(2), jnp.int32(0))
    _, step = env.step(state, jnp.array([0.5]), jax.random.key(0))  # torque 1: cost 0.001, speed 3 · 0.05
    assert float(step.reward) == pytest.approx(-0.001) and float(step.obs[2]) == pytest.approx(0.15)


def test_options_are_converted():
    env = make("cartpole", gravity=3)
    assert env.env.gravity == 3.0 and isinstance(env.env.gravity, float)
    game = make("matrix_game", payoff=[[[1, 0], [0, 2]], [[1, 0], [0, 2]]], length=4)
    assert game.optimum == 8.0 and hash(game.spec) == hash(game.spec)
    probe = make("probe", kind=3)
    assert probe.kind.dtype == np.int32 and probe.kind == 3


@pytest.mark.parametrize(("name", "options", "message"), [
    ("cartpole", {"gravty": 1.0}, "'cartpole' has no option 'gravty'; did you mean 'gravity'"),
    ("cartpole", {"gravity": "high"}, "gravity = 'high': env 'cartpole' expects float"),
    ("cartpole", {"gravity": float("nan")}, "gravity = nan.*expects a number"),
    ("cartpole", {"cart_mass": 0.0}, "cart_mass = 0.0.*from 0.001 to"),
    ("cartpole", {"gravity": True}, "gravity = True.*expects float"),
    ("rendezvous", {"size": 2.5}, "size = 2.5.*expects int"),
    ("rendezvous", {"size": 1}, "size = 1.*from 2 to"),
    ("matrix_game", {"length": 0}, "length = 0.*from 1 to"),
    ("matrix_game", {"payoff": [[1, 2], [3, 4]]}, r"payoff = .*shape \[2\]\[A\]\[A\]"),
    ("matrix_game", {"payoff": [[[1, 2], [3]], [[1, 2], [3, 4]]]}, r"payoff = .*shape \[2\]\[A\]\[A\]"),
    ("probe", {"kind": 7}, "kind = 7.*from 0 to 6"),
    ("host", {"widht": 3}, "'host' has no option 'widht'; did you mean 'width'"),
    ("not_a_tree", {}, "'not_a_tree'.*decorate NotATree with shoal.types.pytree"),
    ("nothing", {}, "'nothing': expected an object with spec.*got int"),
])
def test_refusals(name, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("steps", [-1, 2.0, True])
def test_bad_limits(steps):
    with pytest.raises(ConfigError, match="max_episode_steps = "):
        make("cartpole", steps)


@pytest.mark.parametrize(("name", "near"), [("cartpol", "cartpole"), ("pendullum", "pendulum"), ("CartPol-v1", "CartPole-v1"),
                                            ("hslf", "half"), ("CartPole", "cartpole")])
def test_unknown_names_are_answered_with_the_nearest(name, near):
    for ask in (make, check_name):
        with pytest.raises(MissingError, match=f"unknown env '{name}'; did you mean '{near}'"):
            ask(name)


def test_check_name_knows_what_make_knows():
    for name in ("cartpole", "half", "host", "Pendulum-v1"):
        check_name(name)


def test_user_worlds_are_wrapped_alike():
    half = make("half", slope=2)
    assert isinstance(half, maps.ClipAction) and half.spec.max_episode_steps == 3
    state, _ = half.reset(jax.random.key(0))
    assert float(half.step(state, jnp.array([-4.0]), jax.random.key(0))[1].reward) == 0.0
    assert float(half.step(state, jnp.array([4.0]), jax.random.key(0))[1].reward) == 8.0
    host = make("host", width=3)
    assert isinstance(host, HostEnv) and host.spec.action == Box((1,), -1.0, 1.0)
    host.reset(0)
    obs, _, _, truncated, _ = host.step(np.zeros(1, np.float32))
    assert obs.tolist() == [5.0] * 3 and not truncated
    assert host.step(np.zeros(1, np.float32))[3]


@pytest.mark.parametrize("name", ["cartpole", "acrobot", "pendulum", "matrix_game", "rendezvous", "probe"])
def test_every_built_in_runs_compiled_and_batched(name):
    env = make(name)
    spec = env.spec
    action = np.zeros((5, *spec.agent_shape, *spec.action.shape), spec.action.dtype)
    state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 5))
    assert obs.shape == (5, *spec.agent_shape, *spec.obs.shape) and obs.dtype == spec.obs.dtype

    @jax.jit
    def step_fn(env, state, action):
        return jax.vmap(env.step, in_axes=(0, 0, None))(state, action, jax.random.key(1))

    after, step = step_fn(env, state, action)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert step.obs.shape == obs.shape and step.obs.dtype == obs.dtype
    for part, dtype in ((step.reward, jnp.float32), (step.terminated, bool), (step.truncated, bool)):
        assert part.shape == (5, *spec.agent_shape) and part.dtype == dtype
    assert step.info == {} and isinstance(spec.action, Box | Discrete)


def test_names_are_checked_without_jax():
    code = ("import sys, shoal.envs.build as b, shoal.testing\n"
            "b.check_name('cartpole'); b.check_name('CartPole-v1'); sys.exit('jax' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
