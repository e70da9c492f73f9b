"""From observations to rows and back: numbers against NumPy's own, edges by hand, refusals by their words."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from shoal.envs.gym_spaces import observed
from shoal.errors import ConfigError, EnvError
from shoal.specs import MASK, STATE, Box, Discrete, EnvSpec, Group, MultiBinary, MultiDiscrete
from shoal.tabular.discrete import ENTRY_BYTES, actions_of, fits, rows_of
from shoal.tabular.wrappers import VectorStep, discretise, flatten_discrete, vectorise
from shoal.types import HostEnv

# rows ----------------------------------------------------------------------------------------------------------------


def test_discrete_is_itself():
    rows = rows_of(Discrete(5))
    assert rows.num == 5 and [rows.index(obs) for obs in (0, np.int64(3), np.array(4), np.float32(2.0))] == [0, 3, 4, 2]
    assert type(rows.index(np.int64(3))) is int and rows.mask(3) is None
    batch = rows.index_batch(np.array([4, 0, 2], np.int32))
    assert batch.dtype == np.int64 and batch.tolist() == [4, 0, 2]


@pytest.mark.parametrize("wrong", [5, -1, 2.5, float("nan"), float("inf"), "3", None])
def test_discrete_refuses_what_it_does_not_have(wrong):
    rows = rows_of(Discrete(5))
    with pytest.raises(EnvError, match=rf"observation is {wrong}: expected a whole number from 0 to 4, for 5 rows"):
        rows.index(wrong)
    if not isinstance(wrong, (str, type(None))):
        with pytest.raises(EnvError, match=rf"observation is {wrong}"):
            rows.index_batch(np.array([1, wrong]))


@pytest.mark.parametrize(("space", "nums"), [(MultiDiscrete((3, 4, 2)), (3, 4, 2)), (MultiBinary(3), (2, 2, 2))])
def test_several_choices_are_numbered_in_c_order(space, nums):
    rows, every = rows_of(space), list(itertools.product(*map(range, nums)))
    expected = [int(np.ravel_multi_index(obs, nums)) for obs in every]
    assert rows.num == len(every) and expected == list(range(rows.num))
    assert [rows.index(np.array(obs, np.int8)) for obs in every] == expected == [rows.index(obs) for obs in every]
    np.testing.assert_array_equal(rows.index_batch(np.array(every)), expected)


@pytest.mark.parametrize("wrong", [np.array([0, 4, 0]), np.array([0, -1, 0]), np.array([0, 0.5, 0])])
def test_several_choices_refuse_what_they_do_not_have(wrong):
    rows = rows_of(MultiDiscrete((3, 4, 2)))
    for call in (lambda: rows.index(wrong), lambda: rows.index_batch(wrong[None])):
        with pytest.raises(EnvError, match=rf"observation is {wrong[1]}: expected a whole number from 0 to 3"):
            call()
    for short in (np.array([0, 1]), 3, np.zeros((3, 3), int)):
        with pytest.raises(EnvError, match="expected") as error:
            rows.index(short)
        assert "\n" not in str(error.value)
    with pytest.raises(EnvError, match=r"shape \[2, 2\].* expected numbers in the shape \['B', 3\]"):
        rows.index_batch(np.zeros((2, 2), int))


def test_a_group_is_the_product_without_mask_and_state():
    inner = Group((("b", Discrete(3)), ("c", MultiBinary(2))))
    space = Group((("a", Discrete(5)), (MASK, MultiBinary(4)), (STATE, Box((9,))), ("inner", inner), ("x", Box((2,), -1.0, 1.0))))
    rows, shape = rows_of(space, bins=(2, 3)), (5, 3, 2, 2, 2, 3)
    assert rows.num == int(np.prod(shape))
    obs = {"a": 4, MASK: np.array([1, 0, 1, 1]), STATE: None, "inner": {"b": 2, "c": np.array([0, 1])}, "x": np.array([0.5, -1.0])}
    expected = int(np.ravel_multi_index((4, 2, 0, 1, 1, 0), shape))
    assert rows.index(obs) == expected and rows.mask(obs) is obs[MASK]
    batch = {"a": np.array([4, 0]), "inner": {"b": np.array([2, 0]), "c": np.array([[0, 1], [0, 0]])}, "x": np.array([[0.5, -1], [-1, -1]])}
    assert rows.index_batch(batch).tolist() == [expected, 0]
    with pytest.raises(EnvError, match=r"observation\['inner'\]\['b'\] is 3: expected a whole number from 0 to 2"):
        rows.index(obs | {"inner": {"b": 3, "c": [0, 1]}})
    with pytest.raises(EnvError, match=r"observation\['inner'\]\['b'\] is not in what was observed"):
        rows.index(obs | {"inner": {"c": [0, 1]}})


def test_gymnasiums_tuple_is_a_group():
    from gymnasium import spaces

    space, read_fn = observed("blackjack", spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))))
    rows = rows_of(space)
    assert rows.num == 704 and rows.index(read_fn((20, 10, 1))) == (20 * 11 + 10) * 2 + 1


def test_more_rows_than_any_machine_has_are_counted_exactly():
    rows = rows_of(Box((40, 25), 0.0, 255.0, "uint8"), bins=256)
    assert rows.num == 256**1000
    obs = np.zeros((40, 25), np.uint8)
    obs[0, 0], obs[-1, -1] = 255, 7
    assert rows.index(obs) == 255 * 256**999 + 7
    with pytest.raises(ConfigError, match=r"about 10\^2408 rows are more than int64 can number"):
        rows.index_batch(obs[None])
    most = rows_of(MultiBinary(62))
    assert most.index_batch(np.ones((1, 62), int)).tolist() == [2**62 - 1] == [most.index(np.ones(62, int))]


# bins ----------------------------------------------------------------------------------------------------------------


def both(rows, values):
    """The rows of a box's numbers, one by one and together, which must agree."""
    batch = rows.index_batch(np.array(values)).tolist()
    assert [rows.index(np.array(value)) for value in values] == batch
    return batch


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("low", "high", "bins"), [(0.0, 1.0, 10), (-1.0, 1.0, 7), (-4.8, 4.8, 24), (0.0, 1e-3, 3), (-1e6, 2e6, 100)])
def test_a_number_on_an_edge_belongs_to_the_bin_above(low, high, bins, dtype):
    rows = rows_of(Box((1,), low, high, dtype), bins)
    edges = np.array([low + (high - low) * (i / bins) for i in range(1, bins)], dtype)
    low, high = np.array([low, high], dtype)
    assert both(rows, edges[:, None]) == list(range(1, bins))
    assert both(rows, np.nextafter(edges, edges.dtype.type(-np.inf))[:, None]) == list(range(bins - 1))
    ends = [low, np.nextafter(low, low - 1), -np.inf, high, np.nextafter(high, low), np.nextafter(high, high + 1), np.inf]
    assert both(rows, np.array(ends, dtype)[:, None]) == [0, 0, 0, bins - 1, bins - 1, bins - 1, bins - 1]


