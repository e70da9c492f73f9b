"""What every engine does alike: refused updates, episodes in order, what a compiled call answers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import flow
from shoal.errors import DivergedError
from shoal.ops import serial
from shoal.types import Algorithm, EpisodeEnd, Metrics, Tree

_MAX_REFUSED = 10


def on_device(algorithm: Algorithm) -> Any:
    """The algorithm with its numbers as device arrays, so that calls need not convert them."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), algorithm)


def watch(refused: int, metrics: dict[str, float], iteration: int) -> int:
    """Refused updates in a row; too many stop the run."""
    refused = refused + 1 if metrics["refused"] else 0
    if refused >= _MAX_REFUSED:
        bad = ", ".join(name for name, value in metrics.items() if not np.isfinite(value)) or "the new parameters or priorities"
        raise DivergedError(f"{refused} updates in a row were refused, the last at iteration {iteration}: {bad} not finite; "
                            "try a smaller learning_rate or max_grad_norm, or check the environment's rewards")
    return refused


def packed(metrics: Metrics, count: flow.Count) -> tuple[dict[tuple[str, ...], Any], Any]:
    """Metrics and counts in two arrays, under the metrics' names: each array that leaves a compiled call costs a microsecond."""
    names = tuple(sorted(metrics))
    floats = jnp.stack([*(metrics[name] for name in names), count.return_sum, count.mean_return])
    return {names: floats}, jnp.stack([count.episodes, count.length_sum])


def unpacked(answer: tuple[dict[tuple[str, ...], Any], Any]) -> tuple[dict[str, float], flow.Count]:
    """Metrics and counts as plain numbers."""
    ((names, floats),) = answer[0].items()
    *given, return_sum, mean_return = np.asarray(floats).tolist()
    episodes, length_sum = np.asarray(answer[1]).tolist()
    return dict(zip(names, given, strict=True)), flow.Count(episodes, length_sum, return_sum, mean_return)


def idle(algorithm: Algorithm, **others: float) -> tuple[float | None, ...]:
    """Which of an algorithm's numbers change nothing as they are: those that are infinite, and ``others``, by name, at another value;
    None for all that do."""
    def one(path: tuple[Any, ...], x: Any) -> float | None:
        nothing = others.get(getattr(path[-1], "name", ""), math.inf)
        return nothing if np.ndim(x) == 0 and x == nothing else None

    return tuple(one(path, x) for path, x in jax.tree_util.tree_leaves_with_path(algorithm))


def with_idle(numbers: list[Any], still: tuple[float | None, ...]) -> list[Any]:
    """An algorithm's numbers inside a compiled call, the idle ones as such: what they would do is then left out."""
    return [x if nothing is None else nothing for x, nothing in zip(numbers, still, strict=True)]


def shared(policy: Tree, learner: list[Any], after: Any) -> dict[tuple[int, ...], list[Any]]:
    """A policy's leaves as a compiled call answers them: where they are among ``learner``'s, -1 where they are not, and those, once
    ``after`` is there.
    """
    place, leaves = {id(x): i for i, x in enumerate(learner)}, jax.tree.leaves(policy)
    where = tuple(place.get(id(x), -1) for x in leaves)
    return {where: serial.copied([x for x, i in zip(leaves, where, strict=True) if i < 0], after)}


def unshared(policy: dict[tuple[int, ...], list[Any]], learner: list[Any]) -> list[Any]:
    """A policy's leaves: those of the learner that it shares, and its own."""
    ((where, own),) = policy.items()
    others = iter(own)
    return [learner[i] if i >= 0 else next(others) for i in where]


def ends(ended: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> list[EpisodeEnd]:
    """Episodes [T, B] in order of time, then environment."""
    means = flow.team_return(returns, 2)
    return [EpisodeEnd(int(i), int(t), float(means[t, i]), int(lengths[t, i])) for t, i in np.argwhere(ended)]
