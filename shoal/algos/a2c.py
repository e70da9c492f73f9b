"""Advantage actor-critic: one gradient step on every batch, by advantages that look several steps ahead.

Mnih et al. (2016), "Asynchronous methods for deep reinforcement learning", section 4; the synchronous form. The update comes in two
halves, ``gradient`` and ``apply``, so that gradients may be made in one place and applied in another.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from shoal.algos.actor_critic import ActorCritic, Aim, Aux, State, one_step, policy_gradient
from shoal.ops import returns
from shoal.types import Batch, Key, Params, Updated, pytree


@pytree
class A2C(ActorCritic):
    """Advantage actor-critic: one gradient step per batch."""

    num_steps: int = 5
    """Steps each environment takes per iteration."""
    learning_rate: float = 7e-4
    """Step size of the optimiser, before its schedule."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, before its schedule."""
    optimiser: str = "rmsprop"
    """adam, adamw, sgd or rmsprop."""
    gae_lambda: float = 1.0
    """Between one-step (0) and whole-rollout (1) advantages."""
    normalise_advantage: bool = False
    """Give each batch's advantages zero mean and unit variance."""

    RANGES: ClassVar[dict] = {"gae_lambda": (0, 1)}

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One gradient step on ``batch`` [T, B, ...]; ``key`` drops units where the network does."""
        return self.apply(state, *self.gradient(state, batch, key))

    def gradient(self, state: State, batch: Batch, key: Key) -> tuple[Params, Aux]:
        """The gradient of the loss on a whole batch, and what goes with it; nothing is changed."""
        data, seen = batch.data, self.judge(state, batch)
        advantage = returns.gae(seen.reward, data.alive, data.last, seen.value, seen.next_value, self.discount, self.gae_lambda)
        aim = Aim(advantage + seen.value, advantage, data.valid)
        grads, metrics = policy_gradient(self, state, batch, seen, aim, key, self.normalise_advantage)
        return grads, Aux(seen.returns, self.observed(state, batch), metrics, jnp.asarray(batch.steps, jnp.int32))

    def apply(self, state: State, grads: Params, aux: Aux) -> Updated:
        """The state one step further down ``grads``."""
        return one_step(self, state, grads, aux)
