"""Specs: plain data about spaces."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.specs import MASK, STATE, Box, Discrete, EnvSpec, Group, num_features, zeros

VIEW = Group((("x", Box((2, 3))), ("choice", Discrete(4)), (MASK, Box((5,), 0.0, 1.0)), (STATE, Box((7,)))))


def test_bounds_are_broadcast_or_given_one_by_one():
    low, high = Box((2, 2), -1.0, (1.0, 2.0, 3.0, 4.0)).bounds()
    np.testing.assert_array_equal(low, [[-1, -1], [-1, -1]])
    np.testing.assert_array_equal(high, [[1, 2], [3, 4]])
    assert low.dtype == high.dtype == np.float32
    assert Box((2, 2)).size == 4 and Box(()).size == 1


@pytest.mark.parametrize(("box", "bounded"), [
    (Box((2,)), False), (Box((2,), -1.0, 1.0), True), (Box((2,), -1.0), False), (Box((2,), (-1.0, -math.inf), 1.0), False)])
def test_bounded(box, bounded):
    assert box.bounded is bounded


def test_specs_are_hashable_and_compare_by_value():
    """A spec is a static part of compiled programs."""
    make = lambda limit: EnvSpec("a", VIEW, Discrete(3), num_agents=2, max_episode_steps=limit)
    assert make(5) == make(5) and hash(make(5)) == hash(make(5)) and make(5) != make(6)


def test_agents():
    spec = EnvSpec("a", Box((3,)), Discrete(2), num_agents=4, max_episode_steps=9)
    assert spec.agent_shape == (4,)
    assert spec.single() == EnvSpec("a", Box((3,)), Discrete(2), max_episode_steps=9) and spec.single().agent_shape == ()


def test_zeros():
    out = zeros(VIEW, (6, 2))
    assert {name: x.shape for name, x in out.items()} == {"x": (6, 2, 2, 3), "choice": (6, 2), MASK: (6, 2, 5), STATE: (6, 2, 7)}
    assert out["x"].dtype == np.float32 and out["choice"].dtype == np.int32 and not any(x.any() for x in out.values())
    assert zeros(Box((2,), dtype="uint8")).dtype == np.uint8


def test_num_features():
    assert num_features(Box((2, 3))) == 6 and num_features(Discrete(4)) == 4
    assert num_features(VIEW) == 10  # mask and global state are not features
    assert num_features(Group((("inner", VIEW), ("y", Box((1,)))))) == 11


def test_groups():
    assert VIEW["choice"] == Discrete(4) and MASK in VIEW and "y" not in VIEW
    with pytest.raises(KeyError):
        VIEW["y"]
