"""Streams of transitions for the buffers' tests: every row says which lane, step and environment it is of."""

from __future__ import annotations

import jax
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


FILM = EnvSpec("film", Box((24, 24, 2), 0, 255, "uint8"), Discrete(4))


def picture(lane, step, env, final):
    """An observation of ``FILM`` that says which it is; ``final``: the one after an episode's end."""
    image = np.zeros((24, 24, 2), np.uint8)
    image[0, :5, 0] = lane, step % 250, step // 250, env, final
    image[1:] = np.random.default_rng([lane, step, env, final]).integers(0, 255, (23, 24, 2))
    return image


def address(image) -> tuple[int, int, int, int]:
    lane, low, high, env, final = (int(x) for x in np.asarray(image)[0, :5, 0])
    return lane, high * 250 + low, env, final


def film(lane: int, seq: int, steps: int, envs: int, end: float) -> Transition:
    """A chunk of ``FILM``: a successor is the next row's observation unless an episode ended."""
    data = jax.tree.map(np.array, chunk(lane, seq, steps, envs, end))
    obs = np.stack([[picture(lane, seq * steps + t, e, 0) for e in range(envs)] for t in range(steps)])
    final = [[picture(lane, seq * steps + t + (not data.last[t, e]), e, int(data.last[t, e])) for e in range(envs)] for t in range(steps)]
    return data._replace(obs=obs, next_obs=np.stack(final))
