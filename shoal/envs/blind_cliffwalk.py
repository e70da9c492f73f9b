"""A walk along a cliff in which one wrong step ends all: rewards so rare that it matters which memories are learned from.

Schaul et al. (2016), "Prioritized experience replay", section 3.1 and figure 1. By chance one episode in 2^length is paid.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from shoal.specs import Discrete, EnvSpec
from shoal.types import Array, Key, Step, pytree


@pytree
class BlindCliffwalk:
    """Take the one right action in every state; a wrong one ends the episode.

    State and observation are the same int32 []: the place, from 0, where every episode starts; networks see it one-hot. The right
    action is 0 at even places and 1 at odd ones, so that what holds at one place is wrong at the next. It moves one place on; at
    the last place it pays 1 and ends the episode. The wrong action pays nothing and ends it too. ``info["success"]``: whether this
    step was paid.
    """

    length: int = 12
    """States along the cliff."""

    RANGES: ClassVar[dict] = {"length": (1, 10_000)}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("blind_cliffwalk", obs=Discrete(self.length), action=Discrete(2), info=("success",))

    @property
    def optimum(self) -> float:
        return 1.0

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Deterministic; ``key`` is not used."""
        state = jnp.zeros((), jnp.int32)
        return state, state

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Deterministic; ``key`` is not used."""
        right = jnp.asarray(action) == state % 2
        paid = right & (state == self.length - 1)
        after = jnp.where(right, jnp.minimum(state + 1, self.length - 1), state)
        return after, Step(after, paid.astype(jnp.float32), ~right | paid, jnp.zeros((), bool), {"success": paid})

    def model(self) -> tuple[list[Any], np.ndarray]:
        """Every outcome: [length][2] lists of (probability, after, reward, terminated), and how likely each place starts, [length]."""
        last = self.length - 1
        outcomes = []
        for place in range(self.length):
            right, wrong = (1.0, min(place + 1, last), float(place == last), place == last), (1.0, place, 0.0, True)
            outcomes.append([[right], [wrong]] if place % 2 == 0 else [[wrong], [right]])
        return outcomes, np.eye(self.length)[0]
