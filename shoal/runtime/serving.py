"""The server topology: workers act and learn by themselves, and push gradients, or how far they moved, to the one who applies them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from shoal import faultpoint, flow, lane, rng
from shoal.ops import serial
from shoal.params import deltas
from shoal.runtime.cut import packed, unpacked
from shoal.runtime.flowing import Flowing
from shoal.runtime.lanes import World, policy_like, state_like
from shoal.runtime.ported import LearnerState
from shoal.runtime.stream import Stream
from shoal.specs import EnvSpec, zeros
from shoal.types import Batch, Chunk, Episodes, Iteration, Params, Transition, Tree


def data_like(world: World) -> Transition:
    """The shapes of a chunk's data."""
    algorithm, spec, size = world.algorithm, world.spec, world.lane_envs
    policy = policy_like(algorithm, spec)
    role, root = lane.role(0.0, size), rng.root(0)
    if world.env is not None:
        draws = jax.eval_shape(lambda a, e: lane.draw(a, e, root, 0, 0, size), algorithm, world.env)
        return jax.eval_shape(lane.rollout, algorithm, world.env, policy, state_like(world), draws, role)[1]
    shape = algorithm.num_steps, size, *spec.agent_shape
    obs, memory = zeros(spec.obs, shape), algorithm.memory(spec, size)
    noise = jax.eval_shape(lambda a: a.draw(spec, root, (size,)), algorithm)
    row = jax.tree.map(lambda x: x[0], obs)
    action = jax.eval_shape(lambda a, p, n: a.act(p, memory, row, role, n).action, algorithm, policy, noise)
    actions = jax.tree.map(lambda x: np.zeros((algorithm.num_steps, *x.shape), x.dtype), action)
    number, flag = np.zeros(shape, np.float32), np.zeros(shape, bool)
    return Transition(obs, actions, number, number, obs, flag, number, ())


def pushed_like(world: World) -> Tree:
    """The shapes of what a worker pushes."""
    algorithm, spec, root = world.algorithm, world.spec, rng.root(0)
    state = jax.eval_shape(lambda a, k: a.init(spec, k), algorithm, root)
    rows = float(algorithm.num_steps * world.lane_envs)

    def push(algorithm: Any, state: Tree, data: Transition) -> Tree:
        batch = Batch(data, algorithm.memory(spec, world.lane_envs), algorithm.policy(state), rows)
        return deltas.propose(algorithm, state, deltas.own_part(state), batch, root)[0]

    return jax.eval_shape(push, algorithm, state, data_like(world))


class Pushes(Stream):
    """Workers whose chunks are pushes; what is published to them is the whole learner."""

    learns = True

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self._told |= {"learns": True}

    def _shape(self) -> Any:
        return jax.tree.structure((pushed_like(self._world), (), (), Episodes(0, 0, 0)))


class Learner:
    """The worker's side: acts with the newest learner it was told of, and says what it would change about it."""

    def __init__(self, world: World):
        self._world, self._root, self._own = world, rng.root(world.seed), None  # type: ignore[var-annotated]
        state = jax.eval_shape(lambda a, k: a.init(world.spec, k), world.algorithm, self._root)
        self._structure, rows = jax.tree.structure(state), float(world.algorithm.num_steps * world.lane_envs)

        def push(algorithm: Any, leaves: list[Any], own: Tree, data: Transition, memory: Tree, root: Any, address: Any, seq: Any) -> Any:
            state = jax.tree.unflatten(self._structure, leaves)
            key = rng.key(root, rng.Stream.LEARN, address, seq)
            return deltas.propose(algorithm, state, own, Batch(data, memory, algorithm.policy(state), rows), key)

        self._push = jax.jit(push)
        self._policy = jax.jit(lambda a, leaves: jax.tree.leaves(a.policy(jax.tree.unflatten(self._structure, leaves))))

    def policy(self, leaves: list[Any]) -> list[Any]:
        return self._policy(self._world.algorithm, leaves)

    def push(self, leaves: list[Any], chunk: Chunk, address: int) -> Tree:
        """What to push for a chunk that the policy of ``leaves`` made."""
        if self._own is None:
            self._own = deltas.own_part(jax.tree.unflatten(self._structure, leaves))
        pushed, self._own = self._push(self._world.algorithm, leaves, self._own, chunk.data, chunk.memory, self._root, np.int32(address),
                                       np.int32(chunk.seq))
        return pushed


@lru_cache(maxsize=16)
def _applying(shape: Any, state_shape: Any, spec: EnvSpec) -> Callable[..., Any]:
    """One push applied, compiled: state, metrics, count."""

    def apply(numbers: list[Any], leaves: list[Any], pushed: Tree, episodes: Episodes) -> Any:
        algorithm, state = jax.tree.unflatten(shape, numbers), jax.tree.unflatten(state_shape, leaves)
        learner, metrics = deltas.apply(algorithm, state.desk.learner, pushed)
        tally, count = flow.count(state.tally, episodes._replace(ended=episodes.ended & serial.done(metrics["refused"])))
        return jax.tree.leaves(LearnerState(state.desk._replace(learner=learner), tally)), packed(metrics, count)

    return jax.jit(apply, donate_argnums=1)


class Serving(Flowing):
    """The driver is the parameter server: the only writer, versions whole and rising, pushes applied in the order they come."""

    def init(self, seed: int) -> None:
        super().init(seed)
        self._apply = _applying(jax.tree.structure(self.algorithm), self._state_shape, self.spec)
        self._share()

    def _share(self) -> None:
        """Have the learner as it is be what workers are told first."""
        self._params.versions = {self._iteration: jax.tree.leaves(self._state.desk.learner)}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool = False) -> list[str]:
        notes = super().load(tensors, inexact)
        self._share()
        return notes

    def load_policy(self, tensors: dict[str, np.ndarray]) -> None:
        super().load_policy(tensors)
        self._share()

    def policy(self) -> Params:
        return self.algorithm.policy(self._state.desk.learner)

    def _iterate(self) -> Iteration:
        push = self._crew.take(self._deadline_s)
        while self._iteration - push.version > self._max_staleness:
            self._crew.drop(push)
            push = self._crew.take(self._deadline_s)
        with self._at_work(self._iteration):
            self._leaves, answer = self._apply(self._numbers, self._leaves, push.data, push.episodes)
        self._tree = None
        self._note(*unpacked(answer), push.episodes, self._iteration)
        self._iteration += 1
        learner = jax.tree.leaves(self._state.desk.learner)
        self._params.versions = {self._iteration: learner}
        faultpoint.at("driver", "publish")
        with self.trace.span("publish", version=self._iteration):
            self._crew.publish(self._iteration, learner, self._deadline_s)
        self._crew.used(push, self._iteration - 1)
        return self._last