def test_bins_have_equal_width_and_bounds_can_be_given():
    assert both(rows_of(Box(()), bins=4, low=0.0, high=2.0), [0.0, 0.49, 0.5, 0.99, 1.0, 1.49, 1.5, 2.0, 7.0, -7.0]) == [
        0, 0, 1, 1, 2, 2, 3, 3, 3, 0]
    rows = rows_of(Box((2,), (-9.0, -np.inf), (9.0, np.inf)), bins=(2, 3), low=(-1.0, 0.0), high=(1.0, 3.0))
    assert rows.num == 6 and both(rows, [[-0.1, 0.0], [0.0, 1.5], [5.0, 9.0]]) == [0, 4, 5]
    parts = Group((("x", Box((1,))), ("n", Discrete(2)), ("y", Box((1,)))))
    mixed = rows_of(parts, bins=(2, 4), low=(0.0, -4.0), high=(1.0, 4.0))
    assert mixed.num == 16 and mixed.index({"x": [0.6], "n": 1, "y": [-1.0]}) == (1 * 2 + 1) * 4 + 1


def test_whole_numbers_in_bins():
    rows = rows_of(Box((1,), 0, 255, "uint8"), bins=256)
    assert both(rows, np.arange(256, dtype=np.uint8)[:, None]) == list(range(256))
    assert both(rows_of(Box((1,), 0, 3, "int32"), bins=2), [[0], [1], [2], [3], [300], [-5]]) == [0, 0, 1, 1, 1, 0]


