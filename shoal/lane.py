"""Lanes: a few environments that are acted together, and the one place that resets an environment.

A lane is advanced in chunks. Everything random about a chunk is drawn before its first step, from the chunk's address; the steps
themselves are then plain arithmetic, scanned in one compiled call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import rng
from shoal.specs import EnvSpec
from shoal.types import Algorithm, Array, Env, Episodes, Key, LaneState, Params, Role, Transition, Tree

_PACK_SIZE = 16  # numbers per environment and leaf, up to which a step's records are written together
_SPARE_BYTES = 4096  # above this, fresh starts are made when needed instead of ahead


class Draws(NamedTuple):
    """All that is random in a chunk, [T, B, ...]."""

    noise: Tree  # for act
    step_keys: Array
    reset_keys: Array


def role(rank: Array | float, size: int, greedy: bool = False) -> Role:
    """The role of ``size`` environments; ``rank`` is a number or one per environment."""
    rank = np.broadcast_to(np.asarray(rank, np.float32), (size,))
    return Role(jnp.asarray(rank), jnp.full((size,), float(greedy)))


def start(algorithm: Algorithm, env: Env, root: Key, lane: Array, size: int) -> LaneState:
    """A lane of ``size`` environments at the start of their first episodes."""
    keys = jax.random.split(rng.key(root, rng.Stream.RESET, lane), size)
    state, obs = jax.vmap(env.reset)(keys)
    agents = env.spec.agent_shape
    return LaneState(state, obs, algorithm.memory(env.spec, size), jnp.ones((size, *agents), bool),
                     jnp.zeros((size, *agents)), jnp.zeros((size,), jnp.int32))


def draw_noise(algorithm: Algorithm, spec: EnvSpec, root: Key, lane: Array, seq: Array, size: int) -> Tree:
    """The noise of a chunk's actions, [T, B, ...]; a team adds its agents' axis."""
    return algorithm.draw(spec, rng.key(root, rng.Stream.ACT, lane, seq), (algorithm.num_steps, size))


def draw(algorithm: Algorithm, env: Env, root: Key, lane: Array, seq: Array, size: int) -> Draws:
    """All that is random in chunk ``seq`` of ``lane``."""
    step_key, reset_key = jax.random.split(rng.key(root, rng.Stream.ENV, lane, seq))
    shape = (algorithm.num_steps, size)
    noise = draw_noise(algorithm, env.spec, root, lane, seq, size)
    return Draws(noise, rng.grid(step_key, shape), rng.grid(reset_key, shape))


def _where(flag: Array, a: Tree, b: Tree) -> Tree:
    """Leaf by leaf ``a`` where ``flag`` [B], else ``b``."""
    return jax.tree.map(lambda x, y: jnp.where(flag.reshape(flag.shape + (1,) * (x.ndim - flag.ndim)), x, y), a, b)


def advance(env: Env, lane: LaneState, action: Tree, memory: Tree, extras: Tree, keys: Array, fresh: tuple[Tree, Tree, Tree]
            ) -> tuple[LaneState, Transition, Episodes]:
    """One step of every environment, and a fresh start for those whose episode ended. All arguments [B, ...].

    ``fresh`` is the state, observation and memory to continue from after an end.
    """
    state, step = jax.vmap(env.step)(lane.env, action, keys)
    last = step.terminated | step.truncated
    valid = lane.present if last.ndim > 1 else jnp.ones_like(lane.present)  # a single agent is always there
    gone = last | ~valid
    ended = gone.all(axis=1) if gone.ndim > 1 else gone
    over = ended[:, None] if gone.ndim > 1 else ended  # broadcasts over agents
    reward = step.reward.astype(jnp.float32)
    returns = lane.returns + jnp.where(valid, reward, 0.0)
    lengths = lane.lengths + 1
    # an agent that left earlier also ends here, so that no trace runs across the reset
    record = Transition(lane.obs, action, reward, 1.0 - step.terminated.astype(jnp.float32), step.obs,
                        last | over, valid.astype(jnp.float32), extras)
    new_state, new_obs, new_memory = _where(ended, fresh, (state, step.obs, memory))
    after = LaneState(new_state, new_obs, new_memory, over | ~gone, jnp.where(over, 0.0, returns),
                      jnp.where(ended, 0, lengths))
    return after, record, Episodes(ended, returns, lengths)


def rollout(algorithm: Algorithm, env: Env, params: Params, lane: LaneState, draws: Draws, role: Role
            ) -> tuple[LaneState, Transition, Episodes]:
    """A chunk: ``num_steps`` steps of the lane's environments, [T, B, ...]."""
    size = lane.lengths.shape[0]
    memory = algorithm.memory(env.spec, size)
    start = jax.eval_shape(env.reset, draws.reset_keys[0, 0])
    ahead = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(start)) <= _SPARE_BYTES
    spares: Any = jax.vmap(jax.vmap(env.reset))(draws.reset_keys) if ahead else draws.reset_keys

    def step(lane: LaneState, drawn: Any) -> tuple[LaneState, tuple[Transition, Episodes]]:
        noise, keys, spare = drawn
        state, obs = spare if ahead else jax.vmap(env.reset)(spare)
        acted = algorithm.act(params, lane.memory, lane.obs, role, noise)
        lane, record, episodes = advance(env, lane, acted.action, acted.memory, acted.extras, keys, (state, obs, memory))
        return lane, (record, episodes)

    drawn = (draws.noise, draws.step_keys, spares)
    like = jax.eval_shape(step, lane, jax.tree.map(lambda x: x[0], drawn))[1]

    def packed(lane: LaneState, drawn: Any) -> tuple[LaneState, Any]:
        lane, record = step(lane, drawn)
        return lane, _pack(record)

    lane, rows = jax.lax.scan(packed, lane, drawn)
    data, episodes = _unpack(rows, like)
    return lane, data, episodes


def _packable(x: Any) -> bool:
    """Whether a leaf [B, ...] is small enough, and of a kind, to be written beside others."""
    return (x.dtype == bool or jnp.dtype(x.dtype).itemsize == 4) and x.size <= _PACK_SIZE * x.shape[0]


def _pack(record: Tree) -> tuple[Array, list[Array]]:
    """The small leaves of a step as one matrix of bits [B, F], so that a step writes once; the others as they are."""
    leaves = jax.tree.leaves(record)
    small = [x.astype(jnp.uint32) if x.dtype == bool else jax.lax.bitcast_convert_type(x, jnp.uint32) for x in leaves if _packable(x)]
    matrix = jnp.concatenate([x.reshape((x.shape[0], -1)) for x in small], axis=1)
    return matrix, [x for x in leaves if not _packable(x)]


def _unpack(rows: tuple[Array, list[Array]], like: Tree) -> Tree:
    """All steps' records [T, B, ...] from what ``_pack`` wrote."""
    matrix, large = rows
    shapes, structure = jax.tree.flatten(like)
    leaves, place, rest = [], 0, iter(large)
    for shape in shapes:
        if not _packable(shape):
            leaves.append(next(rest))
            continue
        width = shape.size // shape.shape[0]
        part = matrix[..., place:place + width].reshape((matrix.shape[0], *shape.shape))
        leaves.append(part.astype(bool) if shape.dtype == bool else jax.lax.bitcast_convert_type(part, shape.dtype))
        place += width
    return jax.tree.unflatten(structure, leaves)


def side_by_side(tree: Tree) -> Tree:
    """Lanes [L, T, b, ...] as one batch [T, L·b, ...], in lane order."""
    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape((x.shape[1], x.shape[0] * x.shape[2]) + x.shape[3:])

    return jax.tree.map(join, tree)
