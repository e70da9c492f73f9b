"""Policy and values side by side: on a CPU whose cores are far apart, two threads with a half each finish before two that share both.

While the values still learn, the next policy is told of and acts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any
from weakref import finalize

import jax
import jax.numpy as jnp
import numpy as np

from shoal import flow, loops
from shoal.ops import serial
from shoal.runtime.cut import packed, shared, with_idle
from shoal.specs import EnvSpec
from shoal.types import Batch, Episodes, Metrics, Transition, Tree


@lru_cache(maxsize=64)
def fetching(shape: Any, still: tuple[float | None, ...], state_shape: Any, num_learner: int, spec: EnvSpec) -> Callable[..., Any]:
    """What comes before the halves, compiled: the state but for the learner, what to learn from, metrics and count.

    All comes and goes as leaves, as in ``runtime.ported``.
    """
    def fetch(numbers: list[Any], rest: list[Any], data: Transition, episodes: Episodes, root: Any, iteration: Any, lane: Any) -> Any:
        algorithm = jax.tree.unflatten(shape, with_idle(numbers, still))
        state = jax.tree.unflatten(state_shape, [None] * num_learner + rest)
        desk, drawn, metrics = loops.fetch(algorithm, spec, state.desk, data, root, iteration, lane)
        ended = episodes.ended & serial.done(drawn[1])
        tally, count = flow.count(state.tally, episodes._replace(ended=ended))
        return jax.tree.leaves(state._replace(desk=desk, tally=tally)), drawn, packed(metrics, count)

    return jax.jit(fetch, donate_argnums=1)


@lru_cache(maxsize=64)
def _half(name: str, shape: Any, still: tuple[float | None, ...], learner_shape: Any, policy_shape: Any, spec: EnvSpec, rows: int
          ) -> Callable[..., Any]:
    """A half, compiled: leaves of the learner by their places, metrics, and of the first half the next policy as ``shared`` has it."""
    def learn(numbers: list[Any], learner: list[Any], memory: Tree, behaviour: list[Any], drawn: Any) -> Any:
        algorithm, state = jax.tree.unflatten(shape, with_idle(numbers, still)), jax.tree.unflatten(learner_shape, learner)
        (data, weight, key), (updates, every) = drawn, algorithm.buffer(spec).pace(rows)
        batch = Batch(data, memory, jax.tree.unflatten(policy_shape, behaviour), every / updates, weight)
        half = loops.propose_half(name, algorithm, state, batch, key)
        place = jax.tree.unflatten(learner_shape, range(len(learner)))
        places, changed = (tuple(jax.tree.leaves(x)) for x in ({name: getattr(place, name) for name in half.fields}, half.fields))
        names = tuple(sorted(half.metrics))
        floats = jnp.stack([half.metrics[name] for name in names])
        after = jax.tree.leaves(state._replace(**half.fields))
        policy = shared(algorithm.policy(state._replace(**half.fields)), after, floats) if name == loops.HALVES[0] else {}
        return {places: list(changed)}, {names: floats}, policy

    return jax.jit(learn)


class SideBySide:
    """The halves of one engine's updates. The second ones run on a thread of their own, where the next may wait before one is done, so
    that nobody need wake for it; at most two are under way."""

    def __init__(self, *what: Any):
        self._compiled = [_half(name, *what) for name in loops.HALVES]
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._under_way = 0
        self._first: Metrics = {}
        self._names: tuple[str, ...] = ()
        thread = Thread(target=_second_halves, args=(self._compiled[1], self._jobs, self._done), name="shoal-values", daemon=True)
        self.close = finalize(self, _ended, self._jobs, thread)  # at the latest as Python ends
        thread.start()

    def names(self, *args: Any) -> tuple[str, ...]:
        """The metrics of an update that would begin with ``args``."""
        if not self._names:
            told = [next(iter(jax.eval_shape(half, *args)[1])) for half in self._compiled]
            self._names = tuple(sorted({*told[0], *told[1]}))
        return self._names

    def offer(self, numbers: list[Any], learner: list[Any], *args: Any) -> None:
        """Have the values learn, as soon as those of the update before have; they follow those, whatever ``learner`` knows of them."""
        self._jobs.put((self._under_way > 0, numbers, learner, *args))
        self._under_way += 1

    def begin(self, numbers: list[Any], learner: list[Any], *args: Any) -> tuple[list[Any], Any]:
        """Have the policy learn; answers the learner with it, and the policy, or None where that half is refused."""
        changed, told, policy = self._compiled[0](numbers, learner, *args)
        self._first = _plain(told)
        return (learner, None) if self._first["refused"] else (_placed(learner, changed), policy)

    def end(self, learner: list[Any]) -> tuple[list[Any], Metrics]:
        """The learner with the values of the oldest update under way, too, and that update's metrics; waits for them."""
        changed, metrics = self._next()
        return learner if metrics["refused"] else _placed(learner, changed), loops.joined(self._first, metrics)

    def forget(self) -> None:
        """Whatever is under way counts for nothing."""
        for _ in range(self._under_way):
            self._done.get()
        self._under_way = 0

    def _next(self) -> Any:
        found = self._done.get()
        self._under_way -= 1
        if isinstance(found, BaseException):
            raise found
        return found


def _second_halves(half: Callable[..., Any], jobs: SimpleQueue[Any], done: SimpleQueue[Any]) -> None:
    """What the thread of the values does, until there is None to do."""
    found: Any
    last: Any = None  # what changed in the newest update that was accepted, and that others may not know of yet
    while (job := jobs.get()) is not None:
        follows, numbers, learner, *args = job
        try:
            last = last if follows else None
            changed, told, _ = half(numbers, learner if last is None else _placed(learner, last), *args)
            metrics = _plain(told)
            last, found = last if metrics["refused"] else changed, (changed, metrics)
        except BaseException as error:  # its place is where the values are waited for
            found = error
        # while everybody else waits: to let go of an array is to let go of Python's lock, and who has been woken would take it
        del job, learner, args
        done.put(found)


def _ended(jobs: SimpleQueue[Any], thread: Thread) -> None:
    jobs.put(None)
    if thread is not current_thread():
        thread.join()


def _plain(told: dict[tuple[str, ...], Any]) -> dict[str, float]:
    ((names, floats),) = told.items()
    return dict(zip(names, np.asarray(floats).tolist(), strict=True))


def _placed(learner: list[Any], changed: dict[tuple[int, ...], list[Any]]) -> list[Any]:
    """``learner`` with some of its leaves changed."""
    ((places, leaves),) = changed.items()
    new = list(learner)
    for place, leaf in zip(places, leaves, strict=True):
        new[place] = leaf
    return new