def test_nan_and_other_shapes_are_refused():
    rows = rows_of(Box((2,), 0.0, 1.0), bins=3)
    for call in (lambda: rows.index([0.0, np.nan]), lambda: rows.index_batch([[0.0, 0.0], [np.nan, 0.0]])):
        with pytest.raises(EnvError, match="NaN, which falls in no bin"):
            call()
    for wrong in ([0.0], [[0.0, 0.0]], ["a", "b"]):
        with pytest.raises(EnvError, match=r"expected numbers in the shape \[2\]"):
            rows.index(wrong)


@pytest.mark.parametrize(("space", "options", "text"), [
    (Box((2,)), {"bins": 3}, r"observation is Box\(shape=\(2,\).*number 0 of it has no bounds: give --low and --high.*2.*--bins"),
    (Box((2,), (0.0, 0.0), (1.0, 3.4028235e38)), {"bins": 3}, "number 1 of it has no bounds"),
    (Box((2,)), {"bins": 3, "low": 0.0}, "number 0 of it has no bounds"),
    (Box((1,)), {"bins": 3, "low": float("nan"), "high": 1.0}, "has no bounds"),
    (Box((2,), 0.0, 1.0), {}, "observation is Box.* bins = 0: give --bins"),
    (Box((2,), 0.0, 1.0), {"bins": (3, 0)}, r"bins = \(3, 0\): give --bins"),
    (Box((2,), 0.0, 1.0), {"bins": 2.5}, "bins = 2.5: give --bins"),
    (Box((2,), 0.0, 1.0), {"bins": (3,)}, r"bins = \(3,\): expected one number, or 2"),
    (Box((2,), 0.0, 1.0), {"bins": 3, "low": (0.0, 0.0, 0.0)}, r"low = \(0.0, 0.0, 0.0\): expected one number, or 2"),
    (Box((2,), 0.0, 1.0), {"bins": 3, "low": (0.0, 2.0)}, "low = 2 and high = 1 for number 1 of observation: expected low below high"),
    (Box((1,)), {"bins": 3, "low": 1.0, "high": 1.0}, "low = 1 and high = 1"),
    (Group(((MASK, MultiBinary(2)),)), {}, "without members to tell rows apart by"),
    (Group((("x", Box((1,))),)), {"bins": 3}, r"observation\['x'\] is Box"),
    (Group((("x", "a graph"),)), {}, r"observation\['x'\] is a graph: a table needs Discrete, MultiDiscrete"),
])
def test_what_cannot_be_made_discrete_is_refused_in_one_line(space, options, text):
    with pytest.raises(ConfigError, match=text) as error:
        rows_of(space, **options)
    assert "\n" not in str(error.value)


# actions and memory --------------------------------------------------------------------------------------------------


def test_one_choice_is_itself():
    choices = actions_of(Discrete(4))
    assert choices.num == 4 and choices.action(3) == 3 and choices.legal([1, 0, 0, 1]).tolist() == [True, False, False, True]
    for wrong in (4, -1):
        with pytest.raises(ConfigError, match=f"action = {wrong}: expected a number from 0 to 3"):
            choices.action(wrong)


@pytest.mark.parametrize(("space", "nums"), [(MultiDiscrete((3, 4, 2)), (3, 4, 2)), (MultiBinary(3), (2, 2, 2))])
def test_several_choices_come_back_from_one(space, nums):
    choices = actions_of(space)
    every = np.stack([choices.action(i) for i in range(choices.num)])
    np.testing.assert_array_equal(every, list(itertools.product(*map(range, nums))))
    assert every.dtype == np.int32
    rows = rows_of(space)
    assert [rows.index(action) for action in every] == list(range(choices.num))
    with pytest.raises(ConfigError, match=f"expected a number from 0 to {choices.num - 1}"):
        choices.action(choices.num)


