"""The two-agent worlds, by hand-computed numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.matrix_game import MatrixGame
from shoal.envs.rendezvous import Rendezvous

KEY = jax.random.key(0)
STAY, UP, DOWN, LEFT, RIGHT = range(5)


def test_matrix_game_pays_by_the_table_and_shows_last_choices():
    game = MatrixGame(payoff=(((1.0, 2.0), (3.0, 4.0)), ((5.0, 6.0), (7.0, 8.0))))
    state, obs = game.reset(KEY)
    np.testing.assert_array_equal(obs, np.zeros((2, 4)))
    for first, second in ((0, 0), (0, 1), (1, 0), (1, 1)):
        after, step = game.step(state, jnp.array([first, second]), KEY)
        np.testing.assert_array_equal(step.reward, [1 + 2 * first + second, 5 + 2 * first + second])
    _, step = game.step(state, jnp.array([0, 1]), KEY)
    np.testing.assert_array_equal(step.obs, [[0, 1, 1, 0], [1, 0, 0, 1]])  # the other's, then one's own
    assert game.optimum == 10 * 6.0


def test_matrix_game_terminates_after_its_length():
    game = MatrixGame(length=3)
    state, _ = game.reset(KEY)
    ends, total = [], np.zeros(2)
    for _ in range(3):
        state, step = jax.jit(MatrixGame.step)(game, state, jnp.array([0, 0]), KEY)
        ends.append(step.terminated.tolist())
        total += step.reward
        assert not step.truncated.any()
    assert ends == [[False] * 2, [False] * 2, [True] * 2]
    assert total.mean() == game.optimum == 12.0


def test_default_game_favours_the_optimum_from_uniform_play():
    payoff = np.array(MatrixGame().payoff)
    best = np.unravel_index(payoff.mean(0).argmax(), (2, 2))
    assert payoff[0].mean(1).argmax() == best[0] and payoff[1].mean(0).argmax() == best[1]
    assert (payoff.mean(0) == payoff.mean(0).max()).sum() == 1


def place(env: Rendezvous, first: tuple[int, int], second: tuple[int, int], *actions: int):
    return env.step(jnp.array([first, second], jnp.int32), jnp.array(actions), KEY)


def test_rendezvous_moves_meets_and_pays():
    env = Rendezvous()
    after, step = place(env, (1, 1), (3, 3), DOWN, LEFT)
    assert after.tolist() == [[2, 1], [3, 2]]
    np.testing.assert_allclose(step.reward, [-0.02, -0.02])
    assert not step.terminated.any() and not step.truncated.any()
    after, step = place(env, (2, 1), (3, 2), RIGHT, UP)
    assert after.tolist() == [[2, 2], [2, 2]] and step.terminated.tolist() == [True, True]
    np.testing.assert_array_equal(step.reward, [1, 1])


@pytest.mark.parametrize(("action", "cell"), [(STAY, (1, 2)), (UP, (0, 2)), (DOWN, (2, 2)), (LEFT, (1, 1)), (RIGHT, (1, 3))])
def test_rendezvous_directions(action, cell):
    after, _ = place(Rendezvous(), (1, 2), (3, 0), action, STAY)
    assert after.tolist() == [list(cell), [3, 0]]


def test_rendezvous_walls_hold():
    after, _ = place(Rendezvous(), (0, 0), (3, 3), UP, RIGHT)
    assert after.tolist() == [[0, 0], [3, 3]]


@pytest.mark.parametrize("places", [((1, 1), (1, 2), RIGHT, LEFT), ((2, 3), (1, 3), UP, DOWN)])
def test_rendezvous_neighbours_that_would_change_places_meet(places):
    after, step = place(Rendezvous(), *places)
    assert step.terminated.all() and after[0].tolist() == after[1].tolist() == list(places[1])


def test_rendezvous_observation():
    _, step = place(Rendezvous(size=3), (0, 1), (2, 2), STAY, STAY)
    own, other = [1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1]
    np.testing.assert_array_equal(step.obs, [own + other, other + own])


def test_rendezvous_starts_are_all_pairs_of_distinct_cells_equally_often():
    env = Rendezvous(size=2)
    state, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(KEY, 12_000))
    cells = np.asarray(state) @ [2, 1]
    assert (cells[:, 0] != cells[:, 1]).all()
    _, counts = np.unique(cells @ [4, 1], return_counts=True)
    assert len(counts) == 12 and abs(counts - 1000).max() < 150


def test_rendezvous_optimum_by_hand():
    # 2 × 2: of 12 ordered pairs, 8 are neighbours (distance 1) and 4 diagonal (distance 2): always one step.
    assert Rendezvous(size=2).optimum == 1.0
    # 3 × 3: 72 ordered pairs at distances 1: 24, 2: 28, 3: 16, 4: 4; two steps from distance 3 up.
    assert Rendezvous(size=3, step_cost=0.1).optimum == pytest.approx(1 - 0.1 * 20 / 72)


def test_walking_towards_each_other_reaches_the_optimum():
    env = Rendezvous()

    def towards(state):
        gap = state[::-1] - state
        vertical, horizontal = jnp.where(gap[:, 0] < 0, UP, DOWN), jnp.where(gap[:, 1] < 0, LEFT, RIGHT)
        # agent 0 closes the rows first, agent 1 the columns: on a diagonal both doing the same would miss each other
        return jnp.where(jnp.array([gap[0, 0] != 0, gap[1, 1] == 0]), vertical, horizontal)

    def play(key):
        def one(carry, _):
            state, done, total = carry
            after, step = env.step(state, towards(state), key)
            return (after, done | step.terminated[0], total + jnp.where(done, 0.0, step.reward[0])), None
        (_, done, total), _ = jax.lax.scan(one, (env.reset(key)[0], jnp.zeros((), bool), jnp.float32(0)), length=8)
        return done, total

    done, total = jax.jit(jax.vmap(play))(jax.random.split(KEY, 4000))
    assert done.all()
    assert float(total.mean()) == pytest.approx(env.optimum, abs=0.002)
