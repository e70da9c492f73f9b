"""Tables against the exact optimum: every learner on every small world, and tic-tac-toe against every reply.

``python -m benchmarks.verify tables`` trains each cell over several seeds and evaluates the final greedy policy exactly, by policy
evaluation: no episode is played for it. A cell is met where its worst seed is within 1 % of the optimum, which is recomputed.
"""

from __future__ import annotations

import math
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shoal
from benchmarks import table
from shoal.tabular import gap, model, solve

NAME = "tables"
BAR = 0.01
SAFE = 4 / 13  # −17 instead of −13
SEEDS = 5
WALLS = ((2, 0), (2, 1), (2, 2), (5, 1), (5, 2), (5, 3), (1, 4), (2, 4), (4, 5), (5, 5), (6, 5), (2, 6), (3, 7))
COLUMNS = ("learner", "environment", "steps", "worst gap", "gaps by seed", "optimum", "wanted", "met", "seconds a seed", "commit", "date")
KEYS = ("learner", "environment")
WORDS = """## Tables

Written by `make verify PART=tables`. Every learner on every small world: how far the exact value of the final greedy policy (by
policy evaluation, no episode is played) is from the optimum, relative to it, for every seed. At discount 0.99 from the start
(FrozenLake, gridworld), undiscounted within an episode elsewhere. Settings: `benchmarks/verify_tables.py`; they were found on
other seeds. *SARSA* with a fixed epsilon, which follows its own exploration, keeps away from the cliff's edge, and is held to
that. Tic-tac-toe: lines of play that are lost against every possible reply, from both sides.
"""
GAMES = {"q_learning": 3e6, "double_q_learning": 6e6, "expected_sarsa": 6e6, "sarsa": 6e6}


class Place(NamedTuple):
    """An environment of the table, and the discount its cells are learned and evaluated with; 1: an episode within its limit."""

    env: str
    options: dict[str, Any]
    discount: float


PLACES = {
    "FrozenLake 4×4": Place("FrozenLake-v1", {}, 0.99),
    "FrozenLake 8×8": Place("FrozenLake8x8-v1", {}, 0.99),
    "Taxi": Place("Taxi-v4", {}, 1.0),
    "CliffWalking": Place("CliffWalking-v1", {}, 1.0),
    "Blackjack": Place("Blackjack-v1", {"sab": False}, 1.0),
    "gridworld with walls": Place("gridworld", {"width": 8, "height": 8, "slip": 0.1, "obstacles": WALLS}, 0.99),
}
_LAKES = ("FrozenLake 4×4", "FrozenLake 8×8")
OFF = {"learning_rate": 0.5, "learning_rate_visits": 100.0, "epsilon_end": 0.1, "epsilon_fraction": 1.0}
ON = {"learning_rate": 0.1, "learning_rate_visits": 1000.0, "epsilon_start": 0.3, "epsilon_end": 0.001, "epsilon_fraction": 1.0,
      "epsilon_schedule": "exponential"}
LAKE = {"initial_value": 1.0, "epsilon_start": 0.05, "epsilon_end": 0.02}


class Cell(NamedTuple):
    steps: float
    settings: dict[str, Any]
    wanted: float = BAR


def cells() -> dict[tuple[str, str], Cell]:
    """Settings by learner and place."""
    found: dict[tuple[str, str], Cell] = {}
    for place in PLACES:
        lake = LAKE if place in _LAKES else {}
        for name in ("q_learning", "double_q_learning", "q_lambda"):
            found[name, place] = Cell(1e7, OFF)
        found["dyna_q", place] = Cell(1e6, {"epsilon_end": 0.1, "epsilon_fraction": 1.0})
        for name in ("sarsa", "expected_sarsa", "n_step_sarsa", "sarsa_lambda", "monte_carlo"):
            found[name, place] = Cell(1e7, ON | lake)
    return found | CHANGED


_CARDS = {"learning_rate": 1.0, "learning_rate_visits": 5.0, "epsilon_fraction": 1.0}
_SOFT = {"epsilon_start": 0.3, "epsilon_end": 0.02, "epsilon_schedule": "exponential"}
_CLIFF = {"learning_rate": 0.5, "epsilon_start": 0.0, "epsilon_schedule": "constant"}  # what it expects is better than what it finds
_CAB = {"learning_rate": 0.1, "learning_rate_visits": 1000.0, "epsilon_start": 0.1, "epsilon_schedule": "constant"}
_WARM = {"exploration": "boltzmann", "temperature_start": 5.0, "temperature_end": 0.1, "epsilon_schedule": "exponential",
         "epsilon_fraction": 1.0, "learning_rate": 0.1, "learning_rate_visits": 1000.0}  # nobody who looks falls off a cliff
