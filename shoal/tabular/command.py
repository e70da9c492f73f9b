"""``shoal solve``: the exact optimum of an environment that has a model, as data and as lines to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shoal import registry
from shoal.errors import MissingError
from shoal.tabular import model as models
from shoal.tabular import solve

FIRST = 10  # rows of a table that are shown
NOWHERE = "·"  # a cell in which no episode acts: a hole, an obstacle, the goal
TOY_TEXTS = ("FrozenLake", "FrozenLake8x8", "CliffWalking", "CliffWalkingSlippery", "Taxi", "Blackjack")
GRIDS: dict[str, tuple[str, Callable[[Any], int]]] = {  # by class: what the actions do, and how wide the world is
    "FrozenLakeEnv": ("←↓→↑", lambda env: env.ncol),
    "CliffWalkingEnv": ("↑→↓←", lambda env: env.shape[1]),
    "GridWorld": ("↑↓←→", lambda env: env.width),
}


def run_solve(name: str, options: dict[str, Any], discount: float, max_episode_steps: int = 0) -> dict[str, Any]:
    """The optimum of an environment, as plain data.

    ``value``: of the start, discounted. ``episode_return``: of the same policy in an episode, undiscounted, within the limit; None if
    there is no limit and it does not settle. ``policy``: an action for each row. ``picture``: the policy as lines of text.
    """
    game = _game(name, options)
    if game is not None:
        return game
    model = models.of(name, options, max_episode_steps)
    if model is None:
        raise MissingError(f"env {name!r}{' with these options' if options else ''} has no model to solve; these have one: "
                           f"{', '.join(_with_model())}, and an environment of yours with a method model")
    solution = solve.value_iteration(model, discount)
    policy = solve.policy_of_rows(model, solution)
    try:
        episode_return = solve.episode_value(model, policy)
    except solve.UnsettledError:
        episode_return = None
    num_states, num_actions, num_outcomes = model.after.shape
    return {
        "env": name, "states": num_states, "actions": num_actions, "outcomes": num_outcomes, "discount": discount,
        "value": solve.start_value(model, solution.value), "episode_return": episode_return, "limit": model.limit,
        "sweeps": solution.sweeps, "policy": policy.tolist(), "picture": _picture(models.world(name, options), model, policy),
    }


def _game(name: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """The same for a game of two: what perfect play comes to for whoever moves first."""
    if name not in registry.names("env") or not hasattr(registry.find("env", name), "game"):
        return None
    game = registry.find("env", name)(**options).game()
    best = solve.minimax(game)
    return {"env": name, "game": True, "states": len(game.mover), "reached": int((game.mover < 2).sum()), "actions": game.after.shape[1],
            "value": float(best.value[game.start]), "policy": best.policy.tolist()}


def lines(result: dict[str, Any]) -> list[str]:
    """What ``run_solve`` found, for a reader."""
    if result.get("game"):
        return [f"{result['env']}: {result['states']} states, {result['actions']} actions; somebody is to move in {result['reached']}",
                f"value of perfect play for whoever moves first: {result['value']:g}"]
    gained, limit = result["episode_return"], result["limit"]
    within = f"within {limit} steps" if limit else "without a limit"
    outcomes = "1 outcome" if result["outcomes"] == 1 else f"up to {result['outcomes']} outcomes"
    return [
        f"{result['env']}: {result['states']} states, {result['actions']} actions, {outcomes} of each",
        f"value of the optimum at discount {result['discount']:g}: {result['value']:.5f}  ({result['sweeps']} sweeps)",
        f"its return in an episode {within}: {'does not settle' if gained is None else f'{gained:.5f}'}",
        *result["picture"],
    ]


def _picture(env: Any, model: models.Model, policy: np.ndarray) -> list[str]:
    """Arrows where the environment is a grid, else the first rows in which episodes act, with their actions."""
    acted = np.zeros(model.num_rows, bool)
    acted[model.row[solve.reached(model)]] = True
    if type(env).__name__ in GRIDS:
        arrows, width_fn = GRIDS[type(env).__name__]
        signs = [arrows[action] if here else NOWHERE for action, here in zip(policy, acted, strict=True)]
        width = width_fn(env)
        return ["".join(signs[first : first + width]) for first in range(0, len(signs), width)]
    shown = np.flatnonzero(acted)
    more = [f"… and {len(shown) - FIRST} rows more"] if len(shown) > FIRST else []
    return ["   row  action", *(f"{row:6}  {policy[row]:6}" for row in shown[:FIRST]), *more]


def _with_model() -> list[str]:
    from shoal.envs import gymnasium

    own = [name for name in registry.names("env") if hasattr(registry.find("env", name), "model")]
    return [*own, *(name for name in gymnasium.ids() if name.split("-")[0] in TOY_TEXTS)]
