"""Models of worlds: what they are made of, what is refused, and that the worlds themselves do nothing else."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.envs.blind_cliffwalk import BlindCliffwalk
from shoal.envs.chain import Chain
from shoal.envs.gridworld import GridWorld
from shoal.errors import ConfigError, MissingError
from shoal.tabular import model as models
from shoal.tabular.model import Model, check, from_transitions, of, probabilities
from shoal.types import pytree

TWO = {0: {0: [(1.0, 1, 2.0, False)], 1: [(0.25, 0, 0.0, False), (0.75, 1, 1.0, True)]},
       1: {0: [(1.0, 1, 0.0, True)], 1: [(0.5, 0, -1.0, False), (0.5, 1, 0.0, False)]}}


def two(**changes):
    return from_transitions(TWO, [0.5, 0.5], limit=9)._replace(**changes)


def altered(model: Model, name: str, place, value):
    array = getattr(model, name).copy()
    array[place] = value
    return model._replace(**{name: array})


# made of outcomes ----------------------------------------------------------------------------------------------------


def test_transitions_become_arrays():
    model = two()
    assert model.chance.tolist() == [[[1, 1], [0.25, 1]], [[1, 1], [0.5, 1]]]
    assert model.after.tolist() == [[[1, 1], [0, 1]], [[1, 1], [0, 1]]]
    assert model.reward.tolist() == [[[2, 2], [0, 1]], [[0, 0], [-1, 0]]]
    assert model.over.tolist() == [[[0, 0], [0, 1]], [[1, 1], [0, 0]]]
    assert model.start.tolist() == [0, 1] and model.start_chance.tolist() == [0.5, 1]
    assert model.row.tolist() == [0, 1] and model.num_rows == 2 and model.legal is None and model.limit == 9
    assert probabilities(model).tolist() == [[[1, 0], [0.25, 0.75]], [[1, 0], [0.5, 0.5]]]


def test_outcomes_alike_become_one_and_those_without_probability_none():
    third = 1 / 3
    P = [[[(third, 0, 0, False), (0.0, 1, 5, False), (third, 1, 0, False), (third, 0, 0, False)]], [[(1.0, 1, 0, True), (0.0, 0, 0, True)]]]
    model = from_transitions(P, [1.0, 0.0], limit=0)
    assert model.after.tolist() == [[[0, 1]], [[1, 1]]] and model.chance[0, 0].tolist() == [2 * third, 1.0]
    assert model.start.tolist() == [0] and model.start_chance.tolist() == [1.0]


def test_an_outcome_that_pays_or_ends_otherwise_stays_apart():
    P = [[[(0.25, 0, 1, False), (0.25, 0, 2, False), (0.25, 0, 1, True), (0.25, 0, 1, False)]]]
    model = from_transitions(P, [1.0], limit=0)
    assert model.reward.tolist() == [[[1, 2, 1]]] and model.over.tolist() == [[[0, 0, 1]]]
    assert model.chance.tolist() == [[[0.5, 0.75, 1.0]]]


def test_the_last_chance_is_exactly_one():
    model = from_transitions([[[(0.1, state, 0, False) for state in range(10)]]] * 10, [0.1] * 10, limit=0)
    assert (model.chance[..., -1] == 1).all() and model.start_chance[-1] == 1 and (model.chance <= 1).all()


@pytest.mark.parametrize(("outcome", "words"), [
    ([(-0.5, 0, 0, False), (1.5, 1, 0, False)], "state 1, action 0 has an outcome of probability -0.5: expected at least 0"),
    ([(float("nan"), 0, 0, False)], "state 1, action 0 has an outcome of probability nan"),
    ([(0.5, 0, 0, False), (0.4, 1, 0, False)], "state 1, action 0: probabilities sum to 0.9: expected 1"),
    ([], "state 1, action 0: probabilities sum to 0.0: expected 1"),
    ([(1.0, 2, 0, False)], "state 1, action 0 leads to state 2: expected one from 0 to 1"),
    ([(1.0, -1, 0, False)], "state 1, action 0 leads to state -1"),
    ([(1.0, 0.5, 0, False)], r"state 1, action 0: \(1.0, 0.5, 0, False\): expected \(probability, after, reward, terminated\)"),
    ([(1.0, 0, 0)], r"state 1, action 0: \(1.0, 0, 0\): expected"),
    ([(1.0, 0, float("inf"), False)], "state 1, action 0 pays inf: expected a finite reward"),
])
def test_outcomes_that_make_no_sense_are_refused(outcome, words):
    with pytest.raises(ConfigError, match=words):
        from_transitions({**TWO, 1: {**TWO[1], 0: outcome}}, [1.0, 0.0], limit=0)


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match="state 1, action 1 is missing"):
        from_transitions({**TWO, 1: {0: TWO[1][0]}}, [1.0, 0.0], limit=0)
    with pytest.raises(ConfigError, match="state 1 is missing"):
        from_transitions({0: TWO[0], 2: TWO[1]}, [1.0, 0.0], limit=0)
    with pytest.raises(ConfigError, match="transitions of 2 states and starts of 3"):
        from_transitions(TWO, [1.0, 0.0, 0.0], limit=0)
    with pytest.raises(ConfigError, match="state 0, action 2 is missing"):
        from_transitions(TWO, [1.0, 0.0], limit=0, num_actions=3)
    with pytest.raises(ConfigError, match="start: probabilities sum to 0.5"):
        from_transitions(TWO, [0.5, 0.0], limit=0)


@pytest.mark.parametrize(("model", "words"), [
    (altered(two(), "chance", (1, 0), [0.5, 0.9]), "chance, state 1, action 0, outcome 1 = 0.9: expected cumulative probabilities"),
    (altered(two(), "chance", (0, 1), [1.5, 1.0]), "chance, state 0, action 1, outcome 1 = 1.0: expected cumulative"),
    (altered(two(), "after", (0, 1, 1), 2), "after, state 0, action 1, outcome 1 = 2: expected a state from 0 to 1"),
    (altered(two(), "reward", (1, 1, 0), np.nan), "reward, state 1, action 1, outcome 0 = nan: expected a finite number"),
    (altered(two(), "over", (0, 0, 0), 2), "over, state 0, action 0, outcome 0 = 2: expected 0 or 1"),
    (altered(two(), "start", 1, 5), "start, number 1 = 5: expected a state from 0 to 1"),
    (altered(two(), "start_chance", 1, 0.9), "start_chance, number 1 = 0.9: expected cumulative"),
    (altered(two(), "row", 1, 2), "row, state 1 = 2: expected a row from 0 to 1"),
    (two(legal=np.array([[1, 0], [0, 0]], np.uint8)), "row, state 1 = 1: expected a row with at least one legal action"),
    (two(legal=np.ones((2, 3), np.uint8)), r"legal has the shape \(2, 3\): expected \(2, 2\)"),
    (two(after=np.zeros((2, 2, 3), np.int64)), r"after has the shape \(2, 2, 3\): expected \(2, 2, 2\)"),
    (two(start=np.zeros(0, np.int64), start_chance=np.zeros(0)), r"start_chance has the shape \(0,\): expected \(1,\)"),
    (two(after=np.zeros((2, 2, 2))), "after is float64: expected an array of int64"),
    (two(limit=-1), "limit = -1: expected a number of steps"),
])
def test_a_model_that_contradicts_itself_is_refused(model, words):
    with pytest.raises(ConfigError, match=words):
        check(model)


# behind names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "shape", "rows", "limit"), [
    ("FrozenLake-v1", {}, (16, 4, 3), 16, 100), ("FrozenLake8x8-v1", {}, (64, 4, 3), 64, 200),
    ("FrozenLake-v1", {"is_slippery": False}, (16, 4, 1), 16, 100), ("CliffWalking-v1", {}, (48, 4, 1), 48, 0),
    ("CliffWalkingSlippery-v1", {}, (48, 4, 3), 48, 0), ("Taxi-v4", {}, (500, 6, 1), 500, 200),
    ("Taxi-v4", {"is_rainy": True}, (500, 6, 3), 500, 200), ("Blackjack-v1", {"sab": False}, (704, 2, 10), 704, 0),
    ("Blackjack-v1", {}, (714, 2, 10), 704, 0), ("gridworld", {}, (25, 4, 1), 25, 100),
    ("gridworld", {"slip": 0.5, "width": 3, "obstacles": [[1, 1]]}, (15, 4, 4), 15, 60), ("chain", {}, (5, 2, 2), 5, 100),
    ("blind_cliffwalk", {"length": 7}, (7, 2, 1), 7, 0),
])
def test_models_behind_names(name, options, shape, rows, limit):
    model = of(name, options)
    check(model)
    assert model.after.shape == shape and model.num_rows == rows and model.limit == limit and model.legal is None
    assert of(name, options, max_episode_steps=7).limit == 7


@pytest.mark.parametrize(("name", "options"), [
    ("CartPole-v1", {}), ("cartpole", {}), ("bandit", {}), ("Taxi-v4", {"fickle_passenger": True}),
    ("FrozenLake-v1", {"map_name": None}),  # a map drawn at random, another in every copy
    ("FrozenLake-v1", {"info_mask": True}),
])
def test_where_there_is_no_model_there_is_none(name, options):
    assert of(name, options) is None


def test_refusals_of_names_and_options():
    with pytest.raises(MissingError, match="unknown env 'Taxy-v4'; did you mean 'Taxi-v4'"):
        of("Taxy-v4", {})
    with pytest.raises(ConfigError, match="has no option 'slipp'; did you mean 'slip'"):
        of("gridworld", {"slipp": 0.1})
    with pytest.raises(ConfigError, match="state 0, action 0 has an outcome of probability -0.25"):
        of("FrozenLake-v1", {"success_rate": 1.5})


def test_taxi_starts_in_300_states_and_its_mask_is_what_is_legal():
    model = of("Taxi-v4", {"info_mask": True})
    assert len(model.start) == 300 and np.allclose(np.diff(model.start_chance, prepend=0), 1 / 300)
    assert model.legal.shape == (500, 6) and model.legal[0].tolist() == [1, 0, 1, 0, 1, 0]  # in the corner, beside the passenger


def test_a_wrapper_hides_the_model():
    def entry(**options):
        return gymnasium.wrappers.TransformReward(gymnasium.make("FrozenLake-v1", **options).unwrapped, lambda reward: 2 * reward)

    gymnasium.register("Doubled-v0", entry_point=entry)
    try:
        assert of("Doubled-v0", {}) is None
    finally:
        gymnasium.registry.pop("Doubled-v0")


def test_an_environment_of_ones_own_answers_a_model():
    @pytree
    class Coin(Chain):
        def model(self):
            return two()

    shoal.register(env={"coin_of_test_models": Coin})
    assert of("coin_of_test_models", {"limit": 3}).limit == 3
    assert all(map(np.array_equal, of("coin_of_test_models", {}, 9), two()))


def test_importing_and_solving_toy_texts_needs_no_jax():
    code = ("import sys; from shoal.tabular import command, model, solve, worlds; command.run_solve('FrozenLake-v1', {}, 0.9); "
            "assert 'jax' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# the worlds do nothing else ------------------------------------------------------------------------------------------


def chance_of(model: Model, state, action, after, reward, over) -> float:
    """How likely a model says that this happens; it has states and rows that are the same."""
    same = (model.after[state, action] == after) & (model.over[state, action] == over) & np.isclose(model.reward[state, action], reward)
    return float(probabilities(model)[state, action][same].sum())


def walk(name: str, options: dict, num_steps: int, seed: int):
    """Steps of Gymnasium's environment under random actions: (obs, action, after, reward, terminated), and the first observations."""
    env = gymnasium.make(name, **options)
    env.action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    steps, starts = [], [obs]
    for _ in range(num_steps):
        action = int(env.action_space.sample())
        after, reward, terminated, truncated, _ = env.step(action)
        steps.append((obs, action, after, reward, terminated))
        obs = after
        if terminated or truncated:
            obs, _ = env.reset()
            starts.append(obs)
    return steps, starts


