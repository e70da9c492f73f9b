"""Bits to be flipped one by one until they are a given pattern: the classic task of learning by hindsight.

Andrychowicz et al. (2017), "Hindsight experience replay", section 3.1. The goal is so rarely met by chance that a learner without
hindsight fails from about 13 bits up.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.specs import ACHIEVED, DESIRED, OBSERVATION, Discrete, EnvSpec, Group, MultiBinary
from shoal.types import Array, Key, Step, pytree


class Bits(NamedTuple):
    """uint8 [bits] each."""

    now: Array
    goal: Array


def reached(achieved: Array, desired: Array) -> tuple[Array, Array]:
    """Reward and end of one step of a task that is paid by its goal alone: 0 and over at the goal, -1 and going on elsewhere."""
    there = jnp.all(achieved == desired)
    return jnp.where(there, 0.0, -1.0).astype(jnp.float32), there


@pytree
class BitFlip:
    """Flip bits until they are the goal's, one in every step.

    Observation: ``observation`` and ``achieved``, the bits as they are, and ``desired``, the goal, each uint8 [bits]. Both are drawn
    at random, and may be equal. Action i flips bit i. The step that makes the bits the goal's pays 0 and ends the episode, every
    other pays -1; it is cut after as many steps as there are bits. ``info["success"]``: whether this step reached the goal.
    """

    bits: int = 20
    """How many bits there are."""

    RANGES: ClassVar[dict] = {"bits": (1, 1000)}

    @property
    def spec(self) -> EnvSpec:
        bits = MultiBinary(self.bits, "uint8")
        return EnvSpec("bit_flip", obs=Group(((OBSERVATION, bits), (ACHIEVED, bits), (DESIRED, bits))), action=Discrete(self.bits),
                       max_episode_steps=self.bits, info=("success",), reward_fn=reached)

    @property
    def optimum(self) -> float:
        """The best mean return: d wrong bits cost d - 1; none, there and back again, costs 1 where it would cost -1 by that rule."""
        return 1.0 - self.bits / 2 - 2.0 * 0.5**self.bits

    def reset(self, key: Key) -> tuple[Bits, dict[str, Array]]:
        """Consumes ``key``: bits and goal."""
        now, goal = jax.random.bernoulli(key, 0.5, (2, self.bits)).astype(jnp.uint8)
        state = Bits(now, goal)
        return state, _observe(state)

    def step(self, state: Bits, action: Array, key: Key) -> tuple[Bits, Step]:
        """Deterministic; ``key`` is not used."""
        now = jnp.where(jnp.arange(self.bits) == action, 1 - state.now, state.now)
        after = Bits(now, state.goal)
        reward, there = reached(after.now, after.goal)
        return after, Step(_observe(after), reward, there, jnp.zeros((), bool), {"success": there})


def _observe(state: Bits) -> dict[str, Array]:
    return {OBSERVATION: state.now, ACHIEVED: state.now, DESIRED: state.goal}
