"""Two slot machines, of which the house says nothing: who never tries the second arm never learns that it pays better."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.specs import Discrete, EnvSpec
from shoal.tabular.model import Model
from shoal.types import Array, Key, Step, pytree


@pytree
class RiggedBandit:
    """Pull one of two arms, once: the good one pays 1 with ``probability``, the other with 1 − ``probability``; else nothing.

    State and observation are the same int32 [], always 0. An episode is one step. The good arm is by default the second, which a
    greedy player whose ties go to the first, and to whom all arms are worth 0, would not find.
    """

    probability: float = 0.8
    """How often the good arm pays."""
    good_arm: int = 1
    """Which arm is the good one, 0 or 1."""

    RANGES: ClassVar[dict] = {"probability": (0.5, 1), "good_arm": (0, 1)}

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("rigged_bandit", obs=Discrete(1), action=Discrete(2))

    @property
    def optimum(self) -> float:
        """The best mean return: that of the good arm."""
        return float(self.probability)

    def reset(self, key: Key) -> tuple[Array, Array]:
        """Deterministic; ``key`` is not used."""
        state = jnp.zeros((), jnp.int32)
        return state, state

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        """Consumes ``key``: one uniform draw."""
        chance = jnp.where(jnp.asarray(action) == self.good_arm, self.probability, 1.0 - self.probability)
        reward = jax.random.bernoulli(key, chance).astype(jnp.float32)
        return state, Step(state, reward, jnp.ones((), bool), jnp.zeros((), bool), {})

    def model(self) -> Model:
        """One state and two arms, each with two outcomes: paid, and not."""
        paid = np.full(2, 1.0 - self.probability)
        paid[self.good_arm] = self.probability
        pairs = (1, 2, 2)  # [W, A, K]
        return Model(chance=np.stack([paid, np.ones(2)], -1)[None], after=np.zeros(pairs, np.int64),
                     reward=np.broadcast_to([1.0, 0.0], pairs).copy(), over=np.ones(pairs, np.uint8), start_chance=np.ones(1),
                     start=np.zeros(1, np.int64), row=np.zeros(1, np.int64), num_rows=1, legal=None, limit=0)
