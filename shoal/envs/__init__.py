"""Worlds to act in: compiled built-ins (one file each), fixed maps over them, and one adapter per outside world."""

from shoal.envs.build import from_plan, make

__all__ = ["from_plan", "make"]
