"""Faults in workers: which worker and which life is struck, and at which points there is something to strike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shoal
from shoal.errors import ConfigError
from shoal.testing import faults


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    faults.disarm()


@pytest.mark.parametrize(("text", "index", "life", "role"), [
    ("worker:send:1:raise", 0, 1, "worker"), ("worker:send:1:raise", 1, 1, "worker"), ("worker:send:1:raise", 1, 2, ""),
    ("worker:send:1+:raise", 1, 2, "worker"), ("worker1:send:1:raise", 1, 1, "worker"), ("worker1:send:1:raise", 0, 1, ""),
    ("worker1:send:1:raise", 11, 1, ""), ("env0:step:1:raise", 0, 1, "env"), ("env0:step:1:raise", 1, 1, ""),
    ("store:fsync:1:kill", 0, 1, ""), ("learner:update:1:raise", 0, 1, "")])
def test_the_worker_and_the_life_that_are_meant(monkeypatch, text, index, life, role):
    monkeypatch.setenv("SHOAL_FAULT", text)
    assert faults.arm_worker(index, life) == role
    point = text.split(":")[1]
    if role:
        with pytest.raises(faults.Fault, match=f"SHOAL_FAULT={role}:{point}:1"):
            faults.at(role, point)
    else:
        faults.at("worker", point)
        faults.at("env", point)


def test_a_setting_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("SHOAL_FAULT", "worker:send:kill")
    with pytest.raises(ConfigError, match="expected role:point:nth:action"):
        faults.arm_worker(0, 1)


def test_calls_of_an_environment_are_points():
    class World:
        spec = "spec"

        def reset(self, seed):
            return seed

        def step(self, action):
            return action

        def close(self):
            pass

    world = faults.Struck(World())
    with faults.record("env") as seen:
        assert (world.reset(3), world.step(4), world.close(), world.spec) == (3, 4, None, "spec")
    assert seen == ["reset", "step", "close"] and not hasattr(world, "get_state")


def test_the_points_that_are_named_are_those_of_the_code():
    """And the page has them."""
    package = Path(shoal.__file__).parent
    text = "".join(path.read_text() for path in package.rglob("*.py"))
    found: dict[str, set[str]] = {}
    for role, point in re.findall(r'\bat\("?(\w+)"?, "(\w+)"\)', text):
        found.setdefault("store" if role == "ROLE" else role, set()).add(point)
    assert found == {role: set(points) for role, points in faults.POINTS.items()}
    page = (package.parent / "docs" / "processes.md").read_text()
    for role, points in faults.POINTS.items():
        assert role == "store" or all(f"`{point}`" in re.search(rf"^\| `{role}` \|(.*)\|$", page, re.MULTILINE)[1] for point in points)
