"""What every engine does alike: refused updates, episodes in order, what a compiled call answers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import flow
from shoal.errors import DivergedError
from shoal.types import Algorithm, EpisodeEnd, Metrics

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


def ends(ended: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> list[EpisodeEnd]:
    """Episodes [T, B] in order of time, then environment."""
    means = flow.team_return(returns, 2)
    return [EpisodeEnd(int(i), int(t), float(means[t, i]), int(lengths[t, i])) for t, i in np.argwhere(ended)]