def test_masks_of_several_choices_allow_what_each_allows():
    choices = actions_of(MultiDiscrete((2, 3)))
    allowed = choices.legal(np.array([0, 1, 1, 0, 1]))
    assert [choices.action(i).tolist() for i in np.flatnonzero(allowed)] == [[1, 0], [1, 2]] and allowed.shape == (6,)


def test_continuous_actions_are_refused():
    with pytest.raises(ConfigError, match=r"^actions are Box\(.*: a table needs choices to count; for continuous actions use sac.*$"):
        actions_of(Box((1,), -2.0, 2.0))


def test_a_table_fits_to_the_byte():
    fits(1000, 4, 4000 * ENTRY_BYTES)
    with pytest.raises(ConfigError, match=r"^a table of 1,000 rows and 4 actions needs 62.5 KiB, and 62.5 KiB are free: give --sparse"):
        fits(1000, 4, 4000 * ENTRY_BYTES - 1)
    with pytest.raises(ConfigError, match=r"^a table of about 10\^24082 rows .* needs about 10\^24073 TiB, and 2.0 GiB are free"):
        fits(256**10_000, 18, 2**31)


# wrappers ------------------------------------------------------------------------------------------------------------


class Counter:
    """Shows (seed, steps so far) and a mask; ends by itself after as many steps as the first choice says, and is cut after 3."""

    def __init__(self, masked=False):
        items = (("clock", MultiDiscrete((2**31 - 1, 5))),)
        self.spec = EnvSpec("counter", Group((*items, (MASK, MultiBinary(6))) if masked else items), MultiDiscrete((4, 2)))
        self.masked, self.seed, self.steps, self.closed, self.seeds = masked, 0, 0, False, []

    def reset(self, seed):
        self.seed, self.steps = seed, 0
        self.seeds.append(seed)
        return self._shown()

    def step(self, action):
        self.steps, action = self.steps + 1, np.asarray(action)
        assert action.shape == (2,)
        return self._shown(), 10.0 * action[0] + action[1], bool(action[0] == self.steps), self.steps >= 3, {}

    def close(self):
        self.closed = True

    def _shown(self):
        obs = {"clock": np.array([self.seed, self.steps])}
        return obs | {MASK: np.array([1, 1, 0, 0, 1, self.steps % 2])} if self.masked else obs


def test_a_flattened_environment():
    env = flatten_discrete(Counter())
    assert isinstance(env, HostEnv)
    assert env.spec.obs == Discrete(5 * (2**31 - 1), "int64") and env.spec.action == Discrete(8)
    assert env.reset(7) == 7 * 5 and env.step(3) == (7 * 5 + 1, 11.0, True, False, {})  # 3 is (1, 1)
    assert not hasattr(env, "get_state")
    env.close()
    assert env.env.closed


def test_a_flattened_environment_keeps_its_mask():
    env = flatten_discrete(Counter(masked=True))
    assert env.spec.obs == Group((("obs", Discrete(5 * (2**31 - 1), "int64")), (MASK, MultiBinary(8))))
    obs = env.reset(7)
    assert obs["obs"] == 35 and np.flatnonzero(obs[MASK]).tolist() == [0, 2]  # (0, 0) and (1, 0)
    assert np.flatnonzero(env.step(0)[0][MASK]).tolist() == [0, 1, 2, 3]


def test_a_discretised_environment():
    import gymnasium

    from shoal.envs.gymnasium import GymEnv

    bound = (0.1, 0.3, 0.05, 0.4)  # numbers go beyond them
    env, plain = discretise(GymEnv("CartPole-v1"), 6, tuple(-b for b in bound), bound), gymnasium.make("CartPole-v1")
    assert env.spec.obs == Discrete(6**4) and env.spec.action == Discrete(2)

    def row(obs):
        digits = [min(max(int((x + b) / (2 * b) * 6), 0), 5) for x, b in zip(obs, bound, strict=True)]
        return int(np.ravel_multi_index(digits, (6,) * 4))

    assert env.reset(3) == row(plain.reset(seed=3)[0])
    rows = [(env.step(i % 2)[0], row(plain.step(i % 2)[0])) for i in range(20)]
    assert all(ours == theirs for ours, theirs in rows) and len(set(rows)) > 2
    with pytest.raises(ConfigError, match="no bounds: give --low and --high"):
        discretise(GymEnv("CartPole-v1"), 6)


