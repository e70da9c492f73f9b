"""The distance to the optimum that docs/scores.md reports of tables, on policies whose value is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from benchmarks import verify_tables

from shoal.tabular import model, solve


def test_the_gap_of_known_policies():
    cliff = model.of("CliffWalking-v1", {})
    best = solve.policy_of_rows(cliff, solve.value_iteration(cliff, 1.0))
    assert verify_tables._gap(cliff, best, 1.0) == (pytest.approx(0.0), pytest.approx(-13.0))
    safe = np.where(np.arange(48) % 12 == 11, 2, np.where(np.arange(48) >= 12, 0, 1))  # along the top: up, right, down
    assert verify_tables._gap(cliff, safe, 1.0)[0] == pytest.approx(verify_tables.SAFE)
    assert verify_tables._gap(cliff, np.zeros(48, np.int64), 1.0)[0] == math.inf  # up for ever
    assert verify_tables._percent(math.inf) == "never ends"


def test_every_learner_has_a_cell_in_every_place():
    from shoal import registry

    learners = [name for name in registry.BUILTIN["algo"] if registry.home_room("algo", name) == "tabular"]
    assert {(learner, place) for learner in learners for place in verify_tables.PLACES} <= set(verify_tables.cells())
    assert all(cell.wanted == verify_tables.BAR for (_, place), cell in verify_tables.cells().items() if "throughout" not in place)


def test_a_cell_is_met_by_learning_and_not_without():
    pytest.importorskip("numba")
    cell = verify_tables.Cell(300_000, verify_tables.OFF)
    assert verify_tables.measure("q_learning", "Taxi", cell, range(1))["met"] == "yes"
    assert verify_tables.measure("q_learning", "Taxi", cell._replace(steps=1000), range(1))["met"] == "no"


def test_presets_are_the_verified_settings():
    """Of the command line, for every learner and every world that has a name of its own."""
    from shoal import config

    folder = Path(config.__file__).parent / "presets"
    for (learner, name), cell in verify_tables.cells().items():
        place = verify_tables.PLACES[name.split(",")[0]]
        if cell.wanted == verify_tables.BAR and name != "gridworld with walls":
            table = config.read(folder / f"{learner}.toml")[place.env]
            assert table == {"steps": cell.steps, "discount": place.discount} | cell.settings, (learner, name)
    for learner, steps in verify_tables.GAMES.items():
        table = config.read(folder / f"{learner}.toml")["tictactoe"]
        assert table == {"steps": steps, "discount": 1.0} | verify_tables.game_settings(learner)
