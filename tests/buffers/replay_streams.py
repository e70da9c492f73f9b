"""Streams of transitions for the buffers' tests: every row says which lane, step and environment it is of."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Transition

SPEC = EnvSpec("stream", Box((3,)), Discrete(4))


def chunk(lane: int, seq: int, steps: int, envs: int, end: float = 0.2, seed: int = 0) -> Transition:
    """Chunk ``seq`` of a lane: obs is (lane, step, env), next_obs the same half a step later; ends are random, some of them terminal."""
    draw = np.random.default_rng([seed, lane, seq])
    step = seq * steps + np.arange(steps)
    obs = np.stack(np.broadcast_arrays(float(lane), step[:, None], np.arange(envs)), axis=-1).astype(np.float32)
    last = draw.random((steps, envs)) < end
    alive = 1.0 - (last & (draw.random((steps, envs)) < 0.5))
    reward = draw.normal(size=(steps, envs))
    return Transition(jnp.asarray(obs), jnp.asarray(draw.integers(0, 4, (steps, envs)), jnp.int32), jnp.asarray(reward, jnp.float32),
                      jnp.asarray(alive, jnp.float32), jnp.asarray(obs + np.float32([0, 0.5, 0])), jnp.asarray(last),
                      jnp.ones((steps, envs)), ())


def side_by_side(chunks: list[Transition]) -> Transition:
    """Lanes [T, b, ...] as one [T, L·b, ...]."""
    leaves = [jnp.concatenate(parts, axis=1) for parts in zip(*(chunk[:7] for chunk in chunks), strict=True)]
    return Transition(*leaves, ())


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """How many standard deviations Pearson's statistic lies above its mean; stratified draws lie below it."""
    degrees = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float((statistic - degrees) / np.sqrt(2 * degrees))
