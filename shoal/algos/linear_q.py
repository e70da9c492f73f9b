"""Linear Q-learning: values of actions that are sums of fixed features, learned by semi-gradient steps on replayed transitions.

Watkins (1989); Sutton & Barto (2018), sections 9.5 and 10.1. Features are a Fourier basis (Konidaris et al. 2011), tiles (Albus 1975), or
the observation itself, which for a numbered state is a table. Weights start at 0; there is no target network.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from shoal import nets, optim
from shoal.algos.dqn import num_choices
from shoal.algos.off_policy import Replay
from shoal.ops import blocks, explore, features, losses, returns, schedules
from shoal.specs import EnvSpec, num_features
from shoal.types import Acted, Array, Batch, Key, Memory, Role, Tree, Updated, pytree


class Table(eqx.Module):
    """Weights of features, and what is known of observations."""

    weights: Array  # [K, A]
    space: Any = eqx.field(static=True)
    low: tuple[float, ...] = eqx.field(static=True)  # of every number of an observation, where features need to know
    high: tuple[float, ...] = eqx.field(static=True)


class Player(NamedTuple):
    table: Table
    epsilon: Array  # [], as of now


class State(NamedTuple):
    table: Table
    optimiser: Tree
    updates: Array  # [] int32


class Rows(NamedTuple):
    """What the gradient sees of a batch, [B, ...]."""

    obs: Tree
    action: Array
    target: Array
    share: Array


@pytree
class LinearQ(Replay):
    """Linear Q-learning on a Fourier basis, tiles or plain observations; for discrete actions."""

    capacity: int = 10_000
    """Transitions kept for replay, over all environments."""
    start_size: int = 100
    """Transitions before the first update."""
    batch_size: int = 32
    """Transitions per update."""
    learning_rate: float = 0.1
    """Step size of the optimiser, before its schedule; tilings share it, high frequencies get less of it."""
    optimiser: str = "sgd"
    """adam, adamw, sgd or rmsprop."""
    basis: str = "fourier"
    """Features of an observation: fourier, tiles or plain (as networks see it: a numbered state one-hot)."""
    feature_low: tuple[float, ...] = ()
    """Least of every number of an observation; () for the environment's own bounds."""
    feature_high: tuple[float, ...] = ()
    """Most of every number of an observation; () for the environment's own bounds."""
    order: int = 3
    """fourier: highest frequency."""
    coupled: int = 0
    """fourier: how many numbers of an observation a feature may join; 0 for all."""
    num_tilings: int = 8
    """tiles: tilings, each displaced a little."""
    num_tiles: int = 8
    """tiles: tiles along every number of an observation."""
    tile_memory: int = 0
    """tiles: so many numbers are shared by all tiles; 0 for one each."""
    epsilon_start: float = 1.0
    """Share of random actions at first."""
    epsilon_end: float = 0.05
    """Share of random actions in the end."""
    epsilon_fraction: float = 0.2
    """Share of the horizon after which it has come to that."""
    epsilon_schedule: str = "linear"
    """How it gets there: constant (stays at its start), linear, cosine or exponential."""
    huber: float = float("inf")
    """Errors count by their square up to here, and in proportion beyond; inf: by their square."""

    RANGES: ClassVar[dict] = {
        "order": (0, 1_000), "coupled": (0, 1_000), "num_tilings": (1, 10_000), "num_tiles": (1, 10_000),
        "tile_memory": (0, 1_000_000), "feature_low": (-1e30, 1e30), "feature_high": (-1e30, 1e30), "epsilon_start": (0, 1),
        "epsilon_end": (0, 1), "epsilon_fraction": (1e-6, 1), "huber": (1e-6, float("inf")),
    }
    CHOICES: ClassVar[dict] = {
        "basis": ("fourier", "tiles", "plain"), "epsilon_schedule": ("constant", "linear", "cosine", "exponential"),
    }

    def init(self, spec: EnvSpec, key: Key) -> State:
        """Weights of 0; ``key`` is not used."""
        low, high = ((), ()) if self.basis == "plain" else features.limits(spec, self.feature_low, self.feature_high)
        weights = jnp.zeros((self._size(num_features(spec.obs)), num_choices(spec)))
        table = Table(weights, spec.obs, tuple(map(float, low)), tuple(map(float, high)))
        return State(table, optim.init(self.optimiser, weights), jnp.zeros((), jnp.int32))

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Array:
        """Noise for ``shape`` actions; consumes ``key``."""
        return explore.coins(key, shape)

    def policy(self, state: State) -> Player:
        done = self.done(state.updates, self.update_every / self.updates) / self.epsilon_fraction
        return Player(state.table, schedules.between(self.epsilon_schedule, self.epsilon_start, self.epsilon_end, done))

    def act(self, params: Player, memory: Memory, obs: Tree, role: Role, noise: Array) -> Acted:
        epsilon = params.epsilon * (1.0 - role.greedy)
        return Acted(explore.epsilon_greedy(self.values(params.table, obs), noise, epsilon, nets.mask_of(obs)), memory, ())

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One step on ``batch`` [B, ...]; ``key`` is not used."""
        data, table = batch.data, state.table

        def target(given: Any) -> Array:
            next_obs, reward, alive = given
            return returns.q_target(reward, alive, self.values(table, next_obs), self.discount, nets.mask_of(next_obs))

        def error(rows: Rows) -> Array:
            return rows.target - returns.chosen(self.values(table, rows.obs), rows.action)

        share = data.valid * batch.weight / jnp.maximum(blocks.total(data.valid), 1.0)
        rows = Rows(data.obs, data.action, blocks.map_rows(target, (data.next_obs, data.reward, data.alive)), share)
        errors = blocks.map_rows(error, rows)
        grads = blocks.sum_rows(lambda given: self._gradient(table, *given), (rows, errors))
        rate = self.rate(state.updates, batch.steps)
        stepped, optimiser = self.step(table.weights, grads, state.optimiser, rate)
        weights = table.weights + self._rates(table)[:, None] * (stepped - table.weights)
        metrics = {"td_error": blocks.total(share * jnp.abs(errors)), "learning_rate": rate, "exploration": self.policy(state).epsilon,
                   "value_loss": blocks.total(share * losses.huber(errors, self.huber))}
        after = State(eqx.tree_at(lambda t: t.weights, table, weights), optimiser, state.updates + 1)
        return Updated(after, metrics, jnp.abs(errors) if self.prioritised else None)

    def values(self, table: Table, obs: Tree) -> Array:
        """Values [..., A] of all actions at observations [...]."""
        if self.basis == "tiles":
            return table.weights[self._tiles(table, obs)].sum(axis=-2)
        return self._features(table, obs) @ table.weights

    def _gradient(self, table: Table, rows: Rows, errors: Array) -> Array:
        """That of the mean loss by the weights, [K, A]: minus features times cut errors. Sutton & Barto (2018), eq. 9.7."""
        slope = -rows.share * errors.clip(-self.huber, self.huber)
        taken = rows.action[:, None] == jnp.arange(table.weights.shape[1])
        return self._features(table, rows.obs).T @ jnp.where(taken, slope[:, None], 0.0)

    # features ------------------------------------------------------------------------------------------------------------

    def _size(self, num_inputs: int) -> int:
        if self.basis == "fourier":
            return len(features.fourier_coefficients(num_inputs, self.order, self.coupled))
        if self.basis == "tiles":
            return self.tile_memory or features.tile_size(num_inputs, self.num_tilings, self.num_tiles)
        return num_inputs

    def _features(self, table: Table, obs: Tree) -> Array:
        """All features, [..., K]."""
        if self.basis == "tiles":
            return features.active(self._tiles(table, obs), table.weights.shape[0])
        if self.basis == "fourier":
            unit = self._unit(table, obs)
            return features.fourier(unit, features.fourier_coefficients(unit.shape[-1], self.order, self.coupled))
        return nets.features(table.space, obs)

    def _tiles(self, table: Table, obs: Tree) -> Array:
        return features.tiles(self._unit(table, obs), self.num_tilings, self.num_tiles, self.tile_memory)

    def _unit(self, table: Table, obs: Tree) -> Array:
        low, high = (np.asarray(bound, np.float32) for bound in (table.low, table.high))
        return features.unit(nets.features(table.space, obs), low, high)

    def _rates(self, table: Table) -> Array:
        """What the step size of each feature is multiplied by, [K]."""
        if self.basis == "fourier":
            return jnp.asarray(features.fourier_rates(features.fourier_coefficients(len(table.low), self.order, self.coupled)))
        return jnp.full(table.weights.shape[0], 1.0 / self.num_tilings if self.basis == "tiles" else 1.0)
