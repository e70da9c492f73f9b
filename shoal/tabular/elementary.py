"""exp and log by sums, products and powers of two alone: libraries differ in their last bits, these do not, on numbers and on arrays."""

from __future__ import annotations

import math
from typing import Any

_LN2_HIGH, _LN2_LOW, _PER_LN2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10, 1.44269504088896338700
_HALF_ROOT = 0.7071067811865476
_LEAST = -700.0  # below, exp is taken for nothing: what it weighs is less than any other's rounding


def exp(x: float) -> float:
    """e**x for x ≤ 0, within a few units of the last place."""
    if x < _LEAST:
        return 0.0
    whole = math.floor(x * _PER_LN2 + 0.5)
    return math.ldexp(poly_exp(x - whole * _LN2_HIGH - whole * _LN2_LOW), int(whole))


def log(x: float) -> float:
    """The natural logarithm for x ≥ 1."""
    part, power = math.frexp(x)
    if part < _HALF_ROOT:  # so that 1 is 1, and its logarithm nothing
        part, power = 2.0 * part, power - 1
    return power * _LN2_HIGH + (poly_log((part - 1.0) / (part + 1.0)) + power * _LN2_LOW)


def poly_exp(r: Any) -> Any:
    """The series of exp for |r| ≤ ln 2 / 2, from its smallest term."""
    total = 1.0
    for n in range(14, 0, -1):
        total = 1.0 + r / n * total
    return total


def poly_log(z: float) -> float:
    """log((1 + z) / (1 - z)) for |z| ≤ 0.172, by its series from its smallest term."""
    square, total = z * z, 0.0
    for n in range(31, 0, -2):
        total = total * square + 1.0 / n
    return 2.0 * z * total
