"""Evaluation of a table: episodes on seeds of their own, in the environment's own reward."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.tabular import draws
from shoal.tabular.setup import GAME, HOST, Setup

_EVALUATION = 1  # stream of draws; training has 0
_ENDLESS = 100_000  # steps after which an episode without a limit of its own is cut


def play(setup: Setup, values: np.ndarray, episodes: int, greedy: bool) -> Any:
    """Scores of ``episodes`` episodes with the best actions of ``values`` [rows, A], or exploring as the run does in the end."""
    from shoal.types import Scores

    play_fn = {HOST: _on_host, GAME: _against_chance}.get(setup.mode, _by_model)
    returns, lengths = play_fn(setup, values, episodes, greedy)
    return Scores(returns, lengths, np.full(episodes, np.nan))


def _choose(setup: Setup, values: np.ndarray, rows: np.ndarray, bits: np.ndarray, greedy: bool) -> np.ndarray:
    best = np.argmax(values[rows], axis=1)
    if greedy:
        return best
    open_ = values[rows] > -np.inf
    picked = draws.pick_batch(bits, open_.sum(axis=1))
    some = np.argmax(np.cumsum(open_, axis=1) > picked[:, None], axis=1)
    return np.where(draws.half_batch(bits) < setup.rule.level_end, some, best)


def _keys(setup: Setup, episodes: int) -> np.ndarray:
    return np.array([draws.key(setup.seed, _EVALUATION, episode) for episode in range(episodes)], np.uint64)


def _by_model(setup: Setup, values: np.ndarray, episodes: int, greedy: bool) -> tuple[np.ndarray, np.ndarray]:
    """All episodes side by side."""
    source, keys = setup.source, _keys(setup, episodes)
    u = draws.unit_batch(draws.draw_batch(keys ^ np.uint64(draws.STARTS), np.zeros(episodes, np.int64)))
    place = source.start[(u[:, None] >= source.start_chance[:-1]).sum(axis=1)]
    returns, lengths, here = np.zeros(episodes), np.zeros(episodes, np.int64), np.arange(episodes)
    for t in range(source.limit or _ENDLESS):
        bits = draws.draw_batch(keys[here], np.full(len(here), 2 * t))
        action = _choose(setup, values, source.row[place[here]], bits, greedy)
        u = draws.unit_batch(draws.draw_batch(keys[here], np.full(len(here), 2 * t + 1)))
        chance = source.chance[place[here], action]
        k = (u[:, None] >= chance[:, :-1]).sum(axis=1)
        at = place[here], action, k
        returns[here] += source.reward[at]
        lengths[here] += 1
        over, place[here] = source.over[at] != 0, source.after[at]
        here = here[~over]
        if not len(here):
            break
    return returns, lengths


def _against_chance(setup: Setup, values: np.ndarray, episodes: int, greedy: bool) -> tuple[np.ndarray, np.ndarray]:
    """The table against a player who moves at random, from either side in turn; what the table wins."""
    game, keys = setup.source, _keys(setup, episodes)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    for number in range(episodes):
        state, seat, t = game.start, number % 2, 0
        while True:
            bits = draws.draw_batch(keys[number:number + 1], np.array([t]))
            mine = t % 2 == seat
            legal = np.flatnonzero(game.legal[state])
            action = int(_choose(setup, values, np.array([state]), bits, greedy)[0]) if mine else int(
                legal[draws.pick_batch(bits, np.array([len(legal)]))[0]])
            t += 1
            if game.over[state, action]:
                returns[number], lengths[number] = (1 if mine else -1) * game.reward[state, action], t
                break
            state = int(game.after[state, action])
    return returns, lengths


def _on_host(setup: Setup, values: np.ndarray, episodes: int, greedy: bool) -> tuple[np.ndarray, np.ndarray]:
    """One episode after another on an environment of its own."""
    from shoal import rng

    assert setup.make_fn is not None
    env, keys = setup.make_fn(), _keys(setup, episodes)
    row_of = getattr(setup.rows, "find", setup.rows.index)
    values = np.vstack([values, np.zeros((1, values.shape[1]))])  # row -1: what was never seen
    limit = env.spec.max_episode_steps or _ENDLESS
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    try:
        for number in range(episodes):
            obs = env.reset(rng.host_seed(setup.seed, rng.Stream.EVAL_ENV, number))
            for t in range(limit):
                bits, known = draws.draw_batch(keys[number:number + 1], np.array([t])), values[row_of(obs)]
                if setup.kind.masked:
                    known = np.where(setup.choices.legal(setup.rows.mask(obs)), known, -np.inf)
                action = int(_choose(setup, known[None], np.array([0]), bits, greedy)[0])
                obs, reward, terminated, truncated, _ = env.step(setup.choices.action(action))
                returns[number] += float(reward)
                lengths[number] += 1
                if terminated or truncated:
                    break
    finally:
        env.close()
    return returns, lengths
