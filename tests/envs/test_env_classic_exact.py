"""Every compiled classic against Gymnasium's own, at each of 10⁵ steps: the same state and action, the same answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
import pytest

from shoal.envs.acrobot import Acrobot
from shoal.envs.cartpole import CartPole
from shoal.envs.mountain_car import MountainCar
from shoal.envs.mountain_car_continuous import MountainCarContinuous
from shoal.envs.pendulum import Pendulum

NUM_STEPS, NUM_SHORT, SHORT_STEPS = 100_000, 20, 40
TOLERANCE = 1e-5


def car_margin(goal):
    return lambda s: np.minimum(abs(s[:, 0] - goal), np.where(s[:, 0] > goal - TOLERANCE, abs(s[:, 1]), 1.0))


class Case(NamedTuple):
    env: Any
    low: list[float]  # short episodes start anywhere between these
    high: list[float]
    margin: Any  # distance of a state from the edge of termination
    angles: tuple[int, ...] = ()  # columns of the state that are the same after a whole turn


CASES = {
    "CartPole-v1": Case(CartPole(), [-2.4, -3.0, -0.2, -3.0], [2.4, 3.0, 0.2, 3.0],
                        lambda s: np.minimum(abs(abs(s[:, 0]) - 2.4), abs(abs(s[:, 2]) - np.pi / 15))),
    "Acrobot-v1": Case(Acrobot(), [-np.pi, -np.pi, -4.0, -6.0], [np.pi, np.pi, 4.0, 6.0],
                       lambda s: abs(-np.cos(s[:, 0]) - np.cos(s[:, 0] + s[:, 1]) - 1), (0, 1)),
    "Pendulum-v1": Case(Pendulum(), [-np.pi, -8.0], [np.pi, 8.0], lambda s: np.ones(len(s)), (0,)),
    "MountainCar-v0": Case(MountainCar(), [-1.2, -0.07], [0.5, 0.07], car_margin(0.5)),
    "MountainCarContinuous-v0": Case(MountainCarContinuous(), [-1.2, -0.07], [0.45, 0.07], car_margin(0.45)),
}


class Answers(NamedTuple):
    before: np.ndarray
    action: np.ndarray
    after: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


def answers(name: str) -> Answers:
    """Gymnasium's, to random actions: a whole episode from its own start, some short ones from anywhere, and again.

    Before each step its state is rounded to float32, so that there is one state which both know exactly.
    """
    case, draw = CASES[name], np.random.default_rng(0)
    env: Any = gymnasium.make(name).unwrapped
    space, rows, count, episode = case.env.spec.action, [], 0, 0
    actions = (draw.integers(0, space.num, NUM_STEPS) if space.shape == ()
               else draw.uniform(*space.bounds(), (NUM_STEPS, 1)).astype(np.float32))
    env.reset(seed=0)
    for action in actions:
        before = np.asarray(env.state, np.float32)
        env.state = before.astype(np.float64)
        obs, reward, terminated, _, _ = env.step(action)
        rows.append((before, np.array(env.state, np.float64), obs, reward, terminated))
        count += 1
        is_short = episode % (NUM_SHORT + 1) > 0
        if terminated or count >= (SHORT_STEPS if is_short else case.env.spec.max_episode_steps):
            episode, count = episode + 1, 0
            env.reset(seed=episode)
            if episode % (NUM_SHORT + 1):
                env.state = draw.uniform(case.low, case.high)
    env.close()
    before, *rest = (np.array(column) for column in zip(*rows, strict=True))
    return Answers(before, actions, *rest)


def difference(case: Case, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Of states, in float64; angles on the circle."""
    apart = np.asarray(ours, np.float64) - theirs
    for column in case.angles:
        apart[:, column] = (apart[:, column] + np.pi) % (2 * np.pi) - np.pi
    return abs(apart)


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_gymnasiums(name):
    case, theirs = CASES[name], answers(name)
    assert case.env.spec.max_episode_steps == gymnasium.spec(name).max_episode_steps
    state, step = jax.jit(jax.vmap(case.env.step, in_axes=(0, 0, None)))(theirs.before, theirs.action, jax.random.key(0))
    sure = case.margin(theirs.after) > TOLERANCE
    assert (~sure).sum() < 20
    assert difference(case, state, theirs.after).max() < TOLERANCE
    assert abs(np.asarray(step.obs, np.float64) - theirs.obs).max() < TOLERANCE
    assert abs(np.asarray(step.reward, np.float64) - theirs.reward)[sure].max() < TOLERANCE
    np.testing.assert_array_equal(np.asarray(step.terminated)[sure], theirs.terminated[sure])
    assert not step.truncated.any()
    if name == "Pendulum-v1":
        assert not theirs.terminated.any() and abs(theirs.before[:, 0]).max() > 6 * np.pi  # many turns were asked about
    else:
        assert 200 < theirs.terminated.sum() < NUM_STEPS / 2  # both answers were asked for
    if "Mountain" in name:
        assert (theirs.after[:, 0] == np.float32(-1.2)).sum() + (theirs.after[:, 0] == -1.2).sum() > 100  # the wall as well


def test_acrobot_at_its_fastest_is_gymnasiums_up_to_rounding():
    """At speeds that play does not reach, one step magnifies the rounding of a float32 state itself beyond 1e-5 (by up to
    3,000 times): what is left to hold is that the equations are the same, in float64."""
    env: Any = gymnasium.make("Acrobot-v1").unwrapped
    draw, num = np.random.default_rng(1), 2000
    before, action = draw.uniform(-1, 1, (num, 4)) * [np.pi, np.pi, 4 * np.pi, 9 * np.pi], draw.integers(0, 3, num)
    after = []
    env.reset(seed=0)
    for state, act in zip(before, action, strict=True):
        env.state = state
        env.step(act)
        after.append(env.state)
    with jax.enable_x64(True):
        ours, _ = jax.jit(jax.vmap(Acrobot().step, in_axes=(0, 0, None)))(before, action, jax.random.key(0))
    assert ours.dtype == np.float64
    assert difference(CASES["Acrobot-v1"], ours, np.array(after)).max() < 1e-9
