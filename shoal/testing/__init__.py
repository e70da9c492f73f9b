"""What helps to test agents and environments; ships to users. Importing it imports no JAX.

Bound at once, not when first used: a module loaded later would take the place of the function that has its name.
"""

from __future__ import annotations

from shoal.testing.check_algorithm import check_algorithm
from shoal.testing.check_env import check_env
from shoal.testing.findings import Finding, NonConforming

__all__ = ["Finding", "NonConforming", "check_algorithm", "check_env"]