@pytest.mark.parametrize(("name", "options"), [
    ("FrozenLake-v1", {}), ("FrozenLake8x8-v1", {"success_rate": 0.6, "reward_schedule": (2, -1, -0.1)}),
    ("FrozenLake-v1", {"desc": ["SFHS", "FFGF"]}),
    ("CliffWalking-v1", {}), ("CliffWalkingSlippery-v1", {}), ("Taxi-v4", {}), ("Taxi-v4", {"is_rainy": True, "rainy_probability": 0.5}),
])
def test_every_step_of_a_toy_text_is_in_its_model(name, options):
    model = of(name, options)
    steps, starts = walk(name, options, 4000, seed=1)
    assert all(chance_of(model, *step) > 0 for step in steps)
    assert set(starts) <= set(model.start.tolist())


def test_frozen_lake_is_as_slippery_as_its_model():
    model = of("FrozenLake-v1", {"success_rate": 0.5})
    steps, _ = walk("FrozenLake-v1", {"success_rate": 0.5}, 20_000, seed=2)
    fits(model, [(state, action, (after, reward, over)) for state, action, after, reward, over in steps],
         lambda state: [state], lambda k, pair: (model.after[pair][k], model.reward[pair][k], model.over[pair][k]))


def fits(model, steps, states_fn, outcome_fn):
    """Every outcome of every pair that was taken at least 100 times, within 5 standard deviations of its model."""
    counts: dict = {}
    for state, action, outcome in steps:
        counts.setdefault((state, action), []).append(tuple(map(float, outcome)))
    compared = 0
    for (row, action), seen in counts.items():
        states = states_fn(row)
        if len(seen) < 100 or len(states) != 1:
            continue
        pair = states[0], action
        for k, likely in enumerate(probabilities(model)[pair]):
            if likely:
                found = seen.count(tuple(map(float, outcome_fn(k, pair))))
                assert abs(found - len(seen) * likely) <= 5 * np.sqrt(len(seen) * likely * (1 - likely)) + 1e-6, (row, action, k)
                compared += 1
    assert compared > 50