CHANGED: dict[tuple[str, str], Cell] = {
    **{(name, "Blackjack"): Cell(4e7, _CARDS | {"epsilon_end": 0.3}) for name in ("q_learning", "double_q_learning", "q_lambda")},
    **{(name, "Blackjack"): Cell(6e7, _CARDS | _SOFT) for name in ("sarsa", "expected_sarsa", "n_step_sarsa", "sarsa_lambda",
                                                                   "monte_carlo")},
    ("dyna_q", "Blackjack"): Cell(1e7, {"epsilon_end": 0.3, "epsilon_fraction": 1.0, "planning_steps": 1}),  # its model has to be exact
    **{(name, "CliffWalking"): Cell(1e6, _CLIFF) for name in ("sarsa", "expected_sarsa")},
    ("n_step_sarsa", "CliffWalking"): Cell(1e7, _WARM),
    ("sarsa_lambda", "CliffWalking"): Cell(1e7, _WARM | {"trace_decay": 0.5}),
    ("monte_carlo", "CliffWalking"): Cell(5e6, _WARM | {"temperature_start": 1000.0, "return_steps": 100}),
    # what follows its own exploration learns to keep away from the edge: −15 or −17 and not −13
    ("sarsa", "CliffWalking, epsilon 0.1 throughout"): Cell(1e7, _CAB, SAFE),
    ("sarsa_lambda", "Taxi"): Cell(2e7, ON | {"trace_decay": 0.5}),
    ("monte_carlo", "Taxi"): Cell(8e7, _CAB | {"learning_rate_visits": 100.0}),
    ("q_lambda", "FrozenLake 8×8"): Cell(4e7, OFF),
    ("n_step_sarsa", "FrozenLake 8×8"): Cell(4e7, ON | LAKE | {"n_steps": 2}),
    ("sarsa_lambda", "FrozenLake 8×8"): Cell(4e7, ON | LAKE | {"trace_decay": 0.5}),
    ("monte_carlo", "FrozenLake 4×4"): Cell(3e7, ON | LAKE | {"return_steps": 8}),
    ("monte_carlo", "FrozenLake 8×8"): Cell(4e7, ON | LAKE | {"return_steps": 4}),
}


def train(learner: str, place: Place, cell: Cell, seed: int) -> np.ndarray:
    """The greedy policy of a run, an action for each row."""
    agent = shoal.registry.find("algo", learner)(discount=place.discount, **cell.settings)
    with tempfile.TemporaryDirectory() as folder:
        run = shoal.train(agent, place.env, steps=int(cell.steps), num_envs=1, seed=seed, env_options=place.options, eval_episodes=1,
                          out=Path(folder) / "run")
        return run.policy()


def measure(learner: str, name: str, cell: Cell, seeds: Any) -> dict[str, str]:
    """A row of the page."""
    place, begun = PLACES[name.split(",")[0]], time.perf_counter()
    world = model.of(place.env, place.options)
    assert world is not None
    found = [_gap(world, train(learner, place, cell, seed), place.discount) for seed in seeds]
    worst = max(away for away, _ in found)
    row = {"learner": learner, "environment": name, "steps": f"{cell.steps:,.0f}", "worst gap": _percent(worst),
           "gaps by seed": ", ".join(_percent(away) for away, _ in found), "optimum": f"{found[0][1]:.5f}",
           "wanted": f"≤ {_percent(cell.wanted)}",
           "met": "yes" if worst <= cell.wanted + 1e-9 else "no", "seconds a seed": f"{(time.perf_counter() - begun) / len(found):.1f}",
           "commit": table.commit(), "date": table.today()}
    print(" ".join(f"{key}={row[key]}" for key in COLUMNS[:9] if key != "optimum"), flush=True)
    return row


def _gap(world: model.Model, policy: np.ndarray, discount: float) -> tuple[float, float]:
    """How far a policy is from the optimum, relative to it; infinitely, where it never comes to an end."""
    try:
        found = gap.gap(world, policy, discount)
    except solve.UnsettledError:
        return math.inf, math.nan
    return found["relative"], found["optimum"]


def _percent(share: float) -> str:
    return f"{round(100 * share, 2) + 0.0:.2f} %" if share < 10 else "never ends"


def game_settings(learner: str) -> dict[str, Any]:
    """For self-play: what follows its own exploration must come to little of it."""
    return {"learning_rate": 0.3, "epsilon_end": 0.1 if learner.endswith("q_learning") else 0.01, "epsilon_fraction": 1.0}


def measure_game(learner: str, steps: float, seeds: Any) -> dict[str, str]:
    """A row for tic-tac-toe: lines that are lost, from both sides together."""
    from shoal.envs.tictactoe import TicTacToe

    begun, game, lost = time.perf_counter(), TicTacToe().game(), []
    for seed in seeds:
        policy = train(learner, Place("tictactoe", {}, 1.0), Cell(steps, game_settings(learner)), seed)
        lost.append(sum(found["losses"] for found in gap.gap(game, policy, 1.0).values()))
    row = {"learner": learner, "environment": "tic-tac-toe", "steps": f"{steps:,.0f}", "worst gap": f"{max(lost)} lost",
           "gaps by seed": ", ".join(map(str, lost)), "optimum": "0 lost", "wanted": "0 lost", "met": "no" if any(lost) else "yes",
           "seconds a seed": f"{(time.perf_counter() - begun) / len(lost):.1f}", "commit": table.commit(), "date": table.today()}
    print(" ".join(f"{key}={row[key]}" for key in COLUMNS[:9] if key != "optimum"), flush=True)
    return row


def study(page: Path, start: str, num_seeds: int, first_seed: int) -> bool:
    """Train, print as it goes, and write the page; whether every cell was met."""
    seeds = range(first_seed, first_seed + (num_seeds or SEEDS))
    with ProcessPoolExecutor(2) as pool:
        jobs = [pool.submit(measure, learner, name, cell, seeds) for (learner, name), cell in cells().items()]
        jobs += [pool.submit(measure_game, learner, steps, seeds) for learner, steps in GAMES.items()]
        rows = [job.result() for job in jobs]
    table.update(page, start, rows, COLUMNS, KEYS, WORDS)
    return all(row["met"] == "yes" for row in rows)
