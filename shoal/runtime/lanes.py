"""The acting side: the lanes of a run that live in this process, and where they stand as named tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import lane, rng
from shoal.envs import replay, rows
from shoal.envs.gym_vector import GymVector
from shoal.host_act import acting
from shoal.host_lane import HostLane, HostRecord, guarded
from shoal.specs import EnvSpec, zeros
from shoal.tensors import filled, named
from shoal.types import Algorithm, Chunk, Env, Episodes, HostEnv, LaneState, Params, Transition, Tree
from shoal.vector_lane import VectorLane

_AHEAD, _AHEAD_STEPS = 64, 1024  # chunks, and steps in them, that noise is drawn for in one call: small ones cost more to call than to draw

_start = jax.jit(lane.start, static_argnums=4)
_draw = jax.jit(lane.draw_noise, static_argnums=(1, 5))


@partial(jax.jit, static_argnums=(1, 5, 6))
def _draw_ahead(algorithm: Algorithm, spec: EnvSpec, root: Any, index: Any, first: Any, size: int, num: int) -> Tree:
    """The noise of ``num`` chunks, [num, T, B, ...], each by its own address."""
    return jax.vmap(lambda seq: lane.draw_noise(algorithm, spec, root, index, seq, size))(first + jnp.arange(num, dtype=jnp.int32))


@jax.jit
def _collect(algorithm: Algorithm, env: Env, params: Params, state: LaneState, root: Any, index: Any, seq: Any, role: Any) -> Any:
    draws = lane.draw(algorithm, env, root, index, seq, state.lengths.shape[0])
    return lane.rollout(algorithm, env, params, state, draws, role)


class World(NamedTuple):
    """All that lanes are made of. Where they are made changes nothing."""

    algorithm: Any  # its numbers on the device
    spec: EnvSpec
    env: Any  # compiled, or None
    make_fn: Callable[[], HostEnv] | None  # one that lives in Python, else
    vector: GymVector | None  # or a ready-made vector of them
    seed: int
    num_lanes: int
    lane_envs: int
    mode: str  # how host environments are brought back; empty for compiled ones, and until it has been tried
    policy: Any  # structure of the algorithm's policy; it travels as leaves


def open_world(algorithm: Any, env: Any, make_fn: Callable[[], HostEnv] | None, *, seed: int, num_lanes: int, lane_envs: int,
               policy: Any = None, mode: str = "") -> World:
    """The world of a run; ``mode`` and ``policy`` where they are known. Environments are made, but not reset or stepped."""
    vector = None
    if env is not None:
        spec = env.spec
    else:
        assert make_fn is not None
        probe: Any = make_fn()
        spec, vector = probe.spec, probe if isinstance(probe, GymVector) else None
        probe.close()
    if policy is None:
        policy = jax.tree.structure(policy_like(algorithm, spec))
    return World(algorithm, spec, env, make_fn, vector, seed, num_lanes, lane_envs, mode, policy)


def policy_like(algorithm: Any, spec: EnvSpec) -> Params:
    """The shapes of the algorithm's policy."""
    return jax.eval_shape(lambda a, k: a.policy(a.init(spec, k)), algorithm, rng.root(0))


def check(algorithm: Any, spec: EnvSpec, num_envs: int, num_lanes: int) -> Any:
    """The buffer of an algorithm that can learn there; what cannot, for its buffer, network or actions, is refused. Allocates nothing."""
    buffer = algorithm.buffer(spec)
    buffer.check(spec, num_envs, num_lanes, algorithm.num_steps)
    policy_like(algorithm, spec)
    return buffer


def tried(world: World) -> World:
    """The world, knowing how its environments are brought back: they are tried for it."""
    if world.env is not None or world.vector is not None or world.mode:
        return world
    make_fn, seed = world.make_fn, rng.host_seed(world.seed, rng.Stream.RESET, 0)
    assert make_fn is not None
    return world._replace(mode=guarded(world.spec.name, lambda: replay.replay_mode(make_fn, seed)))


class CompiledLane:
    """A lane of a compiled environment: one call makes a whole chunk."""

    def __init__(self, world: World, index: int, role: Any):
        self.lane, self._world, self._role, self._root = index, world, role, rng.root(world.seed)
        self.state = _start(world.algorithm, world.env, self._root, np.int32(index), world.lane_envs)

    def make(self, params: Params, version: int, seq: int) -> Chunk:
        memory, world = self.state.memory, self._world
        self.state, data, episodes = _collect(world.algorithm, world.env, jax.tree.unflatten(world.policy, params), self.state, self._root,
                                              np.int32(self.lane), np.int32(seq), self._role)
        return Chunk(self.lane, 0, seq, version, data, memory, self.state, episodes)

    def close(self) -> None:
        """Nothing is held open."""


