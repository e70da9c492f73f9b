"""The transitions of worlds that do not tell them: Blackjack's, from its rules as Gymnasium plays them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

STICK, HIT = 0, 1
NUM_SUMS, NUM_SHOWN, NUM_ACES = 32, 11, 2  # the observation: the player's sum, the dealer's card, whether an ace counts 11
NUM_ROWS = NUM_SUMS * NUM_SHOWN * NUM_ACES
CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}  # an ace is 1; every draw is from a whole deck

Hand = tuple[int, int]  # the sum, and whether an ace in it counts 11


def is_blackjack(env: Any) -> bool:
    """Whether this is Gymnasium's Blackjack itself; a class derived from it may play by other rules."""
    from gymnasium.envs.toy_text.blackjack import BlackjackEnv

    return type(env) is BlackjackEnv


def blackjack(natural: bool, sab: bool) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Transitions, probabilities to start in each state [W], and the row of each state [W].

    A state is what is shown; where a natural, an ace and a ten dealt at the start, pays or wins by itself (``natural``, ``sab``),
    the ten states behind the last row are those of a natural, one for each card of the dealer: they show 21 like any other.
    """
    hidden = natural or sab
    row = np.arange(NUM_ROWS + (NUM_SHOWN - 1 if hidden else 0))
    row[NUM_ROWS:] = [_row((21, 1), shown) for shown in CARDS][: len(row) - NUM_ROWS]
    P: list[Any] = [[[(1.0, state, 0.0, True)]] * 2 for state in range(len(row))]  # of hands that nobody can hold
    start = np.zeros(len(row))
    for shown, probability in CARDS.items():
        for hand in [(total, 0) for total in range(4, 22)] + [(total, 1) for total in range(12, 22)]:
            state = _row(hand, shown)
            P[state] = [_stick(state, hand[0], shown), _hit(hand, shown)]
        if hidden:
            state = NUM_ROWS + shown - 1
            P[state] = [_stick_natural(state, shown, sab), _hit((21, 1), shown)]
        for first, second in np.ndindex(10, 10):
            hand = _add(_add((0, 0), first + 1), second + 1)
            state = NUM_ROWS + shown - 1 if hidden and hand[0] == 21 else _row(hand, shown)
            start[state] += probability * CARDS[first + 1] * CARDS[second + 1]
    return P, start, row


def _row(hand: Hand, shown: int) -> int:
    return int(np.ravel_multi_index((hand[0], shown, hand[1]), (NUM_SUMS, NUM_SHOWN, NUM_ACES)))


def _add(hand: Hand, card: int) -> Hand:
    total, ace = hand[0] + card, hand[1]
    if card == 1 and not ace and total + 10 <= 21:
        return total + 10, 1
    return (total - 10, 0) if ace and total > 21 else (total, ace)


def _hit(hand: Hand, shown: int) -> list[tuple[float, int, float, bool]]:
    after = [(probability, _add(hand, card)) for card, probability in CARDS.items()]
    return [(probability, _row(held, shown), -1.0 if held[0] > 21 else 0.0, held[0] > 21) for probability, held in after]


def _stick(state: int, total: int, shown: int) -> list[tuple[float, int, float, bool]]:
    scores = _dealer_scores(_add((0, 0), shown))
    ways = ((scores[:total].sum(), 1.0), (scores[total], 0.0), (scores[total + 1 :].sum(), -1.0))
    return [(float(probability), state, reward, True) for probability, reward in ways]


def _stick_natural(state: int, shown: int, sab: bool) -> list[tuple[float, int, float, bool]]:
    """By Sutton and Barto a natural beats everything but a natural; else it draws with every 21, and wins half as much again."""
    equal = {1: CARDS[10], 10: CARDS[1]}.get(shown, 0.0) if sab else float(_dealer_scores(_add((0, 0), shown))[21])
    return [(1 - equal, state, 1.0 if sab else 1.5, True), (equal, state, 0.0, True)]


@functools.cache
def _dealer_scores(hand: Hand) -> np.ndarray:
    """float64 [22]: how likely the dealer, who draws up to 17, ends with each score; 0 is too much."""
    if hand[0] >= 17:
        return np.eye(22)[hand[0] if hand[0] <= 21 else 0]
    return np.sum([probability * _dealer_scores(_add(hand, card)) for card, probability in CARDS.items()], 0)
