"""An environment of your own, compiled together with the learner: a frozen record of its parameters, reset and step.

    python examples/own_environment.py --steps 20000
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp

import shoal
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree


class State(NamedTuple):
    place: Array  # int32 []
    goal: Array  # int32 []: 0 or length - 1


@pytree
class Corridor:
    """Walk to the end of a corridor that a sign points at."""

    length: int = 9
    """Places in the corridor; the walk starts in the middle."""
    step_cost: float = 0.05
    """Taken at every step that does not reach the right end."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("corridor", obs=Box((2,), -1.0, 1.0), action=Discrete(2), max_episode_steps=50)

    @property
    def optimum(self) -> float:
        return 1.0 - self.step_cost * (self.length // 2 - 1)

    def reset(self, key: Key) -> tuple[State, Array]:
        goal = jnp.where(jax.random.bernoulli(key), self.length - 1, 0)
        state = State(jnp.int32(self.length // 2), goal.astype(jnp.int32))
        return state, self._observe(state)

    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        place = jnp.clip(state.place + 2 * action - 1, 0, self.length - 1).astype(jnp.int32)
        after = State(place, state.goal)
        there = place == state.goal
        reward = jnp.where(there, 1.0, -self.step_cost)
        return after, Step(self._observe(after), reward, there, jnp.zeros((), bool), {})

    def _observe(self, state: State) -> Array:
        sign = jnp.where(state.goal > 0, 1.0, -1.0)
        return jnp.stack([2.0 * state.place / (self.length - 1) - 1.0, sign])


shoal.register(env={"corridor": Corridor})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()

    run = shoal.train(shoal.PPO(num_steps=32, learning_rate=1e-3), "corridor", steps=args.steps, env_options={"length": 9})
    print(f"score {run.result['eval_return']:.3f}, the best possible is {Corridor().optimum:.3f}")


if __name__ == "__main__":
    main()
