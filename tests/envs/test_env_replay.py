"""Bringing host environments back: which way is found for which kind of world, and whether it leads back."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.envs import make
from shoal.envs.replay import replay, replay_mode
from shoal.errors import ReplayError
from shoal.specs import Box, Discrete, EnvSpec, Group

OPEN: list[object] = []


class Walk:
    """A seeded random walk that ends far out; ``leak`` of what happened before survives a reset, ``noise`` has no seed."""

    def __init__(self, leak: float = 0.0, noise: float = 0.0, num_agents: int = 0, grouped: bool = False):
        obs = Group((("x", Box((1,))), ("y", Box((1,))))) if grouped else Box((1,))
        self.spec = EnvSpec("walk", obs, Discrete(2), num_agents=num_agents)
        self.leak, self.noise, self.grouped, self.kept = leak, noise, grouped, 0.0
        OPEN.append(self)

    def show(self):
        obs = np.array([self.x], np.float32)
        return {"x": obs * 0, "y": obs} if self.grouped else obs

    def reset(self, seed):
        self.draw = np.random.default_rng(seed)
        self.x = self.kept
        return self.show()

    def step(self, action):
        self.x += float(np.sum(action)) * 2 - 1 + self.draw.normal() + self.noise * np.random.default_rng().normal()
        self.kept += self.leak
        return self.show(), self.x, abs(self.x) > 5, False, {}

    def close(self):
        OPEN.remove(self)


class Stateful(Walk):
    def get_state(self):
        return {"x": np.float64(self.x)}

    def set_state(self, state):
        self.x = float(state["x"])


@pytest.mark.parametrize(("make_fn", "mode"), [
    (Walk, "reset"),
    (lambda: Walk(leak=0.1), "fresh"),
    (lambda: Walk(noise=0.1), "inexact"),
    (lambda: Walk(leak=0.1, noise=0.1), "inexact"),
    (Stateful, "state"),
    (lambda: Walk(num_agents=2), "reset"),
    (lambda: Walk(leak=0.1, grouped=True), "fresh"),
    (lambda: make("CartPole-v1"), "reset"),
    (lambda: make("Pendulum-v1"), "reset"),
])
def test_mode_is_found_by_trying(make_fn, mode):
    assert replay_mode(make_fn, 0) == mode
    assert not OPEN  # every copy was closed


def test_mode_of_a_world_that_is_known_to_carry_state():
    pytest.importorskip("Box2D")
    assert replay_mode(lambda: make("BipedalWalker-v3"), 0) == "fresh"


def test_replay_leads_back_to_the_bit():
    env, actions, seed = make("Pendulum-v1"), np.linspace(-1, 1, 40, dtype=np.float32)[:, None], 11
    env.reset(seed)
    for action in actions:
        obs = env.step(action)[0]
    other = make("Pendulum-v1")
    other.reset(99)
    other.step(actions[0])
    np.testing.assert_array_equal(replay(other, seed, actions), obs)
    np.testing.assert_array_equal(replay(other, seed, []), make("Pendulum-v1").reset(seed))
    same = env.step(actions[3])[0]
    replay(other, seed, actions)
    np.testing.assert_array_equal(other.step(actions[3])[0], same)


def test_replay_that_ends_early_is_refused():
    with pytest.raises(ReplayError, match="'CartPole-v1' ended after 1?[0-9] of 30 actions"):
        replay(make("CartPole-v1"), 0, [1] * 30)
