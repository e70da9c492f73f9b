"""Algorithms that learn from little, for runs that take no time."""

from __future__ import annotations

from typing import Any

from shoal import registry


def small(name: str = "ppo", **fields: Any) -> Any:
    """An algorithm that learns from little."""
    gradients = {"num_steps": 16, "hidden": (8,)}
    replay = {"num_steps": 4, "hidden": (8,), "start_size": 64, "batch_size": 16, "capacity": 2000}
    given = {"ppo": gradients | {"num_minibatches": 2, "num_epochs": 2}, "a2c": gradients, "reinforce": gradients}.get(name, replay)
    return registry.find("algo", name)(**(given | fields))
