"""Schedules: start, middle, horizon and beyond."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import schedules

DONE = jnp.array([-1.0, 0.0, 0.25, 0.5, 1.0, 3.0])


@pytest.mark.parametrize(("name", "values"), [
    ("constant", [1, 1, 1, 1, 1, 1]),
    ("linear", [1, 1, 0.75, 0.5, 0, 0]),
    ("cosine", [1, 1, 0.853553, 0.5, 0, 0]),
    ("exponential", [1, 1, 0.316228, 0.1, 0.01, 0.01]),
])
def test_factors(name, values):
    np.testing.assert_allclose(schedules.factor(name, DONE), values, rtol=1e-5, atol=1e-7)


def test_every_name_is_known_and_no_other():
    assert set(schedules.NAMES) == {"constant", "linear", "cosine", "exponential"}
    with pytest.raises(ValueError, match="schedule 'liner': expected one of constant, linear"):
        schedules.factor("liner", DONE)
