"""Quantile regression DQN: instead of the value of an action, quantiles of the return that follows it.

Dabney et al. (2018), "Distributional reinforcement learning with quantile regression", algorithm 1. Actions are chosen by the mean of
their quantiles; everything else is as in DQN.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from shoal import heads
from shoal.algos.dqn import DQN
from shoal.ops import losses, returns
from shoal.specs import EnvSpec
from shoal.types import Array, Key, pytree


@pytree
class QRDQN(DQN):
    """Quantile regression DQN: learns the distribution of returns; for discrete actions."""

    num_quantiles: int = 50
    """Quantiles of an action's return."""

    RANGES: ClassVar[dict] = {"num_quantiles": (1, 10_000)}

    def _head(self, spec: EnvSpec, key: Key, **more: Any) -> heads.Values:
        return super()._head(spec, key, num_quantiles=self.num_quantiles, **more)

    def expected(self, out: Array) -> Array:
        return out.mean(axis=-1)

    def aim(self, reward: Array, alive: Array, ahead: Array, chooser: Array, mask: Array | None) -> Array:
        return returns.quantile_target(reward, alive, ahead, chooser, self.discount, mask)

    def error(self, out: Array, action: Array, target: Array) -> tuple[Array, Array]:
        """The quantile loss of every row, and the difference of means, [B]."""
        quantiles = returns.chosen(jnp.swapaxes(out, -1, -2), action[..., None])
        lost = losses.quantile_huber(quantiles, target, losses.quantile_fractions(self.num_quantiles), self.huber)
        return lost, target.mean(axis=-1) - quantiles.mean(axis=-1)
