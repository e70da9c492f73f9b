"""Worlds that are known: every state, action and outcome with its probability, as arrays. What tables are learned on without Python,
and what the exact solvers solve."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal import registry
from shoal.errors import ConfigError

_CLOSE = 1e-9  # by which probabilities may miss 1
_TYPES = {"chance": np.float64, "after": np.int64, "reward": np.float64, "over": np.uint8, "start_chance": np.float64,
          "start": np.int64, "row": np.int64, "legal": np.uint8}

Transitions = Mapping[int, Any] | Sequence[Any]  # [state][action]: a list of (probability, after, reward, terminated)


class Model(NamedTuple):
    """A Markov decision process of W states, A actions and up to K outcomes of each pair."""

    chance: np.ndarray  # [W, A, K] float64: cumulative probabilities; from the last outcome on exactly 1
    after: np.ndarray  # [W, A, K] int64: state that an outcome leads to
    reward: np.ndarray  # [W, A, K] float64
    over: np.ndarray  # [W, A, K] uint8: whether the process ends there
    start_chance: np.ndarray  # [M] float64: cumulative, the last exactly 1
    start: np.ndarray  # [M] int64: states that an episode may start in
    row: np.ndarray  # [W] int64: the observation that a state shows, which is a row of the table
    num_rows: int
    legal: np.ndarray | None  # [rows, A] uint8: what may be done where; None: everything
    limit: int  # steps after which an episode is cut; 0: none


class Game(NamedTuple):
    """A game of two who move in turn and win what the other loses; no chance in it. S states, A actions."""

    after: np.ndarray  # [S, A] int64: state after a move; -1 where it is not legal
    reward: np.ndarray  # [S, A] float64: what the mover wins with it: 1, or 0
    over: np.ndarray  # [S, A] uint8: whether it ends the game
    legal: np.ndarray  # [S, A] uint8
    mover: np.ndarray  # [S] uint8: whose turn it is, 0 or 1; 2 where no game comes to or it is over
    start: int
    limit: int  # moves after which no game goes on


def from_transitions(P: Transitions, start_probabilities: Any, *, limit: int, num_actions: int | None = None) -> Model:
    """The model behind Gymnasium's ``P[state][action] = [(probability, after, reward, terminated), ...]``.

    ``start_probabilities`` [W]: how likely an episode starts in each state; every state is a row of its own. Outcomes that are alike
    become one, at the place of the first; what has no probability is left out; what is missing up to K repeats the last outcome.
    """
    start = np.asarray(start_probabilities, np.float64)
    num_states = len(start)
    if len(P) != num_states or not num_states:
        raise ConfigError(f"model: transitions of {len(P)} states and starts of {num_states}: expected as many, and at least 1")
    if num_actions is None:
        num_actions = len(_listed(P, 0))
    pairs = [[_outcomes(P, state, action, num_states) for action in range(num_actions)] for state in range(num_states)]
    most = max((len(pair) for actions in pairs for pair in actions), default=0)
    table = np.array([[pair + [pair[-1]] * (most - len(pair)) for pair in actions] for actions in pairs], np.float64)  # [W, A, K, 4]
    if table.ndim != 4:
        raise ConfigError("model: state 0 has no actions; expected at least 1")
    starts = np.flatnonzero(start)
    model = Model(
        chance=table[..., 0].copy(), after=table[..., 1].astype(np.int64), reward=table[..., 2].copy(),
        over=table[..., 3].astype(np.uint8), start_chance=np.array(_cumulative(start[starts], "start")), start=starts,
        row=np.arange(num_states), num_rows=num_states, legal=None, limit=limit)
    check(model)
    return model


def of(name: str, options: dict[str, Any], max_episode_steps: int = 0) -> Model | None:
    """The model behind an environment's name, with its actions in its own order; None if it has none that is known.

    A registered environment says it itself: its method ``model`` answers a ``Model``, or the two first arguments of
    ``from_transitions``. Gymnasium's toy texts have it in their ``P``; Blackjack's follows from its rules.
    """
    from shoal.envs import build

    build.check_name(name)
    if name in registry.names("env"):
        return _of_registered(*_registered(name, options, max_episode_steps))
    found: list[Any] = []
    while len(found) < 2:
        with contextlib.closing(_gymnasium(name, options, max_episode_steps)) as env:
            found.append(_of_gymnasium(env, bool(options.get("info_mask"))))
        if found[-1] is None:
            return None
    same = all(np.array_equal(one, other) for one, other in zip(*found, strict=True))
    return found[0] if same else None  # a map may be drawn at random when the environment is made: every copy has another


def of_object(env: Any) -> Model | None:
    """The model that an environment object says itself, if it does."""
    return _of_registered(env, env.spec.max_episode_steps)


def world(name: str, options: dict[str, Any]) -> Any:
    """The environment itself behind a name: the registered object, or Gymnasium's without wrappers."""
    if name in registry.names("env"):
        return _registered(name, options, 0)[0]
    with contextlib.closing(_gymnasium(name, options, 0)) as env:
        return env._env.unwrapped


