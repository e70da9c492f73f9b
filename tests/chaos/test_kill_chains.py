"""Killed at random moments and resumed each time, a run ends with the bits of one never stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.testing import chain

SMALL = ["--hidden", "16", "--num-envs", "8", "--num-steps", "32", "--num-epochs", "4", "--num-minibatches", "4",
         "--eval-episodes", "8"]
VARIANTS = {
    "discrete fused (cartpole)": ["ppo", "cartpole", *SMALL, "--steps", "1000000", "--checkpoint-every", "8000"],
    "discrete ported (cartpole)": ["ppo", "cartpole", "--path", "ported", "--lane-envs", "4", *SMALL, "--steps", "300000",
                                   "--checkpoint-every", "3000", "--eval-every", "50000"],
    "continuous fused (pendulum, normalised)": ["ppo", "pendulum", *SMALL, "--normalise-obs", "--normalise-reward",
                                                "--steps", "1000000", "--checkpoint-every", "8000", "--eval-every", "100000"],
    "continuous ported (Pendulum-v1)": ["ppo", "Pendulum-v1", *SMALL, "--steps", "80000", "--checkpoint-every", "1000"],
    "Gymnasium (CartPole-v1, evaluated, to a target)": ["ppo", "CartPole-v1", *SMALL, "--steps", "400000", "--checkpoint-every",
                                                        "1500", "--eval-every", "10000", "--target-return", "500"],
    "team fused (matrix_game, independent)": ["ppo", "matrix_game", "--team", "independent", *SMALL, "--steps", "400000",
                                              "--checkpoint-every", "4000", "--eval-every", "50000"],
}


def hold(name: str, args: list[str], kills: int, seed: int, folder: Path, cold_end: bool = True) -> chain.Outcome:
    outcome = chain.chain([*args, "--seed", str(seed)], kills, seed, folder, cold_end=cold_end)
    if name and os.environ.get("SHOAL_DOCS"):
        chain.write_row(Path(__file__).parents[2] / "docs" / "chaos.md", name, outcome)
    assert not outcome.differences, f"{outcome.differences}\n{outcome.replay}"
    assert len(outcome.lives) == kills, outcome.replay
    return outcome


@pytest.mark.parametrize(("env", "steps"), [("cartpole", "120000"), ("CartPole-v1", "16000")], ids=["fused", "gymnasium"])
def test_three_kills(env: str, steps: str, tmp_path: Path):
    args = ["ppo", env, *SMALL, "--steps", steps, "--checkpoint-every", str(int(steps) // 20),
            "--eval-every", str(int(steps) // 4)]
    outcome = hold("", args, 3, 7, tmp_path, cold_end=False)
    assert outcome.landed()["saving"] >= 1, outcome.replay


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_twenty_kills(name: str, tmp_path: Path):
    kills = 10 if name.startswith("team") else 20
    outcome = hold(name, VARIANTS[name], kills, 1 + list(VARIANTS).index(name), tmp_path)
    landed = outcome.landed()
    assert landed["saving"] >= 1 and landed["before folder"] + landed["compiling"] >= 1, outcome.replay


def test_a_plan_of_kills_follows_from_its_seed():
    plan = chain.plan_kills(20, 5)
    assert plan == chain.plan_kills(20, 5) != chain.plan_kills(20, 6)
    assert [kill.by for kill in plan].count("clock") == 4 and plan[0].by == "clock"
    shares = [kill.at for kill in plan if kill.by != "clock"]
    assert shares == sorted(shares) and len(shares) == 16


def test_the_table_keeps_one_row_per_variant(tmp_path: Path):
    path = tmp_path / "chaos.md"
    life = chain.Life(chain.Kill("save", 0.5, 0.5), "saving", 1.0, 10)
    for name, differences in (("b", []), ("a", []), ("b", ["metrics.jsonl differs"])):
        chain.write_row(path, name, chain.Outcome([life], {}, {}, differences, ""))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in path.read_text().splitlines() if line.startswith("| ")]
    assert [row[:8] for row in rows[1:]] == [["a", "1", "2", "0", "0", "0", "1", "yes"],
                                             ["b", "1", "2", "0", "0", "0", "1", "no: metrics.jsonl differs"]]
