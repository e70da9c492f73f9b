"""Prioritised replay: rows that taught more are drawn more often, and weigh less where they are.

P(i) = p_i / Σ p with p_i = (|δ_i| + ε)^α, and weights w_i = (N · P(i))^-β, divided by the largest of the batch.
Schaul et al. (2016), "Prioritized experience replay", eq. 1 and section 3.4.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.buffers import ring, sum_tree
from shoal.buffers.layout import Drawn, Form
from shoal.buffers.uniform import State, Uniform
from shoal.errors import DivergedError
from shoal.types import Array, Key, Metrics, pytree

_LARGEST = 1e28  # of a priority to the power α: 2**31 of them still add up to a finite float


class Priorities(NamedTuple):
    """What a prioritised buffer knows beside its index."""

    levels: sum_tree.Levels  # of p, by row; 0 for rows that cannot be drawn
    largest: Array  # [] float32: the largest p so far, which new rows get
    draws: Array  # [] int32: batches drawn
    ignored: Array  # [] int32: priorities whose rows had been overwritten
    bad: Array  # [] int32: priorities that were no finite number of at least 0


@pytree
class Prioritised(Uniform):
    """Replay in proportion to what was last learned from a row."""

    alpha: float = 0.6
    """How much priorities count: 0 draws uniformly, 1 in proportion."""
    beta: float = 0.4
    """How much of the bias the weights take back at first; 1 is all."""
    beta_updates: float = 100_000.0
    """Batches over which ``beta`` rises to 1; inf for never."""
    epsilon: float = 1e-6
    """Added to every priority, so that no row is forgotten."""

    RANGES: ClassVar[dict] = Uniform.RANGES | {
        "alpha": (0, 1), "beta": (0, 1), "beta_updates": (1, float("inf")), "epsilon": (1e-12, 1e12),
    }

    def priorities(self, form: Form) -> Priorities:
        return Priorities(sum_tree.init(form.ring.rows), jnp.ones(()), *(jnp.zeros((), jnp.int32) for _ in range(3)))

    def entered(self, form: Form, index: ring.Index, priority: Priorities, which: Array, slot: Array, gone: Array | None, last: Array
                ) -> Priorities:
        """New rows get the largest priority so far; those that cannot begin a sequence yet wait with 0."""
        shape, wait = form.ring, max(self.length, 1) - 1
        num = shape.steps * shape.envs

        def fill(levels: sum_tree.Levels, lanes: Array, slots: Array, value: Array) -> sum_tree.Levels:
            return sum_tree.fill(levels, ring.row_at(shape, lanes, slots, jnp.int32(0)), num, value)

        levels = priority.levels
        if gone is not None:
            lanes, slots = jnp.broadcast_to(which, gone.shape), jnp.where(gone < 0, slot, gone)
            levels = fill(levels, lanes.reshape(-1), slots.reshape(-1), jnp.zeros(()))
        if not wait:
            return priority._replace(levels=fill(levels, which, slot, priority.largest))
        levels = fill(levels, which, slot, jnp.zeros(()))
        step = jnp.arange(shape.steps)
        opened = slot[:, None] - wait + step  # slots that the new chunk lets begin, where they are held
        held = (shape.steps + wait - 1 - step) < index.filled[which][:, None]
        rows = ring.row_at(shape, which[:, None, None], opened[..., None], jnp.arange(shape.envs))
        keep = jnp.broadcast_to(held[..., None], rows.shape).reshape(-1)
        levels = sum_tree.write(levels, rows.reshape(-1), jnp.broadcast_to(priority.largest, keep.shape), keep)
        return priority._replace(levels=levels)

    def draw(self, form: Form, index: ring.Index, priority: Priorities, key: Key) -> tuple[Any, Drawn, Array, ring.Ticket]:
        row, value = sum_tree.sample(priority.levels, key, self.batch_size)
        row = jnp.minimum(row, form.ring.rows - 1)  # only where there is nothing to draw
        held = ring.starts(index, max(self.length, 1)).sum() * form.ring.envs
        weight = weights(value, sum_tree.total(priority.levels), held, self.beta_at(priority.draws))
        return priority._replace(draws=priority.draws + 1), self.window(form, index, row), weight, ring.ticket(form.ring, index, row)

    def beta_at(self, draws: Array) -> Array:
        """β after so many batches: a line from ``beta`` to 1."""
        return self.beta + (1.0 - self.beta) * jnp.minimum(draws / self.beta_updates, 1.0)

    def update(self, state: State, ticket: ring.Ticket, priorities: Array) -> State:
        """Set |δ| [B] of the rows of a draw; what is not a finite number of at least 0, or comes too late, is left out and counted.

        Compiled code can do no more; elsewhere, what is no such number is an error.
        """
        if not isinstance(priorities, jax.core.Tracer):
            check_priorities(priorities)
        (form,) = state.form
        priority: Priorities = state.priority
        value = (jnp.maximum(priorities, 0.0) + self.epsilon) ** self.alpha
        good = (priorities >= 0) & (value <= _LARGEST)  # false for nan
        still = ring.current(form.ring, state.index, ticket)
        keep = good & still
        value = jnp.where(keep, value, 0.0)
        after = Priorities(sum_tree.write(priority.levels, ticket.row, value, keep), jnp.maximum(priority.largest, value.max()),
                           priority.draws, priority.ignored + (~still).sum(), priority.bad + (~good).sum())
        return State(state.store, state.index, after, state.form)

    def metrics(self, state: State) -> Metrics:
        """Beside rows, the priorities so far that came to nothing."""
        priority: Priorities = state.priority
        return super().metrics(state) | {"priorities_ignored": priority.ignored.astype(np.float32),
                                         "priorities_bad": priority.bad.astype(np.float32)}


def weights(value: Array, total: Array, held: Array, beta: Array) -> Array:
    """Importance weights [B] of rows drawn with priorities ``value`` [B] among ``held`` rows, the largest of the batch 1."""
    share = held.astype(jnp.float32) * (value / jnp.maximum(total, jnp.finfo(jnp.float32).tiny))
    scale = jnp.where(value > 0, share, 1.0) ** -beta
    return jnp.where(value > 0, scale / scale.max(), 0.0)


def check_priorities(priorities: Array) -> None:
    """Refuse, outside compiled code, what ``update`` would only leave out and count."""
    given = np.asarray(jax.device_get(priorities))
    wrong = ~(np.isfinite(given) & (given >= 0))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise DivergedError(f"priorities[{at}] = {given.reshape(-1)[at]}: expected a finite number of at least 0")
