"""Whether an algorithm keeps its side: ``check_algorithm`` examines its functions and lets it solve the probes, on both paths.

Importing this imports no JAX: the checks themselves load when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shoal.errors import ConfigError
from shoal.testing.findings import Finding, demand


def check_algorithm(algorithm: Any, *, value_fn: Callable[[Any, Any], Any] | None = None, env_fn: Any = None,
                    kinds: Sequence[int] | None = None, paths: Sequence[str] = ("fused", "ported"), seeds: Sequence[int] = (0, 1),
                    iterations: int = 40, num_envs: int = 8, lane_envs: int = 4, discount: float | None = None, must: bool = False
                    ) -> list[Finding]:
    """Check an algorithm, given ready for tiny worlds: small networks, a large step size, ``iterations`` enough to learn in.

    ``value_fn(state, obs)`` reads a learner state's values [K] of observations [K, 2]; without it only the probes about actions
    are judged. ``env_fn`` makes a probe of a kind: ``shoal.testing.probes.Probe`` (default) or ``ContinuousProbe``; ``kinds`` are
    those to solve, all with known answers by default. ``discount`` is the algorithm's own where it has that field. Probes are
    left out where something more basic fails. ``must`` raises ``NonConforming`` if there is a defect.
    """
    from shoal.testing import algorithm_checks

    if isinstance(algorithm, type):
        raise ConfigError(f"expected an algorithm, got the class {algorithm.__name__}: make one, with settings for tiny worlds")
    unknown = [path for path in paths if path not in ("fused", "ported")]
    if unknown or not paths or not seeds:
        wrong = f"path {unknown[0]!r}: expected fused or ported" if unknown else "expected at least one path and one seed"
        raise ConfigError(wrong)
    if iterations < 1 or lane_envs < 1 or num_envs % lane_envs:
        raise ConfigError(f"iterations = {iterations}, num_envs = {num_envs}, lane_envs = {lane_envs}: expected at least one "
                          "iteration, and a number of environments that is a multiple of a lane's")
    if discount is None:
        discount = getattr(algorithm, "discount", None)
    if value_fn is not None and not (isinstance(discount, int | float) and 0 <= discount < 1):
        raise ConfigError(f"discount = {discount!r}: expected what the values are discounted by, from 0 to below 1")
    task = algorithm_checks.Task(algorithm, value_fn, env_fn, None if kinds is None else tuple(kinds), tuple(paths), tuple(seeds),
                                 iterations, num_envs, lane_envs, 0.5 if value_fn is None else float(discount or 0.0))
    findings = algorithm_checks.check(task)
    if must:
        demand(type(algorithm).__name__, findings)
    return findings
