"""REINFORCE: the likelihood-ratio policy gradient from whole returns, one step per batch.

Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
``total`` weighs every action of an episode by the episode's return, ``reward_to_go`` by what came after it, ``baseline`` by how much
better that was than a learned value.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from shoal.algos.actor_critic import ActorCritic, Aim, Judged, State, policy_gradient, weights
from shoal.ops import returns
from shoal.types import Batch, Key, Transition, Updated, pytree


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
        aim = self._weigh(data, seen)
        grads, metrics = policy_gradient(self, state, batch, seen, aim, key, self.normalise_weight)
        _, rate, _ = self.scheduled(state, batch.steps)
        moved, optimiser = self.step(weights(state.actor, state.critic), grads, state.optimiser, rate)
        metrics |= {"learning_rate": rate, "gradient_steps": jnp.ones(()), "used": aim.weight.mean()}
        return Updated(self.moved(state, moved, optimiser, self.observed(state, batch), seen.returns), metrics, None)

    def _weigh(self, data: Transition, seen: Judged) -> Aim:
        """What the value learns, what actions are weighed by, and which steps count."""
        if self.weighting == "baseline":
            target = returns.discounted_returns(seen.reward, data.alive, data.last, seen.next_value, self.discount)
            return Aim(target, target - seen.value, data.valid)
        zero = jnp.zeros_like(seen.value)
        target = returns.discounted_returns(seen.reward, data.alive, data.last, zero, self.discount)
        valid = data.valid * returns.finished(data.last)
        if self.weighting == "reward_to_go":
            return Aim(target, target, valid)
        total, whole = returns.from_start(target, data.last)
        return Aim(target, total, valid * whole)
