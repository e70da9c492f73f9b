"""A game in the terminal, without one: what is asked, said and answered."""

from __future__ import annotations

import pytest

from shoal.envs.tictactoe import TicTacToe
from shoal.errors import EnvError
from shoal.tabular.play import Outcome, play

ENV = TicTacToe()
GAME = ENV.game()


def lowest(state: int) -> int:
    """The first cell that is free."""
    return int(GAME.legal[state].argmax())


def played(lines, seat=0, policy_fn=lowest, swap=False):
    """How a game ends in which ``lines`` are typed, all that was said, and how often was asked."""
    said, asked, typed = [], [], iter(lines)

    def ask(prompt):
        asked.append(prompt)
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    return play(GAME, ENV.render, policy_fn, human_seat=seat, ask_fn=ask, say_fn=said.append, swap=swap), said, len(asked)


def test_the_human_wins():
    outcome, said, asked = played(["3", "5", "7"])  # against 1 and 2
    assert outcome is Outcome.WON and asked == 3
    assert said[0] == ENV.render(0) and said[1] == "I take 1." and said[-1] == "You win."
    assert said[-2].splitlines() == [" O | O | X", "---+---+---", " 4 | X | 6", "---+---+---", " X | 8 | 9"]


def test_the_human_loses():
    outcome, said, _ = played(["4", "5", "9"])  # against 1, 2 and 3
    assert outcome is Outcome.LOST and said[-1] == "I win."


def test_the_human_moves_second():
    outcome, said, _ = played(["4", "5", "6"], seat=1)  # the policy has 1, 2 and 3 first
    assert outcome is Outcome.LOST and said[0] == "I take 1." and said[1] == ENV.render(1)
    assert played(["4", "5", "6"], seat=0, swap=True) == played(["4", "5", "6"], seat=1)
    assert played(["2"], seat=1, swap=True)[1][0] == ENV.render(0)


def test_a_draw():
    """X takes 5, 1, 8, 3, 6 and O 4, 9, 2, 7: no three in a row."""
    answers = iter([3, 8, 1, 6])
    outcome, said, asked = played(["5", "1", "8", "3", "6"], policy_fn=lambda state: next(answers))
    assert outcome is Outcome.DRAWN and said[-1] == "A draw." and asked == 5


@pytest.mark.parametrize(("wrong", "text"), [
    ("x", "'x' is not a number: type one of 2, 4, 5, 6, 7, 8, 9, or q to leave."),
    ("", "'' is not a number"), ("4.5", "'4.5' is not a number"), ("z" * 50, "'" + "z" * 20 + "' is not"),
    ("0", "There is no cell 0"), ("10", "There is no cell 10"), ("-4", "There is no cell -4"), ("9" * 5000, "is not a number"),
    ("3", "Cell 3 is taken: type one of 2, 4, 5, 6, 7, 8, 9, or q to leave."), ("1", "Cell 1 is taken"),
])
def test_wrong_input_is_answered_in_one_line_and_asked_again(wrong, text):
    outcome, said, asked = played(["3", wrong, " 5 ", "7"])
    answers = [line for line in said if text in line]
    assert outcome is Outcome.WON and asked == 4 and len(answers) == 1 and "\n" not in answers[0]
    assert len(said) == len(played(["3", "5", "7"])[1]) + 1


@pytest.mark.parametrize("lines", [["q"], ["5", "Q"], ["quit"], [], ["5"]])
def test_leaving(lines):
    outcome, said, _ = played(lines)
    assert outcome is Outcome.LEFT and said[-1] == "You left the game."


@pytest.mark.parametrize("action", [4, 9, -1])
def test_a_policy_that_breaks_the_rules_is_named(action):
    with pytest.raises(EnvError, match=f"the policy answers {action} in state 81"):
        played(["5"], policy_fn=lambda state: action)