def probabilities(model: Model) -> np.ndarray:
    """float64 [W, A, K]: how likely each outcome is; 0 for those that only fill up."""
    return np.diff(model.chance, prepend=0.0)


def check(model: Model) -> None:
    """Refuse a model that contradicts itself."""
    arrays = {name: getattr(model, name) for name in _TYPES if getattr(model, name) is not None}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != _TYPES[name]:
            kind = getattr(array, "dtype", type(array).__name__)
            raise ConfigError(f"model: {name} is {kind}: expected an array of {np.dtype(_TYPES[name])}")
    shape = model.chance.shape
    if len(shape) != 3 or not min(shape):
        raise ConfigError(f"model: chance has the shape {shape}: expected [states, actions, outcomes], none of them 0")
    sizes = dict.fromkeys(("after", "reward", "over"), shape) | {"row": shape[:1], "legal": (model.num_rows, shape[1])}
    sizes |= {"start": model.start_chance.shape[:1], "start_chance": (max(len(model.start), 1),)}
    for name, size in sizes.items():
        if name in arrays and arrays[name].shape != size:
            raise ConfigError(f"model: {name} has the shape {arrays[name].shape}: expected {size}")
    _check_chances(model)
    _check_all(model, "after", (model.after >= 0) & (model.after < shape[0]), f"a state from 0 to {shape[0] - 1}")
    _check_all(model, "reward", np.isfinite(model.reward), "a finite number")
    _check_all(model, "over", model.over <= 1, "0 or 1")
    _check_all(model, "start", (model.start >= 0) & (model.start < shape[0]), f"a state from 0 to {shape[0] - 1}")
    _check_all(model, "row", (model.row >= 0) & (model.row < model.num_rows), f"a row from 0 to {model.num_rows - 1}")
    if model.legal is not None:
        _check_all(model, "row", model.legal[model.row].any(1), "a row with at least one legal action")
    if model.limit < 0:
        raise ConfigError(f"model: limit = {model.limit}: expected a number of steps, or 0 for none")


def _check_chances(model: Model) -> None:
    for name, chances in (("chance", model.chance), ("start_chance", model.start_chance)):
        rising = np.diff(chances, prepend=0.0) >= 0
        rising[..., -1] &= chances[..., -1] == 1
        _check_all(model, name, rising, "cumulative probabilities, the last exactly 1")


def _check_all(model: Model, name: str, right: np.ndarray, expected: str) -> None:
    """Refuse the first element of a field that is not ``right``, naming the state and action it belongs to."""
    wrong = np.argwhere(~right)
    if len(wrong):
        place = tuple(int(index) for index in wrong[0])
        where = "".join(f", {axis} {index}" for axis, index in zip(("state", "action", "outcome"), place, strict=False))
        where = f", number {place[0]}" if name.startswith("start") else where
        raise ConfigError(f"model: {name}{where} = {getattr(model, name)[place]}: expected {expected}")


# --- from outcomes ---------------------------------------------------------------------------------------------------


def _listed(P: Transitions, state: int) -> Any:
    try:
        return P[state]
    except (KeyError, IndexError):
        raise ConfigError(f"model: state {state} is missing from the transitions") from None


