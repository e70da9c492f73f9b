"""Noughts and crosses: every position against the rules played out move by move on a plain list."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from shoal.envs.build import _construct
from shoal.envs.tictactoe import NOBODY, TicTacToe
from shoal.errors import ConfigError
from shoal.specs import Discrete

GAME = TicTacToe().game()
SQUARE = (2, 7, 6, 9, 5, 1, 4, 3, 8)  # magic: three different cells are in a row exactly where they sum to 15


def code(board: tuple[int, ...]) -> int:
    return int("".join(map(str, reversed(board))), 3)


def has_line(board: tuple[int, ...], mark: int) -> bool:
    own = [SQUARE[i] for i in range(9) if board[i] == mark]
    return any(a + b + c == 15 for i, a in enumerate(own) for j, b in enumerate(own[:i]) for c in own[:j])


@cache
def rules() -> tuple[dict[int, int], dict[int, dict[int, tuple[int, float, bool]]], list[int]]:
    """Who moves in every position that a game comes to, what every move there does, and how many games are [drawn, first, second]'s."""
    movers: dict[int, int] = {}
    moves: dict[int, dict[int, tuple[int, float, bool]]] = {}

    @cache
    def visit(board: tuple[int, ...]) -> tuple[int, int, int]:
        here, mark = code(board), 1 + (9 - board.count(0)) % 2
        if has_line(board, 3 - mark):
            movers[here] = NOBODY
            return (0, int(mark == 2), int(mark == 1))
        if 0 not in board:
            movers[here] = NOBODY
            return (1, 0, 0)
        movers[here], moves[here], counts = mark - 1, {}, np.zeros(3, int)
        for cell in range(9):
            if board[cell] == 0:
                after = (*board[:cell], mark, *board[cell + 1:])
                wins = has_line(after, mark)
                moves[here][cell] = (code(after), float(wins), wins or 0 not in after)
                counts += visit(after)
        return tuple(counts)

    return movers, moves, list(visit((0,) * 9))


def test_every_position_and_move_is_that_of_the_rules():
    movers, moves, _ = rules()
    assert len(movers) == 5478
    expected = np.full(3**9, NOBODY)
    expected[list(movers)] = list(movers.values())
    np.testing.assert_array_equal(GAME.mover, expected)
    for state, row in moves.items():
        assert {int(a) for a in np.flatnonzero(GAME.legal[state])} == set(row)
        for action, (after, reward, over) in row.items():
            assert (GAME.after[state, action], GAME.reward[state, action], GAME.over[state, action]) == (after, reward, over)


def test_nothing_happens_where_it_is_nobodys_turn_or_the_cell_is_taken():
    shut = GAME.legal == 0
    assert shut[GAME.mover == NOBODY].all()
    assert (GAME.after[shut] == -1).all() and not GAME.reward[shut].any() and not GAME.over[shut].any()
    assert (GAME.after[~shut] > 0).all() and GAME.legal[GAME.start].all() and GAME.mover[GAME.start] == 0 and GAME.limit == 9


def test_the_table_plays_every_game():
    """255,168 games in all: 131,184 are won by the first player, 77,904 by the second, and 46,080 drawn."""

    @cache
    def played(state: int) -> tuple[int, int, int]:
        counts = np.zeros(3, int)
        for action in np.flatnonzero(GAME.legal[state]):
            if GAME.over[state, action]:
                counts[int(GAME.mover[state]) + 1 if GAME.reward[state, action] else 0] += 1
            else:
                counts += played(int(GAME.after[state, action]))
        return tuple(counts)

    counts = list(played(GAME.start))
    assert counts == rules()[2] == [46_080, 131_184, 77_904] and sum(counts) == 255_168


def test_who_wins_is_the_mover_and_the_other_has_no_line():
    for state, action in np.argwhere(GAME.reward == 1):
        after = tuple(int(d) for d in np.base_repr(GAME.after[state, action], 3).zfill(9)[::-1])
        mark = int(GAME.mover[state]) + 1
        assert has_line(after, mark) and not has_line(after, 3 - mark)
    assert set(np.unique(GAME.reward)) == {0.0, 1.0}


def test_what_the_winner_wins_the_loser_loses():
    @cache
    def value(state: int) -> float:
        """For whoever moves, with best play of both; what the other wins then is lost."""
        moves = np.flatnonzero(GAME.legal[state])
        return max(GAME.reward[state, a] - (0.0 if GAME.over[state, a] else value(int(GAME.after[state, a]))) for a in moves)

    assert value(GAME.start) == 0
    assert value(code((1, 1, 0, 2, 2, 0, 0, 0, 0))) == 1  # the first player closes the upper row
    fork = code((1, 0, 1, 0, 2, 0, 1, 0, 2))  # two threats of the first, and the second can stop only one
    assert GAME.mover[fork] == 1 and value(fork) == -1
    assert value(code((0, 1, 0, 0, 0, 0, 0, 0, 0))) == 0
    assert value(code((1, 2, 0, 0, 0, 0, 0, 0, 0))) == 1  # an edge answers a corner wrongly


def test_types_are_those_that_compiled_code_reads():
    dtypes = [field.dtype for field in (GAME.after, GAME.reward, GAME.over, GAME.legal, GAME.mover)]
    assert dtypes == [np.int64, np.float64, np.uint8, np.uint8, np.uint8]
    assert all(field.flags.c_contiguous for field in (GAME.after, GAME.reward, GAME.over, GAME.legal, GAME.mover))


def test_it_can_be_made_but_not_played_alone():
    env = _construct("tictactoe", TicTacToe, {})
    assert env.spec.obs == Discrete(19_683) and env.spec.action == Discrete(9)
    for call in (lambda: env.reset(None), lambda: env.step(0, 0, None)):
        with pytest.raises(ConfigError, match="played by two in turn, which tables can learn .* ppo and other deep algorithms cannot yet$"):
            call()


def test_the_board_in_words():
    assert TicTacToe().render(code((1, 0, 2, 0, 1, 0, 0, 0, 2))) == " X | 2 | O\n---+---+---\n 4 | X | 6\n---+---+---\n 7 | 8 | O"
