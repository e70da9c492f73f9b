"""Acting for host lanes: in NumPy or compiled by what it costs, with the same meaning."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import host_act, lane
from shoal.algos import team
from shoal.algos.a2c import A2C
from shoal.algos.ppo import PPO
from shoal.algos.recurrent_ppo import RecurrentPPO
from shoal.specs import Box, Discrete, EnvSpec, Group, MultiBinary, MultiDiscrete

SIZE = 3
BOX = Box((4,), -np.inf, np.inf)
SMALL = {
    "choices": (PPO(), BOX, Discrete(3), 0),
    "normalised, squashed": (PPO(normalise_obs=True, squash=True), BOX, Box((2,), -1.0, 1.0), 0),
    "several choices": (A2C(hidden=(32,)), BOX, MultiDiscrete((2, 2)), 0),
    "switches": (PPO(activation="relu"), BOX, MultiBinary(3), 0),
    "masked": (PPO(), Group((("obs", BOX), ("action_mask", MultiBinary(3)))), Discrete(3), 0),
    "many choices": (PPO(), BOX, Discrete(30), 0),
    "a shared team": (team.shared(PPO()), BOX, Discrete(3), 2),
}
LARGE = {
    "a wide network": (PPO(hidden=(512, 512)), BOX, Discrete(2)),
    "noise of the state": (PPO(state_noise=True), BOX, Box((2,), -1.0, 1.0)),
    "memory": (RecurrentPPO(), BOX, Discrete(2)),
    "images": (PPO(), Box((8, 8, 1), 0, 255, "uint8"), Discrete(2)),
}


def case(algorithm, obs, action, num_agents=0):
    spec = EnvSpec("here", obs, action, num_agents=num_agents) if num_agents else EnvSpec("here", obs, action)
    algorithm = jax.tree.map(jnp.asarray, algorithm)
    params = algorithm.policy(algorithm.init(spec, jax.random.key(0)))
    # weights far enough apart that choices are decided, and moments as after some learning
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape) ** (1 if x.ndim > 1 else 2), params)
    return algorithm, spec, params


def inputs(algorithm, spec, seed):
    generator = np.random.default_rng(seed)
    shape = (SIZE, *spec.agent_shape)

    def draw(space):
        if isinstance(space, Group):
            return {name: draw(inner) for name, inner in space.items}
        if isinstance(space, MultiBinary):
            return np.maximum(generator.integers(0, 2, (*shape, *space.shape)), np.eye(*space.shape)[0]).astype(np.int8)
        return generator.normal(size=(*shape, *space.shape)).astype(np.float32)

    noise = jax.tree.map(np.asarray, algorithm.draw(spec, jax.random.key(seed), (SIZE,)))
    return draw(spec.obs), noise


@pytest.mark.parametrize("name", SMALL)
def test_numpy_means_what_the_compiled_call_means(name):
    algorithm, spec, params = case(*SMALL[name])
    traced = host_act._Traced(algorithm, spec, SIZE)
    assert traced.program.fits and host_act.acting(algorithm, spec, SIZE).__name__ == "in_numpy"
    ours, theirs = traced.in_numpy(params), traced.compiled(params)
    seen = set()
    for seed in range(20):
        obs, noise = inputs(algorithm, spec, seed)
        for greedy in (False, True):
            role = lane.role(0.25, SIZE, greedy)
            a, b = ours((), obs, role, noise), theirs((), obs, role, noise)
            assert jax.tree.structure(a) == jax.tree.structure(b) and a.action.dtype == b.action.dtype
            np.testing.assert_allclose(a.action, b.action, rtol=2e-6, atol=2e-6)
            seen |= set(np.asarray(a.action).reshape(-1).tolist())
        if "action_mask" in obs:
            assert np.take_along_axis(obs["action_mask"], np.asarray(a.action)[:, None], 1).all()
    assert len(seen) > 1  # the cases tell actions apart


@pytest.mark.parametrize("name", LARGE)
def test_what_numpy_cannot_do_in_less_time_is_compiled(name):
    algorithm, spec, _ = case(*LARGE[name])
    assert host_act.acting(algorithm, spec, 8).__name__ == "compiled"


def test_new_parameters_and_another_role_are_heard():
    algorithm, spec, params = case(*SMALL["normalised, squashed"])
    bind = host_act.acting(algorithm, spec, SIZE)
    obs, noise = inputs(algorithm, spec, 0)
    explore, greedy = lane.role(0.0, SIZE), lane.role(0.0, SIZE, greedy=True)
    act = bind(params)
    actions = [act((), obs, role, noise).action for role in (explore, greedy, explore)]
    np.testing.assert_array_equal(actions[0], actions[2])
    assert (actions[0] != actions[1]).any()
    moved = bind(jax.tree.map(lambda x: x * 1.5, params))
    assert (moved((), obs, explore, noise).action != actions[0]).any()
    np.testing.assert_array_equal(act((), obs, explore, noise).action, actions[0])  # the earlier version stays what it was


UNARY = (jnp.negative, jnp.exp, jnp.tanh, jax.nn.sigmoid, jax.nn.relu, jax.nn.silu, jax.nn.elu, jnp.abs, jnp.sign, jnp.floor, jnp.square,
         lambda x: jnp.log1p(jnp.abs(x)), lambda x: jnp.sqrt(jnp.abs(x)), lambda x: jnp.log(jnp.abs(x)), lambda x: x.astype(jnp.int32),
         lambda x: x[:, 1:3], lambda x: x[:, None], lambda x: x.reshape(2, 6), lambda x: jnp.argmax(x, 1), lambda x: ~(x > 0),
         lambda x: jnp.concatenate([x, x], 1), lambda x: jnp.where(x > 0, x, 7.0), lambda x: jnp.broadcast_to(x[:, :1], (3, 4)),
         lambda x: jnp.clip(x, -1.0, 1.0), lambda x: jax.lax.stop_gradient(x), lambda x: jnp.where(jnp.asarray(True), x, 2 * x))
BINARY = (jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, jnp.greater, jnp.greater_equal, jnp.less,
          jnp.less_equal, jnp.equal, jnp.not_equal, lambda x, y: (x > 0) & (y > 0), lambda x, y: (x > 0) | (y > 0), lambda x, y: x @ y.T)


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_every_operation_means_what_it_means_in_jax(known):
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(2, 3, 4)).astype(np.float32) * 3
    y[0] = x[0]  # equal somewhere
    done = 0
    for fn, given in [(f, [x]) for f in UNARY] + [(f, [x, y]) for f in BINARY]:
        program = host_act._Program(jax.make_jaxpr(fn)(*given))
        if not program.fits:
            continue
        done += 1
        first = given[:1] if known else []
        (ours,) = program.bind(first)(given[len(first):])
        theirs = np.asarray(fn(*map(jnp.asarray, given)))
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, fn
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert done >= len(UNARY) + len(BINARY) - 2  # elu's expm1 and a product with a transpose are left to the compiler


def test_what_is_known_is_not_computed_again():
    calls = []
    program = host_act._Program(jax.make_jaxpr(lambda w, x: jnp.tanh(jnp.exp(w) * 2.0) + x)(np.ones(3, np.float32), np.ones(3, np.float32)))

    def counted(line):
        return line._replace(operation=lambda *xs: calls.append(line.out) or line.operation(*xs))

    program.lines[:] = map(counted, program.lines)
    run = program.bind([np.ones(3, np.float32)])
    assert len(calls) == 3
    for _ in range(2):
        run([np.zeros(3, np.float32)])
    assert len(calls) == 5  # one addition per step


@pytest.mark.parametrize(("fn", "parts"), [
    (lambda x: (x[:, 1] - x[:, 2]) * x[:, 1] + x[:, 2], 4),  # two slices, which lead to two columns
    (lambda x: x[:, 1:3] + x[:, 1:3] * x[:, 2:4], 2),
    (lambda x: jax.lax.slice(x, (0, 0), (3, 4), (2, 2)) * jax.lax.slice(x, (0, 1), (3, 4), (2, 2)), 2),
    (lambda x: x[1] + x[2, :] * x[1, 2], 6),
    (lambda x: jnp.squeeze(x[1:2, 3:4], 0) + x[:1, 3], 4),
    (lambda x: jax.lax.squeeze(jax.lax.squeeze(x[1:2, 3:4], (1,)), (0,)), 2),
    (lambda x: x[1, 2], 2),
], ids=["columns", "overlap", "strides", "rows", "either", "twice", "number"])
def test_a_part_is_taken_once(fn, parts):
    x = np.random.default_rng(4).normal(size=(3, 4)).astype(np.float32)
    program = host_act._Program(jax.make_jaxpr(fn)(x))
    assert program.fits and len(program._cuts) == parts
    (ours,) = program.bind([])([x])
    assert type(ours) is np.ndarray
    np.testing.assert_array_equal(ours, np.asarray(fn(jnp.asarray(x))))


def test_the_size_that_decides_is_the_lanes():
    algorithm = PPO(hidden=(128, 128))
    chosen = [host_act.acting(*case(algorithm, BOX, Discrete(2))[:2], size).__name__ for size in (4, 64)]
    assert chosen == ["in_numpy", "compiled"]
