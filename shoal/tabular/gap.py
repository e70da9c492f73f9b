"""How far a policy is from the best there is: its exact value, by policy evaluation and not by playing, beside the optimum's."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tabular import solve
from shoal.tabular.model import Game, Model


def gap(source: Model | Game, policy: np.ndarray, discount: float) -> dict[str, Any]:
    """How far ``policy`` [rows] int64 is from the best.

    For a model: ``value`` and ``optimum`` of the start under ``discount`` (at 1: of an episode within its limit), the ``gap`` between them,
    and the same ``relative`` to the optimum. For a game: how all lines of play against every reply end, from either side.
    """
    if isinstance(source, Game):
        return {f"seat{seat}": dict(zip(("wins", "draws", "losses"), solve.exploit(source, policy, seat), strict=True)) for seat in (0, 1)}
    best = solve.value_iteration(source, discount)
    if discount < 1:
        value, optimum = (solve.start_value(source, x) for x in (solve.policy_evaluation(source, policy, discount), best.value))
    else:
        value, optimum = (solve.episode_value(source, x) for x in (policy, solve.policy_of_rows(source, best)))
    optimum = max(optimum, value)  # both are found by sweeps, to a rounding; no policy is better than the best
    away = optimum - value
    return {"value": value, "optimum": optimum, "gap": away, "relative": away / max(abs(optimum), 1e-12), "discount": discount}


def lines(found: dict[str, Any]) -> list[str]:
    """What ``gap`` found, for a reader."""
    if "seat0" in found:
        return [f"moving {which}: {found[seat]['wins']} lines won, {found[seat]['draws']} drawn, {found[seat]['losses']} lost, "
                "against every reply" for seat, which in (("seat0", "first"), ("seat1", "second"))]
    return [f"exact value {found['value']:.6g}, optimum {found['optimum']:.6g}: {found['gap']:.3g} away "
            f"({100 * found['relative']:.3g} %), at discount {found['discount']:g}"]
