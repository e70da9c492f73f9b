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


@pytest.mark.parametrize(("name", "values"), [
    ("constant", [0.9] * 6),
    ("linear", [0.9, 0.9, 0.7, 0.5, 0.1, 0.1]),
    ("cosine", [0.9, 0.9, 0.1 + 0.8 * 0.853553, 0.5, 0.1, 0.1]),
    ("exponential", [0.9, 0.9, 0.1 + 0.8 * 0.306228 / 0.99, 0.1 + 0.8 * 0.09 / 0.99, 0.1, 0.1]),
])
def test_between(name, values):
    np.testing.assert_allclose(schedules.between(name, 0.9, 0.1, DONE), values, rtol=1e-5)
    np.testing.assert_allclose(schedules.between(name, 0.4, 0.4, DONE), [0.4] * 6, rtol=1e-6)
    assert float(schedules.between(name, 0.0, 1.0, jnp.float32(1.0))) == (0.0 if name == "constant" else 1.0)  # upwards, too
