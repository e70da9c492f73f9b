"""The arithmetic of the data path: which version makes which chunk, and what became of episodes. Pure."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from shoal.types import Array, Episodes

LEDGER = ("produced", "learned", "buffered", "in_flight", "dropped", "lost", "redone", "restarts")  # the first is the sum of the next five
RECENT = 100  # training episodes that a mean return is taken over


def version_for(iteration: int, lag: int) -> int:
    """The parameter version that makes the chunks of ``iteration``; update i makes version i + 1."""
    return max(0, iteration - lag)


def due(credit: Array, steps: int, updates: int, every: int, ready: Array) -> tuple[Array, Array]:
    """How many updates are due once ``steps`` more are there, ``updates`` for ``every`` of them, and what is left over.

    In integers that do not grow: over a run this is ⌊steps · updates / every⌋ less what was done, counted from when there was enough.
    """
    total = jnp.where(ready, credit + steps * updates, 0)
    return total // every, total % every


class Tally(NamedTuple):
    """The returns of the last episodes, oldest overwritten first."""

    recent: Array  # [RECENT] float32
    place: Array  # [] int32: where the next one goes
    filled: Array  # [] int32: how many there are


class Count(NamedTuple):
    """What ended in one iteration."""

    episodes: Array  # [] int32
    length_sum: Array  # [] int32
    return_sum: Array  # [] float32
    mean_return: Array  # [] float32: over the last RECENT episodes, nan before the first


def init_tally() -> Tally:
    return Tally(jnp.zeros(RECENT), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def team_return(returns: Array, lead: int) -> Array:
    """One number per episode: the mean over agents, where there are agents behind ``lead`` axes."""
    return returns.mean(axis=-1) if returns.ndim > lead else returns


def count(tally: Tally, episodes: Episodes) -> tuple[Tally, Count]:
    """Add the episodes [T, B] that ended, in order of time and then of environment."""
    ended = episodes.ended.reshape(-1)
    returns = team_return(episodes.returns, 2).reshape(-1)
    number = jnp.cumsum(ended.astype(jnp.int32))
    total = number[-1]
    recent = ended & (number > total - RECENT)
    slot = jnp.where(recent, (tally.place + number - 1) % RECENT, RECENT)  # RECENT is out of range: dropped
    values = tally.recent.at[slot].set(returns, mode="drop")
    filled = jnp.minimum(tally.filled + total, RECENT)
    kept = jnp.where(jnp.arange(RECENT) < filled, values, 0.0)
    mean = jnp.where(filled > 0, kept.sum() / jnp.maximum(filled, 1), jnp.nan)
    lengths = jnp.where(episodes.ended, episodes.lengths, 0).sum()
    after = Tally(values, (tally.place + total) % RECENT, filled)
    return after, Count(total, lengths, jnp.where(ended, returns, 0.0).sum(), mean)