def _outcomes(P: Transitions, state: int, action: int, num_states: int) -> list[tuple[float, int, float, bool]]:
    """What may come of an action: (cumulative probability, after, reward, over), each once."""
    where = f"state {state}, action {action}"
    try:
        given = _listed(P, state)[action]
    except (KeyError, IndexError):
        raise ConfigError(f"model: {where} is missing from the transitions") from None
    merged: dict[tuple[int, float, bool], float] = {}
    for outcome in given:
        try:
            probability, after, reward, over = outcome
            probability, after, reward = float(probability), operator.index(after), float(reward)
        except (TypeError, ValueError):
            raise ConfigError(f"model: {where}: {outcome!r}: expected (probability, after, reward, terminated)") from None
        if not 0 <= after < num_states:
            raise ConfigError(f"model: {where} leads to state {after}: expected one from 0 to {num_states - 1}")
        if not math.isfinite(reward):
            raise ConfigError(f"model: {where} pays {reward}: expected a finite reward")
        if not probability >= 0:
            raise ConfigError(f"model: {where} has an outcome of probability {probability}: expected at least 0")
        merged[after, reward, bool(over)] = merged.get((after, reward, bool(over)), 0.0) + probability
    likely = {outcome: probability for outcome, probability in merged.items() if probability}
    return [(chance, *outcome) for chance, outcome in zip(_cumulative(likely.values(), where), likely, strict=True)]


def _cumulative(probabilities: Any, where: str) -> list[float]:
    """Running sums, the last exactly 1; ``where`` names the place in errors."""
    sums = [0.0, *itertools.accumulate(float(probability) for probability in probabilities)]
    if not abs(sums[-1] - 1) <= _CLOSE or min(np.diff(sums)) < 0:
        raise ConfigError(f"model: {where}: probabilities sum to {sums[-1]}: expected 1, of numbers that are at least 0")
    return [min(chance, 1.0) for chance in sums[1:-1]] + [1.0]


# --- behind names ----------------------------------------------------------------------------------------------------


def _registered(name: str, options: dict[str, Any], max_episode_steps: int) -> tuple[Any, int]:
    """The environment of a registered name without its time limit, and that limit."""
    from shoal.envs import build, maps

    env: Any = build.bare(name, max_episode_steps, **options)
    return env.env if isinstance(env, maps.TimeLimit | maps.HostTimeLimit) else env, env.spec.max_episode_steps


def _of_registered(env: Any, limit: int) -> Model | None:
    if not callable(getattr(env, "model", None)):
        return None
    answer = env.model()
    model = answer._replace(limit=limit) if isinstance(answer, Model) else from_transitions(*answer, limit=limit)
    check(model)
    return model


def _gymnasium(name: str, options: dict[str, Any], max_episode_steps: int) -> Any:
    from shoal.envs.gymnasium import GymEnv

    return GymEnv(name, max_episode_steps, **{option: value for option, value in options.items() if option != "info_mask"})


def _of_gymnasium(env: Any, masked: bool) -> Model | None:
    """From the ``P`` of an environment, where that is all there is to it; ``masked``: only what its action mask allows."""
    from shoal.specs import Discrete
    from shoal.tabular import worlds

    inner, spec = env._env.unwrapped, env.spec
    if env._env is not inner or getattr(inner, "fickle_passenger", False) or (masked and not hasattr(inner, "action_mask")):
        return None  # a wrapper may change anything; a passenger who changes his mind is not in Taxi's P
    if worlds.is_blackjack(inner):
        hands, dealt, row = worlds.blackjack(bool(inner.natural), bool(inner.sab))
        return from_transitions(hands, dealt, limit=spec.max_episode_steps)._replace(row=row, num_rows=worlds.NUM_ROWS)
    P, start = getattr(inner, "P", None), getattr(inner, "initial_state_distrib", None)
    plain = isinstance(spec.obs, Discrete) and isinstance(spec.action, Discrete) and not (env.read_obs or env.write_action)
    if not plain or not isinstance(P, dict | list | tuple) or len(P) != spec.obs.num or start is None:
        return None
    model = from_transitions(P, start, limit=spec.max_episode_steps, num_actions=spec.action.num)
    return model._replace(legal=np.array([inner.action_mask(state) for state in model.row], np.uint8)) if masked else model
