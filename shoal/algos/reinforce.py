"""REINFORCE: the likelihood-ratio policy gradient from whole returns, one step per batch.

Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
``total`` weighs every action of an episode by the episode's return, ``reward_to_go`` by what came after it, ``baseline`` by how much
better that was than a learned value.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.algos.actor_critic import ActorCritic, Judged, Rows, State, flat, policy_gradient, weights
from shoal.ops import losses, returns
from shoal.types import Array, Batch, Key, Transition, Updated, pytree


@pytree
class REINFORCE(ActorCritic):
    """REINFORCE: policy gradients from whole returns, plain, reward-to-go, or with a learned baseline.

    An episode that the chunk cuts off continues with the learned value where there is a baseline, and is left out where there is none;
    so give a chunk room for whole episodes.
    """

    num_steps: int = 512
    """Steps each environment takes per iteration; room for whole episodes."""
    learning_rate: float = 1e-2
    """Step size of the optimiser, before its schedule."""
    weighting: str = "baseline"
    """What an action is weighed by: total, reward_to_go or baseline."""
    normalise_weight: bool = True
    """Give the weights of a batch zero mean and unit variance."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, before its schedule."""

    CHOICES: ClassVar[dict] = {"weighting": ("total", "reward_to_go", "baseline")}

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One gradient step on ``batch`` [T, B, ...]; ``key`` drops units where the network does."""
        data, seen = batch.data, self.judge(state, batch)
        target, advantage, valid = self._weigh(data, seen)
        target, advantage, weight = flat(data, target), flat(data, advantage), flat(data, valid)
        share = weight / jnp.maximum(weight.sum(), 1.0)
        if self.normalise_weight:
            advantage = losses.standardised(advantage, share)
        rows = Rows(seen.features, seen.mask, seen.action, advantage, target, share)
        keys = jax.random.split(key, share.shape[0]) if self.dropout else None
        _, rate, bonus = self.scheduled(state, batch.steps)
        grads, metrics = policy_gradient(self, state, rows, keys, bonus)
        moved, optimiser = self.step(weights(state.actor, state.critic), grads, state.optimiser, rate)
        metrics |= {"learning_rate": rate, "gradient_steps": jnp.ones(()), "used": valid.mean(),
                    "explained_variance": returns.explained_variance(flat(data, seen.value), target, weight)}
        return Updated(self.moved(state, moved, optimiser, self.observed(state, batch), seen.returns), metrics, None)

    def _weigh(self, data: Transition, seen: Judged) -> tuple[Array, Array, Array]:
        """What the value learns, what actions are weighed by, and which steps count; all [T, B]."""
        if self.weighting == "baseline":
            target = returns.discounted_returns(seen.reward, data.alive, data.last, seen.next_value, self.discount)
            return target, target - seen.value, data.valid
        zero = jnp.zeros_like(seen.value)
        target = returns.discounted_returns(seen.reward, data.alive, data.last, zero, self.discount)
        valid = data.valid * returns.finished(data.last)
        if self.weighting == "reward_to_go":
            return target, target, valid
        total, whole = returns.from_start(target, data.last)
        return target, total, valid * whole
