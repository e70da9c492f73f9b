"""What a known world is worth, exactly: dynamic programming over models, and backward induction over games.

Bellman (1957) and Howard (1960), as in Sutton and Barto (2018), chapter 4: one sweep backs up every state at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shoal.errors import ConfigError
from shoal.tabular.model import Game, Model, probabilities

MAX_SWEEPS = 200_000
DENSE = 2000  # states up to which a policy's value is the solution of one linear system
EQUAL = 1e-9  # by how much, for numbers of size 1, two actions may differ and count as equally good


class UnsettledError(ConfigError):
    """Values that do not settle, such as those of a process that never ends and is not discounted."""


class Solution(NamedTuple):
    """The optimum in each of W states."""

    value: np.ndarray  # [W] float64
    q: np.ndarray  # [W, A] float64; -inf where an action is not legal
    policy: np.ndarray  # [W] int64
    sweeps: int  # over all states; of policy iteration, policies


class _Parts(NamedTuple):
    """A model as a sweep needs it."""

    reward: np.ndarray  # [W, A]: on average; -inf where an action is not legal
    onward: np.ndarray  # [W, A, K]: probability that an outcome happens and the process goes on
    after: np.ndarray  # [W, A, K]
    ends: np.ndarray  # [W, A]: probability that the process ends


def value_iteration(model: Model, discount: float, tolerance: float = 1e-12) -> Solution:
    """The optimum, by sweeps until no value changes by more than ``tolerance``, times the largest value where that is above 1.

    What is left to gain is less than that divided by 1 - ``discount``.

    Of actions equally good, the policy takes the one that ends soonest. Without discount a state that no episode comes to is worth 0.
    """
    parts, live = _parts(model), _live(model, discount)

    def back_up(value: np.ndarray) -> np.ndarray:
        return np.where(live, _back_up(parts, value, discount).max(1), 0.0)

    value, sweeps = _settle(back_up, len(live), tolerance, f"the optimum at discount = {discount}")
    q = _back_up(parts, value, discount)
    return Solution(value, q, _choose(parts, q), sweeps)


def policy_iteration(model: Model, discount: float) -> Solution:
    """The optimum, by evaluating a policy exactly and improving it until no action is better by more than ``EQUAL``."""
    parts, live = _parts(model), _live(model, discount)
    policy = _choose(parts, np.where(np.isfinite(parts.reward), 0.0, -np.inf))  # one that ends wherever one can
    states = np.arange(len(policy))
    for count in range(1, MAX_SWEEPS + 1):
        value = _evaluate(parts, np.eye(parts.reward.shape[1])[policy], discount, live)
        q = _back_up(parts, value, discount)
        better = live & (q.max(1) > q[states, policy] + EQUAL * np.maximum(1, np.abs(value)))
        if not better.any():
            return Solution(value, q, _choose(parts, q), count)
        policy = np.where(better, q.argmax(1), policy)
    raise UnsettledError(f"policy iteration at discount = {discount} found ever better policies, {MAX_SWEEPS} in all; expected an end")


def policy_evaluation(model: Model, policy: np.ndarray, discount: float) -> np.ndarray:
    """The discounted value [W] of a policy over the rows of the table: actions, int [rows], or their probabilities, [rows, A].

    Of the process itself: the limit is where we stop watching. Without discount a state that the policy never comes to is worth 0.
    """
    chances = _chances(model, policy)
    live = _reached(model, chances > 0) if _checked(discount) == 1 else np.ones(len(chances), bool)
    return _evaluate(_parts(model), chances, discount, live)


def episode_value(model: Model, policy: np.ndarray) -> float:
    """The expected undiscounted return of an episode within the model's limit, by one sweep for each step that is left.

    ``policy`` as for ``policy_evaluation``. Without a limit the value of the process, which has to settle.
    """
    if not model.limit:
        return start_value(model, policy_evaluation(model, policy, 1.0))
    parts, chances = _parts(model), _chances(model, policy)
    value = np.zeros(len(chances))
    for _ in range(model.limit):
        before, value = value, _expect(parts, chances, value)
        if np.array_equal(before, value):  # and so it stays
            break
    return start_value(model, value)


def start_value(model: Model, value: np.ndarray) -> float:
    """The mean of ``value`` [W] over the states that episodes start in."""
    return float(np.diff(model.start_chance, prepend=0.0) @ value[model.start])


def policy_of_rows(model: Model, solution: Solution) -> np.ndarray:
    """int64 [rows]: the best action for each row of the table.

    A row that one state shows has that state's action. Where states share a row it is the action that is best for them on the mean,
    each of those that episodes act in counted once: the optimum where they agree. A row that nothing shows has the first legal one.
    """
    acted = reached(model)
    policy = np.zeros(model.num_rows, np.int64) if model.legal is None else model.legal.argmax(1)
    policy[model.row] = solution.policy
    policy[model.row[acted]] = solution.policy[acted]
    total = np.zeros((model.num_rows, solution.q.shape[1]))
    np.add.at(total, model.row[acted], solution.q[acted])
    shared = np.bincount(model.row[acted], minlength=model.num_rows) > 1
    policy[shared] = total[shared].argmax(1)
    return policy


def reached(model: Model) -> np.ndarray:
    """bool [W]: the states in which some episode may act."""
    return _reached(model, _legal(model))


# --- games -----------------------------------------------------------------------------------------------------------


def minimax(game: Game) -> Solution:
    """What each state, of S, is worth to whoever moves in it when both play perfectly.

    A state in which nobody moves is worth 0, its q all -inf and its action 0.
    """
    legal, value = game.legal > 0, np.zeros(len(game.after))
    for sweeps in range(game.limit + 1):
        q = np.where(legal, game.reward - np.where(game.over > 0, 0.0, value[game.after]), -np.inf)
        before, value = value, np.where(legal.any(1), q.max(1), 0.0)
        if np.array_equal(before, value):
            return Solution(value, q, q.argmax(1), sweeps)
    raise UnsettledError(f"game: goes on after limit = {game.limit} moves; expected every game to be over by then")


def exploit(game: Game, policy: np.ndarray, seat: int) -> tuple[int, int, int]:
    """Wins, draws and losses of ``policy``, int [S], in ``seat`` 0 or 1, over every line of moves that the other may answer with.

    A policy with no losses cannot be beaten.
    """
    if seat not in (0, 1):
        raise ConfigError(f"seat = {seat!r}: expected 0 or 1")
    lines = np.zeros(len(game.after), np.int64)  # [S]: ways in which play has come to each state
    lines[game.start] = 1
    results = {1: 0, 0: 0, -1: 0}
    for _ in range(game.limit):
        states = np.flatnonzero(lines)
        moves = game.legal[states] > 0
        ours = game.mover[states] == seat
        chosen = policy[states]
        wrong = ours & ~moves[np.arange(len(states)), chosen]
        if wrong.any():
            raise ConfigError(f"policy: plays {chosen[wrong][0]} in state {states[wrong][0]}, which is not legal there")
        moves[ours] &= np.eye(moves.shape[1], dtype=bool)[chosen[ours]]
        place, move = np.nonzero(moves)
        state = states[place]
        over, gain = game.over[state, move] > 0, np.sign(game.reward[state, move]) * np.where(ours[place], 1, -1)
        for result in results:
            results[result] += int(lines[state][over & (gain == result)].sum())
        after, ways = game.after[state, move][~over], lines[state][~over]
        lines = np.zeros_like(lines)
        np.add.at(lines, after, ways)
    if lines.any():
        raise UnsettledError(f"game: goes on after limit = {game.limit} moves; expected every game to be over by then")
    return results[1], results[0], results[-1]


# --- sweeps ----------------------------------------------------------------------------------------------------------


def _parts(model: Model) -> _Parts:
    likely = probabilities(model)
    over = model.over > 0
    reward = np.where(_legal(model), (likely * model.reward).sum(-1), -np.inf)
    return _Parts(reward, np.where(over, 0.0, likely), model.after, np.where(over, likely, 0.0).sum(-1))


def _back_up(parts: _Parts, value: np.ndarray, discount: float) -> np.ndarray:
    """q [W, A] of ``value`` [W], one step ahead."""
    return parts.reward + discount * np.einsum("wak,wak->wa", parts.onward, value[parts.after])


def _expect(parts: _Parts, chances: np.ndarray, value: np.ndarray, discount: float = 1.0) -> np.ndarray:
    """The mean [W] over actions taken with ``chances`` [W, A]."""
    q = _back_up(parts, value, discount)
    return (chances * np.where(chances > 0, q, 0.0)).sum(1)


def _evaluate(parts: _Parts, chances: np.ndarray, discount: float, live: np.ndarray) -> np.ndarray:
    """[W]: one linear system where there are few states and it is sure to have a solution, else sweeps."""
    num_states = len(live)
    if num_states <= DENSE and (discount < 1 or _ending(parts, chances > 0)[live].all()):
        moves = np.zeros((num_states, num_states))
        np.add.at(moves, (np.arange(num_states)[:, None, None], parts.after), (live[:, None] * chances)[..., None] * parts.onward)
        reward = np.where(live, _expect(parts, chances, np.zeros(num_states)), 0.0)
        return np.linalg.solve(np.eye(num_states) - discount * moves, reward)
    what = f"the value of a policy at discount = {discount}"
    return _settle(lambda value: np.where(live, _expect(parts, chances, value, discount), 0.0), num_states, 1e-12, what)[0]


def _settle(sweep_fn: Callable[[np.ndarray], np.ndarray], num_states: int, tolerance: float, what: str) -> tuple[np.ndarray, int]:
    """Where repeated sweeps lead, and after how many."""
    value = np.zeros(num_states)
    for count in range(1, MAX_SWEEPS + 1):
        before, value = value, sweep_fn(value)
        if np.abs(value - before).max() <= tolerance * max(1.0, np.abs(value).max()):
            return value, count
    raise UnsettledError(f"{what} has not settled after {MAX_SWEEPS} sweeps; expected a process that ends, or a lower discount")


def _choose(parts: _Parts, q: np.ndarray) -> np.ndarray:
    """int64 [W]: of the best actions the first of those after which the end comes soonest on the mean, or the first if it never does.

    Without discount not any of the best will do: where steps cost nothing, waiting for ever looks as good as going.
    """
    good = _best(q)
    ending = _ending(parts, good)
    if (good.sum(1) == 1).all() or not ending.any():
        return good.argmax(1)
    each_step = parts._replace(reward=np.where(good, -1.0, -np.inf))

    def back_up(value: np.ndarray) -> np.ndarray:
        return np.where(ending, _back_up(each_step, value, 1.0).max(1), 0.0)

    try:
        steps, _ = _settle(back_up, len(q), 1e-12, "the time to the end")
    except UnsettledError:  # so far off that the best action by itself is what can be said
        return good.argmax(1)
    return np.where(ending[:, None], _best(_back_up(each_step, steps, 1.0)), good).argmax(1)


def _best(q: np.ndarray) -> np.ndarray:
    """bool [W, A]: the actions that are as good as the best."""
    best = q.max(1, keepdims=True)
    return q >= best - EQUAL * np.maximum(1, np.abs(best))


def _ending(parts: _Parts, taken: np.ndarray) -> np.ndarray:
    """bool [W]: where actions ``taken``, bool [W, A], may come to an end."""
    ending = np.zeros(len(taken), bool)
    while True:
        before, ending = ending, (taken & ((parts.ends > 0) | ((parts.onward > 0) & ending[parts.after]).any(-1))).any(1)
        if np.array_equal(before, ending):
            return ending


def _legal(model: Model) -> np.ndarray:
    """bool [W, A]"""
    return np.ones(model.after.shape[:2], bool) if model.legal is None else model.legal[model.row] > 0


def _live(model: Model, discount: float) -> np.ndarray:
    """bool [W]: states whose value is asked for; without discount only where episodes come, as elsewhere there need not be one."""
    return reached(model) if _checked(discount) == 1 else np.ones(len(model.after), bool)


def _reached(model: Model, taken: np.ndarray) -> np.ndarray:
    """bool [W]: states that some start leads to by actions ``taken``, bool [W, A]."""
    onward = (probabilities(model) > 0) & (model.over == 0) & taken[..., None]
    seen, front = np.zeros(len(taken), bool), np.unique(model.start)
    while front.size:
        seen[front] = True
        around = np.unique(model.after[front][onward[front]])
        front = around[~seen[around]]
    return seen


def _chances(model: Model, policy: np.ndarray) -> np.ndarray:
    """float64 [W, A]: how likely each action is taken; refused where it is not legal or not a policy at all."""
    policy, num_actions = np.asarray(policy), model.after.shape[1]
    if policy.shape == (model.num_rows,) and policy.dtype.kind in "iu" and ((policy >= 0) & (policy < num_actions)).all():
        policy = np.eye(num_actions)[policy]
    fits = policy.shape == (model.num_rows, num_actions) and (policy >= 0).all() and np.allclose(policy.sum(1), 1, rtol=0, atol=1e-9)
    if not fits:
        raise ConfigError(f"policy of shape {policy.shape}: expected whole actions [{model.num_rows}] below {num_actions}, "
                          f"or probabilities [{model.num_rows}, {num_actions}]")
    chances = policy[model.row].astype(np.float64)
    wrong = np.argwhere((chances > 0) & ~_legal(model))
    if len(wrong):
        raise ConfigError(f"policy: takes action {wrong[0][1]} in row {model.row[wrong[0][0]]}, which is not legal there")
    return chances


def _checked(discount: float) -> float:
    if isinstance(discount, bool) or not 0 <= discount <= 1:
        raise ConfigError(f"discount = {discount!r}: expected a number from 0 to 1")
    return discount
