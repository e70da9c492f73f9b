"""Policy and values side by side: on a CPU whose cores are far apart, two threads with a half each finish before two that share both.

While the values still learn, the next policy is told of and acts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import flow, loops
from shoal.runtime.cut import packed, shared, unlimited_numbers
from shoal.specs import EnvSpec
from shoal.types import Batch, Episodes, Metrics, Transition, Tree


@lru_cache(maxsize=64)
def fetching(shape: Any, unlimited: tuple[bool, ...], state_shape: Any, num_learner: int, spec: EnvSpec) -> Callable[..., Any]:
    """What comes before the halves, compiled: the state but for the learner, what to learn from, metrics and count.

    All comes and goes as leaves, as in ``runtime.ported``.
    """
    def fetch(numbers: list[Any], rest: list[Any], data: Transition, episodes: Episodes, root: Any, iteration: Any, lane: Any) -> Any:
        algorithm = jax.tree.unflatten(shape, unlimited_numbers(numbers, unlimited))
        state = jax.tree.unflatten(state_shape, [None] * num_learner + rest)
        desk, drawn, metrics = loops.fetch(algorithm, spec, state.desk, data, root, iteration, lane)
        tally, count = flow.count(state.tally, episodes)
        return jax.tree.leaves(state._replace(desk=desk, tally=tally)), drawn, packed(metrics, count)

    return jax.jit(fetch, donate_argnums=1)


@lru_cache(maxsize=64)
def _half(name: str, shape: Any, unlimited: tuple[bool, ...], learner_shape: Any, policy_shape: Any, spec: EnvSpec, rows: int
          ) -> Callable[..., Any]:
    """A half, compiled: leaves of the learner by their places, metrics, and of the first half the next policy as ``shared`` has it."""
    def learn(numbers: list[Any], learner: list[Any], memory: Tree, behaviour: list[Any], drawn: Any) -> Any:
        algorithm, state = jax.tree.unflatten(shape, unlimited_numbers(numbers, unlimited)), jax.tree.unflatten(learner_shape, learner)
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
    """The halves of one engine's updates: the second one runs on a thread of its own, from ``begin`` to ``end``."""

    def __init__(self, *what: Any):
        self._compiled = [_half(name, *what) for name in loops.HALVES]
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="shoal-values")
        self._second: Future[Any] | None = None
        self._first: Metrics = {}
        self._names: tuple[str, ...] = ()

    def names(self, *args: Any) -> tuple[str, ...]:
        """The metrics of an update that would begin with ``args``."""
        if not self._names:
            told = [next(iter(jax.eval_shape(half, *args)[1])) for half in self._compiled]
            self._names = tuple(sorted({*told[0], *told[1]}))
        return self._names

    def begin(self, numbers: list[Any], learner: list[Any], *args: Any) -> tuple[list[Any], Any]:
        """Learn; answers the learner with its policy, and that policy, or None where that half is refused."""
        self._second = self._aside.submit(self._compiled[1], numbers, learner, *args)
        changed, told, policy = self._compiled[0](numbers, learner, *args)
        self._first = _plain(told)
        return (learner, None) if self._first["refused"] else (_placed(learner, changed), policy)

    def end(self, learner: list[Any]) -> tuple[list[Any], Metrics]:
        """The learner with its values, too, and the update's metrics; waits for them."""
        assert self._second is not None
        second, self._second = self._second, None
        changed, told, _ = second.result()
        metrics = _plain(told)
        return learner if metrics["refused"] else _placed(learner, changed), loops.joined(self._first, metrics)

    def close(self) -> None:
        self._aside.shutdown(wait=False)


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
