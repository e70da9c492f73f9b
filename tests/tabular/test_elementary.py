"""exp and log from sums and products alone: close to the mathematical ones, and the same to the bit wherever they are computed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.tabular import elementary, vector
from shoal.tabular.rule import Kind

ULPS = 4


def arguments_of_exp() -> np.ndarray:
    """Dense near 0, where temperatures put them; to the ends of the range; and where the reduction changes."""
    source = np.random.default_rng(2)
    multiples = -math.log(2) * (np.arange(0, 1009) + 0.5)
    edges = np.concatenate([multiples, np.nextafter(multiples, -np.inf), np.nextafter(multiples, 0.0)])
    x = np.concatenate([-source.uniform(0, 1, 10_000), -source.uniform(0, 700, 10_000), -(10.0 ** source.uniform(-300, 0, 2000)), edges,
                        [0.0, -0.0, -5e-324, -700.0]])
    return x[x >= -700.0]


def arguments_of_log() -> np.ndarray:
    source = np.random.default_rng(3)
    powers = 2.0 ** np.arange(0, 1024)
    return np.concatenate([source.uniform(1, 2, 10_000), 10.0 ** source.uniform(0, 308, 10_000), np.arange(1, 5000), powers,
                           np.nextafter(powers, np.inf), np.nextafter(powers[1:], 0.0), [2.0**63, 1.7976931348623157e308]])


def off(found: float, right: float) -> float:
    """Units of the last place between two numbers."""
    return abs(found - right) / math.ulp(right) if right else (0.0 if found == 0 else math.inf)


def test_exp_is_close():
    worst = max((off(elementary.exp(x), math.exp(x)), x) for x in arguments_of_exp().tolist())
    assert worst[0] <= ULPS, worst
    assert elementary.exp(0.0) == 1.0 and elementary.exp(-0.0) == 1.0


def test_exp_below_its_range_is_nothing():
    assert elementary.exp(math.nextafter(-700.0, -math.inf)) == elementary.exp(-1e300) == elementary.exp(-math.inf) == 0.0
    assert elementary.exp(-700.0) > 0.0
    assert vector.exp(np.array([math.nextafter(-700.0, -math.inf), -1400.5, -1e300, -math.inf])).tolist() == [0.0] * 4


def test_exp_rises_as_schedules_may():
    """A schedule that ends above its start asks for more than 1."""
    for x in np.linspace(0, 20, 2001).tolist():
        assert off(elementary.exp(x), math.exp(x)) <= ULPS, x


def test_log_of_counts_is_close():
    """Whole numbers are what it is asked for."""
    worst = max((off(elementary.log(n), math.log(n)), n) for n in [*range(2, 100_000), *(2**p + 1 for p in range(20, 53))])
    assert worst[0] <= ULPS, worst


def test_log_is_close():
    """Close to 1, too, where a sum of two parts of opposite sign would lose all digits."""
    worst = max((off(elementary.log(x), math.log(x)), x) for x in arguments_of_log().tolist())
    assert worst[0] <= ULPS, worst
    assert elementary.log(1.0) == elementary.log(1) == 0.0


def test_log_of_whole_numbers_is_that_of_floats():
    """Counters are whole in one table and int64 in another."""
    for n in (1, 2, 3, 10, 12345, 2**31, 2**53):
        assert elementary.log(n) == elementary.log(float(n)) == elementary.log(np.int64(n))


def test_numpy_gives_the_same_bits():
    x = arguments_of_exp()
    assert vector.exp(x).tobytes() == np.array([elementary.exp(y) for y in x.tolist()]).tobytes()
    assert vector.exp(x[:8190].reshape(2, -1)).tobytes() == vector.exp(x[:8190]).tobytes()


def test_compiled_code_gives_the_same_bits():
    numba = pytest.importorskip("numba")
    from shoal.tabular import compiled

    kernels = compiled.load(Kind())
    exp, log = kernels.exp, kernels.log

    @numba.njit(error_model="numpy")
    def all_of(x, y, exps, logs):
        for j in range(len(x)):
            exps[j] = exp(x[j])
        for j in range(len(y)):
            logs[j] = log(y[j])

    x, y = np.append(arguments_of_exp(), [-700.1, -1e300, -np.inf]), arguments_of_log()
    exps, logs = np.zeros(len(x)), np.zeros(len(y))
    all_of(x, y, exps, logs)
    assert exps.tobytes() == np.array([elementary.exp(z) for z in x.tolist()]).tobytes()
    assert logs.tobytes() == np.array([elementary.log(z) for z in y.tolist()]).tobytes()
    whole, of_whole = np.arange(1, 3000), np.zeros(2999)
    all_of(x[:1], whole, exps[:1], of_whole)  # counters are int64
    assert of_whole.tobytes() == np.array([elementary.log(z) for z in whole.tolist()]).tobytes()
