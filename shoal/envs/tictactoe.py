"""Noughts and crosses: three in a row wins. Small enough that a table holds every position, and a draw if nobody errs."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from shoal.errors import ConfigError
from shoal.specs import Discrete, EnvSpec
from shoal.tabular.model import Game
from shoal.types import Array, Key, pytree

CELLS = 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
NOBODY = 2  # to move
POWERS = 3 ** np.arange(CELLS)  # int64 [9]: what a mark in a cell adds to the position, once for the first player, twice for the second


@pytree
class TicTacToe:
    """Two players in turn, crosses first: three in a row wins 1, and the other loses 1; a full board without is a draw and pays 0.

    State and observation are the same number: the board in base 3, cell i (along the rows from the top left) with digit 3^i, which
    is 0 for empty, 1 for the first player's mark and 2 for the second's. Action i marks cell i; marked cells are not legal.
    Tables learn it from ``game``, one table for both seats; there is nobody in it whom one player alone could play against.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("tictactoe", obs=Discrete(3**CELLS), action=Discrete(CELLS))  # no limit: a map over it would hide ``game``

    def reset(self, key: Key) -> NoReturn:
        raise ConfigError("tictactoe is played by two in turn, which tables can learn (q_learning, sarsa, ...); "
                          "ppo and other deep algorithms cannot yet")

    def step(self, state: Array, action: Array, key: Key) -> NoReturn:
        self.reset(key)

    def game(self) -> Game:
        """Every position, [19683], with every move, [19683, 9]; those that no game comes to, too, where nobody moves."""
        board = _boards()
        first, second = ((board == mark).sum(1) for mark in (1, 2))
        won = np.stack([_lines(board == mark) for mark in (1, 2)])  # [2, 19683]
        goes_on = ~won.any(0) & (first + second < CELLS)
        mover = np.select([goes_on & (first == second), goes_on & (first == second + 1)], [0, 1], NOBODY)
        legal = (board == 0) & (mover != NOBODY)[:, None]
        after = np.where(legal, np.arange(len(board))[:, None] + (mover[:, None] + 1) * POWERS, -1)
        wins = legal & won[np.minimum(mover, 1)[:, None], after]
        full = legal & (first + second == CELLS - 1)[:, None]
        return Game(after, wins.astype(np.float64), (wins | full).astype(np.uint8), legal.astype(np.uint8), mover.astype(np.uint8),
                    start=0, limit=CELLS)

    def render(self, state: int) -> str:
        """The board as text: X for the first player, O for the second, and the numbers 1 to 9 for cells that are empty."""
        cells = [" XO"[digit] if digit else str(i + 1) for i, digit in enumerate(state // POWERS % 3)]
        return "\n---+---+---\n".join(" " + " | ".join(cells[row:row + 3]) for row in (0, 3, 6))


def _boards() -> np.ndarray:
    """int64 [19683, 9]: the digits of every position."""
    return np.arange(3**CELLS)[:, None] // POWERS % 3


def _lines(marked: np.ndarray) -> np.ndarray:
    """bool [S]: whether ``marked`` [S, 9] has three in a row."""
    return np.any(marked[:, np.array(LINES)].all(-1), axis=-1)