def make_lanes(world: World, which: Sequence[int], beat: Any = None) -> list[Any]:
    """Lanes number ``which``, at the start of their first episodes; ``beat`` hears of every step.

    Numbers from ``num_lanes`` on are further lives of the same lanes: other draws, the same place.
    """
    roles = {i: lane.role(i % world.num_lanes / world.num_lanes, world.lane_envs) for i in which}
    if world.env is not None:
        return [CompiledLane(world, i, roles[i]) for i in which]
    assert world.make_fn is not None
    algorithm, spec, size, root = world.algorithm, world.spec, world.lane_envs, rng.root(world.seed)
    ahead = max(1, min(_AHEAD, _AHEAD_STEPS // (algorithm.num_steps * world.num_lanes * size)))
    kept: dict[int, tuple[int, Tree]] = {}  # by lane: the first chunk that noise was drawn for, and the noise

    def noise(index: int, seq: int) -> Tree:
        if ahead == 1:
            return jax.tree.map(np.asarray, _draw(algorithm, spec, root, np.int32(index), np.int32(seq), size))
        first = seq - seq % ahead
        if index not in kept or kept[index][0] != first:
            drawn = _draw_ahead(algorithm, spec, root, np.int32(index), np.int32(first), size, ahead)
            kept[index] = first, jax.tree.map(np.asarray, drawn)
        return rows.row(kept[index][1], seq - first)

    calls: dict[str, Any] = {"seed": world.seed, "num_steps": algorithm.num_steps, "acting_fn": acting(algorithm, spec, size),
                             "noise_fn": noise, "memory_fn": lambda size: algorithm.memory(spec, size)}
    if world.vector is not None:
        return [VectorLane(world.vector, role=roles[0], **calls)]
    return [HostLane(i, size, world.make_fn, role=roles[i], mode=world.mode, beat=beat, **calls) for i in which]


# --- where lanes stand ------------------------------------------------------------------------------------------------


def record_like(world: World) -> HostRecord:
    """A record of the shapes that every host lane of this world has, empty logs of actions aside."""
    size, agents = world.lane_envs, world.spec.agent_shape
    state: tuple[Tree, ...] = ()
    probe: Any = None if world.make_fn is None or world.vector is not None else world.make_fn()
    if probe is not None:
        if replay.has_state(probe):
            probe.reset(0)
            state = (probe.get_state(),) * size
        probe.close()
    numbers = np.zeros(size, np.int64)
    return HostRecord(numbers, np.zeros((size, *agents)), numbers, np.zeros((size, *agents), bool),
                      () if world.vector is not None else (np.zeros(0, np.int32),) * size, np.zeros(size, np.uint32),
                      world.algorithm.memory(world.spec, size), zeros(world.spec.obs, (size, *agents)), state)


_PLAIN = ("episode", "returns", "lengths", "present", "checksum")


def to_tensors(record: HostRecord | LaneState, prefix: str) -> dict[str, np.ndarray]:
    """Where a lane stands, as named tensors."""
    if isinstance(record, LaneState):
        return named(record, prefix)
    out = {f"{prefix}.{name}": getattr(record, name) for name in _PLAIN}
    out |= {f"{prefix}.actions.{i}": actions for i, actions in enumerate(record.actions)}
    for name in ("memory", "obs", "state"):
        out |= named(getattr(record, name), f"{prefix}.{name}")
    return out


def from_tensors(like: HostRecord, tensors: dict[str, np.ndarray], prefix: str) -> HostRecord:
    """A host lane's record out of named tensors, which must have the shapes of ``like``."""
    plain: dict[str, Any] = {name: filled(getattr(like, name), tensors, f"{prefix}.{name}", np.asarray) for name in _PLAIN}
    trees = {name: filled(getattr(like, name), tensors, f"{prefix}.{name}", jnp.asarray if name == "memory" else np.asarray)
             for name in ("memory", "obs", "state")}
    return HostRecord(actions=tuple(tensors[f"{prefix}.actions.{i}"] for i in range(len(like.actions))), **plain, **trees)


def state_like(world: World) -> LaneState:
    """The shapes of where a lane of a compiled environment stands."""
    return jax.eval_shape(lambda a, e, k: lane.start(a, e, k, 0, world.lane_envs), world.algorithm, world.env, rng.root(0))


def chunk_like(world: World) -> Any:
    """The structure of what a chunk carries: data, policy memory, where its lane stands, episodes."""
    if world.env is None:
        obs, memory = zeros(world.spec.obs), world.algorithm.memory(world.spec, world.lane_envs)
        data = Transition(obs, 0, 0, 0, obs, 0, 0, ())
        return jax.tree.structure((data, memory, record_like(world)._replace(actions=()), Episodes(0, 0, 0)))
    state = state_like(world)
    policy, role = policy_like(world.algorithm, world.spec), lane.role(0.0, world.lane_envs)
    after, data, episodes = jax.eval_shape(_collect, world.algorithm, world.env, policy, state, rng.root(0), np.int32(0), np.int32(0), role)
    return jax.tree.structure((data, state.memory, after, episodes))


def part(joined: LaneState, index: int, size: int) -> LaneState:
    """One lane's rows of all lanes side by side."""
    return jax.tree.map(lambda leaf: leaf[index * size:(index + 1) * size], joined)


def beside(trees: list[Tree], axis: int) -> Tree:
    """Lanes joined along their environments, in lane order; on the host."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *xs: np.concatenate([np.asarray(x) for x in xs], axis=axis), *trees)
