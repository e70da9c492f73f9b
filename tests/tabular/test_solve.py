"""Exact solutions: by hand, by two methods, by chance, and as published."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.envs.chain import Chain
from shoal.envs.gridworld import GridWorld
from shoal.envs.tictactoe import TicTacToe
from shoal.errors import ConfigError, MissingError
from shoal.tabular import command, gap, solve
from shoal.tabular.model import Game, Model, from_transitions, of
from shoal.tabular.solve import (UnsettledError, episode_value, exploit, minimax, policy_evaluation, policy_iteration, policy_of_rows,
                                 start_value, value_iteration)

# in state 0, wait for 1, or leave for 2 and state 1; in state 1, wait for nothing, or end with 3 half of the time
TWO = from_transitions({0: {0: [(1.0, 0, 1, False)], 1: [(1.0, 1, 2, False)]},
                        1: {0: [(1.0, 1, 0, False)], 1: [(0.5, 1, 0, False), (0.5, 1, 3, True)]}}, [0.75, 0.25], limit=3)
ENDLESS = from_transitions([[[(1.0, 0, 1.0, False)]]], [1.0], limit=0)
# 0 → 1 or, for 5 once, straight to the end; a walled-in state 2 that pays for ever and that nobody comes to
WALLED = from_transitions([[[(1.0, 1, 0, False)], [(1.0, 0, 5, True)]], [[(1.0, 1, 8, True)], [(1.0, 1, 0, False)]],
                           [[(1.0, 2, 1, False)]] * 2], [1.0, 0.0, 0.0], limit=0)


def solved(name: str, options: dict, discount: float) -> tuple[Model, solve.Solution, np.ndarray]:
    model = of(name, options)
    solution = value_iteration(model, discount)
    return model, solution, policy_of_rows(model, solution)


# by hand -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solve_fn", [value_iteration, policy_iteration])
def test_two_states_by_hand(solve_fn):
    """At 0.5, V(1) = 1.5 + 0.25 V(1) = 2; V(0) = max(1 + 0.5 V(0), 2 + 0.5 · 2) = 3."""
    solution = solve_fn(TWO, 0.5)
    assert solution.value == pytest.approx([3, 2]) and solution.policy.tolist() == [1, 1]
    assert solution.q == pytest.approx(np.array([[2.5, 3], [1, 2]]))
    assert start_value(TWO, solution.value) == pytest.approx(2.75)


def test_two_states_far_sighted():
    """At 0.9 waiting is worth 10, leaving 2 + 0.9 · 1.5 / 0.55."""
    solution = value_iteration(TWO, 0.9)
    assert solution.value == pytest.approx([10, 1.5 / 0.55], abs=1e-9) and solution.policy.tolist() == [0, 1]


def test_policies_by_hand():
    assert policy_evaluation(TWO, np.array([1, 0]), 0.5) == pytest.approx([2, 0])
    half = np.full((2, 2), 0.5)  # V(1) = 0.75 + 0.5 · 0.75 V(1); V(0) = 1.5 + 0.25 V(0) + 0.25 V(1)
    assert policy_evaluation(TWO, half, 0.5) == pytest.approx([(1.5 + 0.25 * 1.2) / 0.75, 1.2])
    assert policy_evaluation(TWO, np.array([1, 1]), 1.0) == pytest.approx([5, 3])  # in the end it ends


def test_episodes_are_cut_at_the_limit():
    assert episode_value(TWO, np.array([0, 0])) == pytest.approx(0.75 * 3)
    assert episode_value(TWO, np.array([1, 1])) == pytest.approx(0.75 * (2 + 3 * 0.75) + 0.25 * 3 * 0.875)
    assert episode_value(TWO._replace(limit=0), np.array([1, 1])) == pytest.approx(0.75 * 5 + 0.25 * 3)


def test_how_far_a_policy_is_from_the_best_by_hand():
    found = gap.gap(TWO, np.array([1, 0]), 0.5)
    assert found["value"] == pytest.approx(0.75 * 2) and found["optimum"] == pytest.approx(0.75 * 3 + 0.25 * 2)
    assert found["gap"] == pytest.approx(1.25) and found["relative"] == pytest.approx(1.25 / 2.75) and found["discount"] == 0.5
    assert gap.lines(found) == ["exact value 1.5, optimum 2.75: 1.25 away (45.5 %), at discount 0.5"]


def test_nothing_is_better_than_the_best():
    """Optimum and value come from different sweeps, which differ by a rounding."""
    lake, _, policy = solved("FrozenLake-v1", {}, 0.99)
    assert 0.0 <= gap.gap(lake, policy, 0.99)["relative"] < 1e-9


def test_what_is_not_legal_is_not_chosen():
    model = TWO._replace(legal=np.array([[1, 0], [0, 1]], np.uint8))
    for solution in (value_iteration(model, 0.5), policy_iteration(model, 0.5)):
        assert solution.policy.tolist() == [0, 1] and solution.value == pytest.approx([2, 2])
        assert solution.q[0, 1] == solution.q[1, 0] == -np.inf
    with pytest.raises(ConfigError, match="policy: takes action 1 in row 0, which is not legal there"):
        policy_evaluation(model, np.array([1, 1]), 0.5)


@pytest.mark.parametrize("solve_fn", [value_iteration, policy_iteration])
def test_states_that_nobody_comes_to_do_not_matter(solve_fn):
    solution = solve_fn(WALLED, 1.0)
    assert solution.value.tolist() == [8, 8, 0] and solution.policy[:2].tolist() == [0, 0]
    assert value_iteration(WALLED, 0.5).value == pytest.approx([5, 8, 2])
    assert policy_evaluation(WALLED, np.array([1, 1, 0]), 1.0).tolist() == [5, 0, 0]  # nor those that this policy does not come to


def test_of_equals_the_one_that_ends_soonest():
    """On ice that is not slippery every cell is worth 1, and walking into the wall looks as good as going."""
    model, solution, policy = solved("FrozenLake-v1", {"is_slippery": False}, 1.0)
    assert episode_value(model, policy) == 1.0 and episode_value(model, solution.q.argmax(1)) == 0.0
    assert episode_value(model._replace(limit=6), policy) == 1.0 and episode_value(model._replace(limit=5), policy) == 0.0


def test_states_that_share_a_row():
    """Two states show row 1: one loses 1 by action 0, the other wins 3 by it; by action 1 both win 0.5."""
    ends = lambda reward: [(1.0, 0, reward, True)]
    P = [[[(0.5, 1, 0, False), (0.5, 2, 0, False)]] * 2, [ends(-1), ends(0.5)], [ends(3), ends(0.5)], [ends(0)] * 2]
    model = from_transitions(P, [1, 0, 0, 0], limit=0)._replace(row=np.array([0, 1, 1, 3]), num_rows=4)
    solution = value_iteration(model, 1.0)
    assert solution.value.tolist() == [1.75, 0.5, 3, 0] and solution.policy[1:3].tolist() == [1, 0]
    assert policy_of_rows(model, solution).tolist() == [0, 0, 0, 0]
    assert episode_value(model, policy_of_rows(model, solution)) == 1.0


# refusals ------------------------------------------------------------------------------------------------------------


def test_what_does_not_settle_is_refused(monkeypatch):
    monkeypatch.setattr(solve, "MAX_SWEEPS", 500)
    with pytest.raises(UnsettledError, match="the optimum at discount = 1 has not settled after 500 sweeps; expected a process that ends"):
        value_iteration(ENDLESS, 1)
    for attempt in (lambda: policy_iteration(ENDLESS, 1.0), lambda: policy_evaluation(ENDLESS, np.array([0]), 1.0),
                    lambda: episode_value(ENDLESS, np.array([0]))):
        with pytest.raises(UnsettledError, match="the value of a policy at discount = 1.0 has not settled"):
            attempt()
    assert value_iteration(ENDLESS, 0.5).value == pytest.approx([2]) and episode_value(ENDLESS._replace(limit=7), np.array([0])) == 7


@pytest.mark.parametrize("discount", [-0.1, 1.1, float("nan"), True])
def test_a_discount_lies_between_0_and_1(discount):
    for attempt in (lambda: value_iteration(TWO, discount), lambda: policy_iteration(TWO, discount),
                    lambda: policy_evaluation(TWO, np.array([0, 0]), discount)):
        with pytest.raises(ConfigError, match="discount = .*: expected a number from 0 to 1"):
            attempt()


@pytest.mark.parametrize("policy", [[0], [0, 2], [-1, 0], [0.5, 0.5], [[0.5, 0.4], [1, 0]], [[1.5, -0.5], [1, 0]]])
def test_what_is_no_policy_is_refused(policy):
    with pytest.raises(ConfigError, match=r"policy of shape .*: expected whole actions \[2\] below 2, or probabilities \[2, 2\]"):
        policy_evaluation(TWO, np.array(policy), 0.5)


# by two methods, and by chance ---------------------------------------------------------------------------------------


def drawn(num_states: int, num_actions: int, seed: int) -> Model:
    """At random; every action may end the process, so that there is an optimum without discount."""
    draw = np.random.default_rng(seed)
    P = [[[(p, draw.integers(num_states), draw.normal(), k == 0) for k, p in enumerate(draw.dirichlet(np.ones(3)))]
          for _ in range(num_actions)] for _ in range(num_states)]
    return from_transitions(P, draw.dirichlet(np.ones(num_states)), limit=40)


@pytest.mark.parametrize("discount", [0.0, 0.7, 0.97, 1.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_policy_iteration_finds_what_value_iteration_finds(discount, seed):
    model = drawn(30, 4, seed)
    one, other = value_iteration(model, discount), policy_iteration(model, discount)
    assert one.value == pytest.approx(other.value, abs=1e-9) and (one.policy == other.policy).all() and other.sweeps < one.sweeps + 2
    assert policy_evaluation(model, one.policy, discount) == pytest.approx(one.value, abs=1e-9)


def test_sweeps_and_the_linear_system_agree(monkeypatch):
    model, policy = drawn(40, 3, seed=3), np.full((40, 3), 1 / 3)
    exact = np.stack([policy_evaluation(model, policy, discount) for discount in (0.9, 1.0)])
    monkeypatch.setattr(solve, "DENSE", 0)
    assert np.stack([policy_evaluation(model, policy, discount) for discount in (0.9, 1.0)]) == pytest.approx(exact, abs=1e-9)


def test_a_policy_is_worth_what_playing_it_pays():
    model, policy, draw = drawn(12, 2, seed=4), np.full((12, 2), 0.5), np.random.default_rng(5)
    num, returns, discounted = 20_000, np.zeros(20_000), np.zeros(20_000)
    state, going = model.start[np.searchsorted(model.start_chance, draw.random(num), "right")], np.ones(num, bool)
    for t in range(model.limit):
        pair = state, draw.integers(2, size=num)
        outcome = (model.chance[pair] <= draw.random(num)[:, None]).sum(1)
        reward = np.where(going, model.reward[*pair, outcome], 0.0)
        returns, discounted = returns + reward, discounted + 0.8**t * reward
        going, state = going & (model.over[*pair, outcome] == 0), model.after[*pair, outcome]
    for paid, value in ((returns, episode_value(model, policy)), (discounted, start_value(model, policy_evaluation(model, policy, 0.8)))):
        assert abs(paid.mean() - value) < 5 * paid.std() / np.sqrt(num)


def test_chain_and_gridworld_agree_with_what_they_say_of_themselves():
    chain, grid = Chain(), GridWorld(width=4, height=3, obstacles=((1, 1),), slip=0.2, goal=(3, 0))
    model = of("chain", {})
    assert policy_evaluation(model, np.ones(5, int), 0.95) == pytest.approx(chain.values(np.ones(5), 0.95))
    assert episode_value(model, value_iteration(model, 0.99).policy) == pytest.approx(chain.optimum)
    model, solution, policy = solved("gridworld", {"width": 4, "height": 3, "obstacles": [[1, 1]], "slip": 0.2, "goal": [3, 0]}, 1.0)
    assert episode_value(model, policy) == pytest.approx(grid.optimum, abs=1e-9)
    assert start_value(model, solution.value) == pytest.approx(grid.optimum, abs=1e-6)  # the limit is far off


# as published --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value", "within"), [("FrozenLake-v1", 0.54203, 0.7402), ("FrozenLake8x8-v1", 0.41464, 0.8630)])
def test_frozen_lake(name, value, within):
    model, solution, policy = solved(name, {}, 0.99)
    assert solution.value[0] == pytest.approx(value, abs=1e-5) and episode_value(model, policy) == pytest.approx(within, abs=1e-4)


def test_cliff_walking():
    model, solution, policy = solved("CliffWalking-v1", {}, 1.0)
    assert start_value(model, solution.value) == -13 and episode_value(model, policy) == -13


def test_taxi():
    model, solution, policy = solved("Taxi-v4", {}, 1.0)
    assert start_value(model, solution.value) == pytest.approx(7.93, abs=1e-2)
    assert episode_value(model, policy) == pytest.approx(7.93, abs=1e-2)
    masked, _, policy = solved("Taxi-v4", {"info_mask": True}, 1.0)
    assert episode_value(masked, policy) == pytest.approx(7.93, abs=1e-2) and masked.legal[np.arange(500), policy].all()


@pytest.mark.parametrize(("options", "value", "digits"), [
    ({"sab": False}, -0.04656, 5), ({"sab": True}, -0.0431, 4), ({}, -0.0431, 4),  # Gymnasium registers it with sab
    ({"sab": False, "natural": True}, -0.0257, 4),
])
def test_blackjack(options, value, digits):
    model, solution, policy = solved("Blackjack-v1", options, 1.0)
    assert round(start_value(model, solution.value), digits) == value and round(episode_value(model, policy), digits) == value
    sticks = policy.reshape(32, 11, 2) == 0
    hard = [min(total for total in range(12, 22) if sticks[total, shown, 0]) for shown in range(1, 11)]
    assert hard == [17, 13, 13, 12, 12, 12, 17, 17, 17, 17]  # Sutton and Barto (2018), figure 5.2
    assert [min(total for total in range(12, 22) if sticks[total, shown, 1]) for shown in range(1, 11)] == [19, *[18] * 7, 19, 19]


# games ---------------------------------------------------------------------------------------------------------------


def nim() -> Game:
    """Take one or two of four matches; who takes the last one wins. State: 5 · mover + matches; 3 is lost for whoever moves."""
    states = np.arange(10)
    left = (states % 5)[:, None] - np.array([1, 2])
    legal = left >= 0
    after = np.where(legal, 5 * (1 - states // 5)[:, None] + left, -1)
    return Game(after, (left == 0).astype(float), (left == 0).astype(np.uint8), legal.astype(np.uint8),
                np.where(states % 5, states // 5, 2).astype(np.uint8), start=4, limit=4)


def test_nim_by_hand():
    game = nim()
    solution = minimax(game)
    assert solution.value.tolist() == [0, 1, 1, -1, 1] * 2 and solution.policy[[1, 2, 4]].tolist() == [0, 1, 0]
    assert solution.q[4].tolist() == [1, -1] and solution.q[1].tolist() == [1, -np.inf]
    assert exploit(game, solution.policy, 0) == (2, 0, 0)  # takes 1; whichever way the other answers, the rest
    assert exploit(game, solution.policy, 1) == (2, 0, 1)  # wins by 2, 2 and by 1, 1, 1, 1; of three it takes 1, and 2 beats that
    assert exploit(game, np.zeros(10, int), 0) == (1, 0, 1)  # 1, 1, 1, 1 loses; 1, 2, 1 wins


def test_tic_tac_toe():
    game = TicTacToe().game()
    solution = minimax(game)
    assert solution.value[game.start] == 0 and (solution.q[game.start] == 0).all()
    for seat in (0, 1):
        wins, draws, losses = exploit(game, solution.policy, seat)
        assert losses == 0 and wins > 0 and draws > 0
    first = game.legal.argmax(1)  # the first free cell
    assert all(exploit(game, first, seat)[2] > 0 for seat in (0, 1))
    assert np.isneginf(solution.q[game.legal == 0]).all() and (solution.policy[game.mover == 2] == 0).all()


def test_games_that_are_refused():
    game = nim()
    with pytest.raises(ConfigError, match="policy: plays 1 in state 1, which is not legal there"):
        exploit(game, np.array([0, 1, 0, 0, 0] * 2), 0)
    with pytest.raises(ConfigError, match="seat = 2: expected 0 or 1"):
        exploit(game, np.zeros(10, int), 2)
    for attempt in (lambda: minimax(game._replace(limit=2)), lambda: exploit(game._replace(limit=2), np.zeros(10, int), 0)):
        with pytest.raises(UnsettledError, match="game: goes on after limit = 2 moves"):
            attempt()


# for a reader --------------------------------------------------------------------------------------------------------


def test_solve_prints_arrows_for_grids():
    result = command.run_solve("FrozenLake-v1", {}, 0.99, 0)
    assert {key: result[key] for key in ("env", "states", "actions", "outcomes", "discount", "limit")} == {
        "env": "FrozenLake-v1", "states": 16, "actions": 4, "outcomes": 3, "discount": 0.99, "limit": 100}
    assert result["value"] == pytest.approx(0.54203, abs=1e-5) and result["episode_return"] == pytest.approx(0.7402, abs=1e-4)
    assert len(result["policy"]) == 16 and all(type(action) is int for action in result["policy"])
    shown = command.lines(result)
    assert shown[0] == "FrozenLake-v1: 16 states, 4 actions, up to 3 outcomes of each"
    assert "0.54203" in shown[1] and shown[2] == "its return in an episode within 100 steps: 0.74016"
    assert shown[3:] == ["←↑↑↑", "←·←·", "↑↓←·", "·→↓·"]
    assert command.run_solve("CliffWalking-v1", {}, 1.0)["picture"][2:] == ["→" * 11 + "↓", "↑" + "·" * 11]
    assert command.run_solve("gridworld", {"width": 3, "height": 3, "obstacles": [[1, 1]]}, 1.0)["picture"] == ["↓→↓", "↓·↓", "→→·"]


def test_solve_prints_rows_for_others():
    shown = command.lines(command.run_solve("Blackjack-v1", {}, 1.0))
    assert shown[2] == "its return in an episode without a limit: -0.04311"
    assert shown[3] == "   row  action" and len(shown) == 15 and shown[-1] == "… and 270 rows more"
    assert command.lines(command.run_solve("chain", {}, 0.9))[3:] == ["   row  action", *(f"{row:6}       1" for row in range(5))]


def test_solve_says_when_there_is_no_return(monkeypatch):
    """Rewards for ever, and no limit: discounted there is a value, undiscounted there is none."""
    monkeypatch.setattr(command.models, "of", lambda *_: ENDLESS)
    monkeypatch.setattr(solve, "MAX_SWEEPS", 500)
    result = command.run_solve("blind_cliffwalk", {}, 0.5)
    assert result["value"] == pytest.approx(2) and result["episode_return"] is None
    assert command.lines(result)[0] == "blind_cliffwalk: 1 states, 1 actions, 1 outcome of each"
    assert command.lines(result)[2] == "its return in an episode without a limit: does not settle"


def test_solve_refuses_what_has_no_model():
    with pytest.raises(MissingError, match="env 'CartPole-v1' has no model to solve; these have one: .*gridworld, chain.*FrozenLake-v1"):
        command.run_solve("CartPole-v1", {}, 0.9)
    with pytest.raises(MissingError, match="env 'Taxi-v4' with these options has no model to solve"):
        command.run_solve("Taxi-v4", {"fickle_passenger": True}, 0.9)
