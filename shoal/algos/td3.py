"""Twin delayed deterministic policy gradient: DDPG that does not believe its critic too readily.

Targets take the smaller of two critics at a slightly random action, and the policy moves less often than they do.
Fujimoto, van Hoof & Meger (2018), "Addressing function approximation error in actor-critic methods", algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

from shoal import rng
from shoal.algos.ddpg import Deterministic, State
from shoal.specs import EnvSpec
from shoal.types import Batch, Key, Updated, pytree


@pytree
class TD3(Deterministic):
    """Twin delayed deterministic policy gradient, for bounded continuous actions."""

    delay: int = 2
    """Updates of the critics for each of the policy and the targets."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, in units of half their range."""
    target_clip: float = 0.5
    """The most that this noise may be."""

    RANGES: ClassVar[dict] = {"delay": (1, 1_000_000), "target_noise": (0, 1e3), "target_clip": (0, 1e3)}

    def init(self, spec: EnvSpec, key: Key) -> State:
        """Fresh weights; consumes ``key``."""
        return self.start(spec, key, 2)

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One gradient step of the critics, and of the policy where its turn has come; ``key`` draws target noise."""
        noise = rng.normal(key, (batch.data.reward.size, state.actor.action.size))
        return self.learn(state, batch, noise, self.delay, self.target_noise, self.target_clip)