@pytest.mark.parametrize("options", [{"natural": False, "sab": False}, {"natural": True, "sab": False}, {"sab": True}])
def test_blackjack_is_dealt_and_paid_as_in_its_model(options):
    model = of("Blackjack-v1", options)
    row_of = lambda obs: int(np.ravel_multi_index(obs, (32, 11, 2)))
    steps, starts = walk("Blackjack-v1", options, 40_000, seed=3)
    likely = np.zeros(704)
    np.add.at(likely, model.row[model.start], np.diff(model.start_chance, prepend=0))
    dealt = np.bincount([row_of(obs) for obs in starts], minlength=704)
    assert (np.abs(dealt - len(starts) * likely) <= 5 * np.sqrt(len(starts) * likely) + 1).all() and not dealt[likely == 0].any()
    steps = [(row_of(obs), action, (row_of(after), reward, over)) for obs, action, after, reward, over in steps]
    states_fn = lambda row: np.flatnonzero(model.row == row)
    shown = model._replace(after=model.row[model.after])
    for row, action, outcome in set(steps):
        assert max(chance_of(shown, state, action, *outcome) for state in states_fn(row)) > 0
    fits(model, steps, states_fn, lambda k, pair: (model.row[model.after[pair][k]], model.reward[pair][k], model.over[pair][k]))


