"""IMPALA: an actor-critic that learns from chunks of older policies, each step weighed by how likely it would be now.

Espeholt et al. (2018), "IMPALA: Scalable distributed deep-RL with importance weighted actor-learner architectures", section 4. Value
targets and advantages are V-trace's (eq. 1, section 4.2), with ratios of the learner's policy to the one that made the data. The update
comes in two halves, ``gradient`` and ``apply``, so that gradients may be made in one place and applied in another.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from shoal.algos.actor_critic import ActorCritic, Aim, Aux, State, flat, log_prob, one_step, policy_gradient
from shoal.ops import blocks, losses, returns
from shoal.types import Array, Batch, Key, Metrics, Params, Updated, pytree


@pytree
class IMPALA(ActorCritic):
    """IMPALA: one gradient step per batch, corrected by V-trace for the age of the policy that made it."""

    num_steps: int = 20
    """Steps each environment takes per iteration."""
    learning_rate: float = 6e-4
    """Step size of the optimiser, before its schedule."""
    optimiser: str = "rmsprop"
    """adam, adamw, sgd or rmsprop."""
    trace_lambda: float = 1.0
    """Between one-step (0) and whole-chunk (1) targets and advantages."""
    rho_bar: float = 1.0
    """The most a step counts for being likelier now than when it was made; inf learns the value of the policy itself, with more noise."""
    c_bar: float = 1.0
    """The most a step counts for in the targets of those before it; at most rho_bar."""

    RANGES: ClassVar[dict] = {"trace_lambda": (0, 1), "rho_bar": (0, float("inf")), "c_bar": (0, float("inf"))}

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One gradient step on ``batch`` [T, B, ...]; ``key`` drops units where the network does."""
        return self.apply(state, *self.gradient(state, batch, key))

    def gradient(self, state: State, batch: Batch, key: Key) -> tuple[Params, Aux]:
        """The gradient of the loss on a whole batch, and what goes with it; nothing is changed."""
        data, seen = batch.data, self.judge(state, batch)
        log_ratio = (log_prob(state.actor, data, seen) - log_prob(batch.behaviour, data, seen)).reshape(data.reward.shape)
        made = returns.vtrace(seen.reward, data.alive, data.last, seen.value, seen.next_value, log_ratio, self.discount, self.trace_lambda,
                              rho_bar=self.rho_bar, c_bar=self.c_bar)
        aim = Aim(made.target, made.ratio * made.advantage, data.valid)
        grads, metrics = policy_gradient(self, state, batch, seen, aim, key, normalise=False)
        metrics |= self._staleness(flat(data, log_ratio), flat(data, data.valid))
        return grads, Aux(seen.returns, self.observed(state, batch), metrics, jnp.asarray(batch.steps, jnp.int32))

    def apply(self, state: State, grads: Params, aux: Aux) -> Updated:
        """The state one step further down ``grads``."""
        return one_step(self, state, grads, aux)

    def _staleness(self, log_ratio: Array, valid: Array) -> Metrics:
        """How far the learner's policy is from the one that made the batch [R], and how many steps count less for it."""
        share = valid / jnp.maximum(blocks.total(valid), 1.0)
        clipped = (jnp.exp(log_ratio) > self.rho_bar).astype(jnp.float32)
        return {"approximate_kl": blocks.total(share * losses.approximate_kl(log_ratio)), "clip_fraction": blocks.total(share * clipped)}
