"""The examples run as they are typed, and what they print is true."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = {"train_cartpole": 20_000, "own_environment": 20_000, "own_network": 20_000, "two_agents": 20_000, "callbacks": 20_000,
         "resume": 6_000, "learning_curve": 3_000, "taxi_table": 1_000_000}
LEARNT = 100  # CartPole at random gives about 20; after so few steps a score still swings, and scores are held by make verify


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", text)]


def run(name: str, run_python, tmp_path: Path) -> str:
    return run_python(tmp_path, EXAMPLES / f"{name}.py", "--steps", STEPS[name])


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(STEPS)


@pytest.mark.parametrize("name", STEPS)
def test_an_example_says_how_to_run_it(name):
    assert f"python examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")


def test_train_cartpole(run_python, tmp_path):
    said = run("train_cartpole", run_python, tmp_path)
    steps, score, most, episodes = numbers(said.splitlines()[0])
    assert (steps, most, episodes) == (20_224, 500, 20) and LEARNT <= score <= 500
    (picture,) = tmp_path.glob("runs/*/learning_curve.svg")
    assert str(picture.relative_to(tmp_path)) in said


def test_own_environment_is_solved(run_python, tmp_path):
    score, best = numbers(run("own_environment", run_python, tmp_path))
    assert best == 0.85 and 0.8 <= score <= best


def test_own_network_learns(run_python, tmp_path):
    steps, score, _ = numbers(run("own_network", run_python, tmp_path))
    assert steps == 20_224 and LEARNT <= score <= 500


def test_two_agents_agree(run_python, tmp_path):
    said = run("two_agents", run_python, tmp_path)
    score, best, *opening = numbers(said)
    assert best == 40.0 and 36.0 <= score <= best and opening == [0, 0]


def test_callbacks_stop_the_run(run_python, tmp_path):
    *evaluations, stop = run("callbacks", run_python, tmp_path).splitlines()
    at, scores = zip(*((numbers(line)[0], numbers(line)[1]) for line in evaluations), strict=True)
    assert list(at) == [2_048 * (i + 1) for i in range(len(at))]
    assert all(score < 450 for score in scores[:-1])
    assert stop.startswith("stopped by callback after ") == (scores[-1] >= 450)


def test_resume_is_continuation(run_python, tmp_path):
    said = run("resume", run_python, tmp_path)
    stopped_at, budget = numbers(said.splitlines()[0])
    assert budget == 6_144 and 0 < stopped_at < budget
    whole, resumed = (line.split()[-1] for line in said.splitlines()[1:3])
    assert whole == resumed and len(whole) == 16
    assert "same learner: True, same metrics: True" in said


def test_learning_curve_draws_a_band(run_python, tmp_path):
    assert "12 points" in run("learning_curve", run_python, tmp_path)
    drawn = ElementTree.parse(tmp_path / "learning_curve.svg")
    kinds = {element.get("class", "").split(" ")[0] for element in drawn.iter()}
    assert {"band", "line"} <= kinds


def test_taxi_table(run_python, tmp_path):
    pytest.importorskip("numba")
    said = run("taxi_table", run_python, tmp_path)
    assert numbers(said)[0] == 1_000_000
    value, optimum = numbers(said.splitlines()[-1])
    assert optimum == 7.93 and 0 <= optimum - value < 0.5
