"""The learning side where replay lies in the computer's memory or in files, and not on the device: called step by step from Python."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal import disk, loops, rng
from shoal.buffers.mapped import Files
from shoal.errors import StoreError
from shoal.loops import Desk
from shoal.specs import EnvSpec
from shoal.tensors import filled, named
from shoal.types import Algorithm, Batch, Key, Metrics, Params, Transition, Tree

_STORE = ".desk.buffer.store"
_propose, _propose_half = jax.jit(loops.propose), jax.jit(loops.propose_half, static_argnums=0)


@partial(jax.jit, static_argnums=1)
def _init(algorithm: Algorithm, spec: EnvSpec, root: Key) -> Any:
    return algorithm.init(spec, rng.key(root, rng.Stream.INIT))


def _learned(algorithm: Any, state: Tree, batch: Batch, key: Key) -> tuple[Tree, Metrics, Any]:
    """``loops.learn``, where a choice between the learner before and after is one between two names."""
    if not loops.has_halves(algorithm):
        new, metrics, priorities = _propose(algorithm, state, batch, key)
        return state if metrics["refused"] else new, metrics, priorities
    fields: dict[str, Tree] = {}
    halves = [_propose_half(name, algorithm, state, batch, key) for name in loops.HALVES]
    for half in halves:
        fields |= {} if half.metrics["refused"] else half.fields
    return state._replace(**fields), loops.joined(*(jax.device_get(half.metrics) for half in halves)), halves[1].priorities


@dataclasses.dataclass
class Apart:
    """How one run learns from such a buffer, and what a cut keeps of it."""

    algorithm: Any
    spec: EnvSpec
    num_lanes: int
    lane_envs: int
    folder: Path | None  # for files; without one there is no learning from them, only acting

    def clear(self, root: Key) -> Desk:
        """A learner that has learned nothing, and an empty buffer; what an earlier life left in the folder goes."""
        buffer: Any = self.algorithm.buffer(self.spec)
        learner = _init(self.algorithm, self.spec, root)
        if buffer.in_files:
            if self.folder is None:
                return Desk(learner, (), np.zeros((), np.int32))
            try:
                if self.folder.exists():
                    disk.remove(self.folder)
            except OSError as error:
                raise StoreError(f"{self.folder}: cannot be emptied: {disk.cause(error)}") from error
            buffer = buffer.within(self.folder)
        self.buffer, sizes = buffer, (self.spec, self.num_lanes * self.lane_envs, self.num_lanes, self.algorithm.num_steps)

        def one() -> Metrics:
            inner = buffer.on_device
            _, sample = inner.sample(inner.init(*sizes), root)
            updates, every = buffer.pace(0)
            batch = Batch(sample.batch, (), self.algorithm.policy(learner), every / updates, sample.weight)
            return loops.learn(self.algorithm, learner, batch, root)[1]

        self._names = tuple(sorted(jax.eval_shape(one)))
        return Desk(learner, buffer.init(*sizes), np.zeros((), np.int32))

    def study(self, desk: Desk, data: Transition, behaviour: Params, root: Key, iteration: Any, lane: Any = None) -> tuple[Desk, Metrics]:
        return loops.study_apart(self.algorithm, self.buffer, desk, data, behaviour, root, iteration, _learned, self._names, lane)

    # the cut

    @staticmethod
    def _split(state: Any) -> tuple[Any, Any]:
        """A state without the rows of its buffer, and those."""
        buffer = state.desk.buffer
        return state._replace(desk=state.desk._replace(buffer=dataclasses.replace(buffer, store=()))), buffer.store

    def tensors(self, state: Any) -> dict[str, np.ndarray]:
        """What the checkpoint's tensors hold of it; files are attached instead."""
        rest, store = self._split(state)
        return named(rest, "run") | ({} if isinstance(store, Files) else named(store, "run" + _STORE))

    def filled(self, state: Any, tensors: dict[str, np.ndarray]) -> Any:
        """``state`` as a checkpoint has it."""
        rest, store = self._split(state)
        rest = filled(rest, tensors, "run")
        if isinstance(store, Files):
            store.load(tensors.file.parent)  # type: ignore[attr-defined]
        else:
            store = filled(store, tensors, "run" + _STORE, np.array)
        return rest._replace(desk=rest.desk._replace(buffer=dataclasses.replace(rest.desk.buffer, store=store)))

    def attach(self, state: Any, folder: Path) -> dict[str, str]:
        """Put the buffer's files into a checkpoint's folder; SHA-256 by name."""
        store = state.desk.buffer.store
        return store.save(folder) if isinstance(store, Files) else {}
