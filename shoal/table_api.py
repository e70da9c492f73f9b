"""What can be done with a policy in a table, or beside one that is known: act, measure its distance to the optimum, play against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.errors import ConfigError, MissingError
from shoal.tabular import discrete, gap, play, solve
from shoal.tabular.engine import Tables
from shoal.tabular.setup import known, rows_for


class Acting:
    """The best action of a table for what its environment shows, in the environment's own units."""

    def __init__(self, engine: Tables, env: Any):
        learner = engine.setup.learner
        rows = rows_for(learner, env.spec)
        self._row_fn = engine.setup.rows.find if learner.sparse else rows.index
        self._mask_fn, self._choices, values = rows.mask, discrete.actions_of(env.spec.action), engine.values()
        self._values = np.vstack([values, np.zeros((1, values.shape[1]))])  # row -1: what was never seen

    def __call__(self, obs: Any) -> Any:
        worth, mask = self._values[self._row_fn(obs)], self._mask_fn(obs)
        return self._choices.action(int(np.argmax(worth if mask is None else np.where(self._choices.legal(mask), worth, -np.inf))))


def gap_of(plan: Any, engine: Any, make_fn: Callable[[], Any], act_fn: Callable[[Any], Any] | None) -> dict[str, Any]:
    """How far a run's policy is from the best: any algorithm's, where its environment is known as a model or game."""
    source = engine.setup.source if isinstance(engine, Tables) else known(plan, make_fn)
    if source is None:
        raise MissingError(f"env {plan.env!r} has no model to compare with: --gap is for worlds that `shoal solve` knows")
    if isinstance(engine, Tables):
        policy = engine.policy()
    else:
        assert act_fn is not None
        policy = np.array([int(act_fn(row)) for row in range(source.num_rows)])
    return gap.gap(source, policy, float(plan.algorithm.get("discount", 0.99)))


def play_against(name: str, env: Any, engine: Any, second: bool, ask_fn: Callable[[str], str], say_fn: Callable[[str], Any]) -> int:
    """One game of a human against a table, or against perfect play; 0."""
    if not hasattr(env, "game"):
        raise ConfigError(f"env {name!r} is not a game for two; try `shoal play tictactoe`")
    game = env.game()
    policy = engine.policy() if engine is not None else solve.minimax(game).policy
    play.play(game, env.render, lambda state: int(policy[state]), human_seat=1 if second else 0, ask_fn=ask_fn, say_fn=say_fn)
    return 0
