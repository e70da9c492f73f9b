"""What every engine does alike: refused updates, episodes in order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import flow
from shoal.errors import DivergedError
from shoal.types import Algorithm, EpisodeEnd

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


def ends(ended: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> list[EpisodeEnd]:
    """Episodes [T, B] in order of time, then environment."""
    means = flow.team_return(returns, 2)
    return [EpisodeEnd(int(i), int(t), float(means[t, i]), int(lengths[t, i])) for t, i in np.argwhere(ended)]