def test_the_state_of_a_mapped_environment_can_be_kept():
    inner = Counter()
    inner.get_state, inner.set_state = (lambda: {"steps": np.int32(inner.steps)}), (lambda state: None)
    env = flatten_discrete(inner)
    env.reset(1)
    env.step(0)
    assert env.get_state() == {"steps": 1} and env.set_state == inner.set_state


@pytest.mark.parametrize(("wrap", "text"), [
    (lambda env: discretise(env, 3, -1.0, 1.0), r"about 10\^48 rows are more than one Discrete can number"),
    (lambda env: flatten_discrete(env), "give --low and --high"),
])
def test_a_wrapper_refuses(wrap, text):
    env = Counter()
    env.spec = EnvSpec("wide", Box((100,)), Discrete(2))
    with pytest.raises(ConfigError, match=text):
        wrap(env)


def test_several_agents_are_refused():
    env = Counter()
    env.spec = EnvSpec("pair", Discrete(2), Discrete(2), num_agents=2)
    for call in (lambda: flatten_discrete(env), lambda: vectorise(lambda: env, 2)):
        with pytest.raises(ConfigError, match="env 'pair' has 2 agents: expected one"):
            call()


def test_copies_are_reset_in_the_step_that_ends_them():
    vector = vectorise(Counter, 3)
    rows = vector.reset(5)
    first, second, third = (env.seeds[0] for env in vector.envs)
    assert rows.dtype == np.int64 and rows.tolist() == [5 * first, 5 * second, 5 * third] and len({first, second, third}) == 3
    step = vector.step([2, 0, 5])  # the first copy terminates, with 1 · 10 + 0
    assert isinstance(step, VectorStep) and step.rewards.tolist() == [10.0, 0.0, 21.0]
    assert step.terminated.tolist() == [True, False, False] and step.truncated.tolist() == [False] * 3
    assert step.final.tolist() == [5 * first + 1, 5 * second + 1, 5 * third + 1]
    assert step.rows.tolist() == [5 * vector.envs[0].seeds[1], 5 * second + 1, 5 * third + 1] and vector.envs[0].seeds[1] != first
    vector.step([0, 0, 0])
    step = vector.step(np.array([0, 0, 6]))  # the third terminates as it is cut, the second is cut
    assert step.terminated.tolist() == [False, False, True] and step.truncated.tolist() == [False, True, True]
    assert step.final.tolist()[1:] == [5 * second + 3, 5 * third + 3] and step.rows[1] == 5 * vector.envs[1].seeds[1]
    vector.close()
    assert all(env.closed for env in vector.envs)


def test_a_copy_does_the_same_beside_any_number_of_others():
    runs = []
    for num in (1, 4):
        vector = vectorise(Counter, num)
        runs.append([vector.reset(9)[0], *(tuple(field[0] for field in vector.step([2] * num)) for _ in range(5))])
    assert runs[0] == runs[1]
    again = vectorise(Counter, 1)
    assert again.reset(10)[0] != runs[0][0] and again.reset(9)[0] == runs[0][0]


def test_a_vector_shows_what_may_be_done_now():
    vector = vectorise(lambda: Counter(masked=True), 2)
    vector.reset(0)
    assert [np.flatnonzero(mask).tolist() for mask in vector.masks] == [[0, 2], [0, 2]]
    vector.step([2, 0])  # the first begins anew
    assert [np.flatnonzero(mask).tolist() for mask in vector.masks] == [[0, 2], [0, 1, 2, 3]]


def test_a_vector_refuses():
    for num in (0, True, 2.0):
        with pytest.raises(ConfigError, match="expected a whole number of at least 1"):
            vectorise(Counter, num)
    vector = vectorise(Counter, 2)
    with pytest.raises(ConfigError, match="call reset"):
        vector.step([0, 0])
    vector.reset(0)
    with pytest.raises(ConfigError, match="1 actions for 2 environments"):
        vector.step([0])


def test_no_jax_is_imported():
    code = "import sys, shoal.tabular.discrete, shoal.tabular.wrappers, shoal.tabular.play; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
