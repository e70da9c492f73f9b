"""A run that keeps the frames of stacks once has the bits of one that keeps every stack whole."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from shoal.algos.dqn import DQN
from shoal.envs.stacking import FrameStack
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Step, pytree


@pytree
class Dot:
    """A bright dot that drifts in an image: right off it is good, left off it is not."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("dot", Box((17, 16, 1), 0.0, 255.0, "uint8"), Discrete(2))

    def _show(self, place):
        return jnp.zeros((17, 16, 1), jnp.uint8).at[8, place].set(255)

    def reset(self, key):
        place = jax.random.randint(key, (), 4, 12)
        return place, self._show(place)

    def step(self, state, action, key):
        place = state + 2 * action - 1 + jax.random.randint(key, (), -1, 2)
        over = (place < 0) | (place > 15)
        return place, Step(self._show(place), jnp.where(place > 15, 1.0, 0.0), over, jnp.zeros((), bool), {})


@pytree
class Whole:
    """A stack that is not known to be one."""

    env: FrameStack

    @property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, frames=1)

    def reset(self, key):
        return self.env.reset(key)

    def step(self, state, action, key):
        return self.env.step(state, action, key)


def go(run, frames, path, where, **fields):
    agent = DQN(**({"num_steps": 2, "capacity": 120, "start_size": 64, "batch_size": 16, "update_every": 8, "hidden": (8,), "n_step": 2,
                    "net": "mlp", "store": where, "horizon": 1000.0} | fields))
    done = run(FrameStack(Dot(), 4) if frames else Whole(FrameStack(Dot(), 4)), agent, path=path, steps=480, lane_envs=2)
    assert done.rows()[-1]["gradient_steps"] > 0
    return done


def test_the_bits_are_those_of_whole_stacks(run):
    assert go(run, True, "ported", "mapped").sha == go(run, False, "ported", "host").sha


@pytest.mark.slow
@pytest.mark.parametrize("path", ["fused", "ported"])
def test_the_bits_are_those_of_whole_stacks_that_a_cnn_sees(run, path):
    net = {"net": "cnn", "channels": (4,), "kernels": (3,), "strides": (4,)}
    assert go(run, True, path, "device", **net).sha == go(run, False, path, "device", **net).sha
