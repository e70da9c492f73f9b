"""A human against a policy, one game in words. Asks and says through functions; whose terminal that is, is not known here."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from shoal.errors import EnvError
from shoal.tabular.model import Game

LEAVE = ("q", "quit")


class Outcome(IntEnum):
    """How a game ended for the human."""

    LOST = -1
    DRAWN = 0
    WON = 1
    LEFT = 2  # before its end


WORDS = {Outcome.LOST: "I win.", Outcome.DRAWN: "A draw.", Outcome.WON: "You win.", Outcome.LEFT: "You left the game."}


def play(game: Game, render_fn: Callable[[int], str], policy_fn: Callable[[int], int], *, human_seat: int,
         ask_fn: Callable[[str], str], say_fn: Callable[[str], None], swap: bool = False) -> int:
    """One game of a human in ``human_seat`` (0 moves first; ``swap`` gives the other seat) against ``policy_fn``; an ``Outcome``.

    ``render_fn`` and ``policy_fn`` take a state; ``ask_fn`` puts a question and answers the line that was typed, or raises
    EOFError at the end of input, which leaves the game as ``q`` does.
    """
    state, seat = game.start, human_seat ^ int(swap)
    while True:
        human = int(game.mover[state]) == seat
        if human:
            say_fn(render_fn(state))
        action = _ask(game, state, ask_fn, say_fn) if human else _reply(game, state, policy_fn, say_fn)
        if action is None:
            return _end(Outcome.LEFT, say_fn)
        won, over = int(game.reward[state, action]), game.over[state, action]
        state = int(game.after[state, action])
        if over:
            say_fn(render_fn(state))
            return _end(Outcome(won if human else -won), say_fn)


def _end(outcome: Outcome, say_fn: Callable[[str], None]) -> Outcome:
    say_fn(WORDS[outcome])
    return outcome


def _ask(game: Game, state: int, ask_fn: Callable[[str], str], say_fn: Callable[[str], None]) -> int | None:
    """The human's move, asked for until there is a legal one; None to leave."""
    num = game.legal.shape[1]
    free = [cell for cell in range(1, num + 1) if game.legal[state, cell - 1]]
    while True:
        try:
            text = ask_fn(f"Your move (1-{num}, q to leave): ").strip()
        except EOFError:
            return None
        if text.lower() in LEAVE:
            return None
        try:
            cell = int(text)
        except ValueError:
            say_fn(f"{text[:20]!r} is not a number: type one of {_listed(free)}, or q to leave.")
            continue
        if cell in free:
            return cell - 1
        wrong = f"Cell {cell} is taken" if 1 <= cell <= num else f"There is no cell {text[:20]}"
        say_fn(f"{wrong}: type one of {_listed(free)}, or q to leave.")


def _reply(game: Game, state: int, policy_fn: Callable[[int], int], say_fn: Callable[[str], None]) -> int:
    action = int(policy_fn(state))
    if not (0 <= action < game.legal.shape[1] and game.legal[state, action]):
        raise EnvError(f"the policy answers {action} in state {state}: expected a move that is legal there")
    say_fn(f"I take {action + 1}.")
    return action


def _listed(cells: list[int]) -> str:
    return ", ".join(map(str, cells))