def test_a_natural_of_blackjack_is_paid_as_in_its_model():
    """Dealt 21 and sticking at once, which only naturals are."""
    for options, wins in (({"natural": True, "sab": False}, 1.5), ({"sab": True}, 1.0)):
        model, env = of("Blackjack-v1", options), gymnasium.make("Blackjack-v1", **options)
        env.reset(seed=4)
        paid: dict[int, list[float]] = {1: [], 10: [], 6: []}
        for _ in range(40_000):
            (total, shown, _), _ = env.reset()
            if total == 21 and shown in paid:
                paid[shown].append(env.step(0)[1])
        for shown, rewards in paid.items():
            state = 704 + shown - 1
            assert model.row[state] == np.ravel_multi_index((21, shown, 1), (32, 11, 2))
            likely = chance_of(model, state, 0, state, wins, 1)
            assert set(rewards) <= {wins, 0.0} and len(rewards) > 100
            assert abs(rewards.count(wins) - likely * len(rewards)) <= 5 * np.sqrt(len(rewards) * likely * (1 - likely)) + 1e-9
        assert wins == 1.5 or chance_of(model, 704, 0, 704, 0.0, 1) == pytest.approx(4 / 13)  # only a ten under the dealer's ace draws


step_fn = jax.jit(jax.vmap(lambda env, state, action, key: env.step(state, action, key), in_axes=(None, 0, 0, 0)))


@pytest.mark.parametrize("env", [
    GridWorld(width=4, height=3, obstacles=((1, 1),), slip=0.4, goal=(3, 0)), GridWorld(), Chain(), BlindCliffwalk(length=5),
], ids=["slippery", "gridworld", "chain", "cliffwalk"])
def test_every_step_of_a_built_in_is_in_its_model(env):
    model = from_transitions(*env.model(), limit=0)
    num_states, num_actions = model.after.shape[:2]
    draw = np.random.default_rng(5)
    states, actions = draw.integers(num_states, size=4000), draw.integers(num_actions, size=4000)
    after, step = step_fn(env, jnp.asarray(states, jnp.int32), jnp.asarray(actions, jnp.int32), jax.random.split(jax.random.key(6), 4000))
    steps = list(zip(states, actions, np.asarray(after), np.asarray(step.reward), np.asarray(step.terminated), strict=True))
    assert all(chance_of(model, *each) > 0 for each in steps)
    pairs, seen = set(zip(states, actions, strict=True)), set(zip(*(map(int, part) for part in (states, actions, after)), strict=True))
    likely = probabilities(model)
    assert all((s, a, int(t)) in seen for s, a in pairs for t, p in zip(model.after[s, a], likely[s, a], strict=True) if p > 0.09)
    assert int(env.reset(jax.random.key(0))[0]) == model.start[0] and len(model.start) == 1


def test_the_world_behind_a_name():
    assert models.world("gridworld", {"width": 7}).width == 7 and models.world("FrozenLake8x8-v1", {}).ncol == 8
