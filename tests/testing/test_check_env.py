"""``check_env`` finds what was planted, by the right check, and finds nothing where nothing is."""

from __future__ import annotations

import json
import random

import gymnasium
import numpy as np
import planted
import pytest

from shoal import cli, registry
from shoal.errors import ConfigError
from shoal.testing import Finding, NonConforming, check_env
from shoal.testing.findings import lines

GYMNASIUM = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "FrozenLake-v1",
             "CliffWalking-v1", "Blackjack-v1", *(id for id in gymnasium.registry if id.startswith("Taxi-"))]


def failed(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if not finding.ok}


def told(findings: list[Finding]) -> list[str]:
    return [f"{f.check}: {f.detail}" for f in findings if not f.ok]


def test_enough_is_planted():
    assert len(planted.PLANTED) >= 40 and len(set().union(*planted.PLANTED.values())) >= 20


@pytest.mark.parametrize("defective", planted.PLANTED, ids=lambda cls: cls.__name__)
def test_a_planted_defect_is_found_by_its_check_and_no_other(defective):
    findings = check_env(defective)
    assert failed(findings) == planted.PLANTED[defective], told(findings)
    assert all(f.detail and f.consequence for f in findings if not f.ok)


@pytest.mark.parametrize("sound", planted.SOUND, ids=lambda cls: cls.__name__)
def test_nothing_is_found_where_nothing_is(sound):
    findings = check_env(sound)
    assert not failed(findings), told(findings)
    assert len(findings) >= 19


@pytest.mark.parametrize("name", GYMNASIUM)
def test_nothing_false_in_gymnasiums_own(name):
    findings = check_env(name, episodes=6)
    assert not failed(findings), told(findings)
    assert {"final_observation", "replay", "truncation", "action_bounds", "close"} <= {f.check for f in findings}


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "matrix_game", "probe"])
def test_nothing_false_in_the_built_in(name):
    findings = check_env(name)
    assert not failed(findings), told(findings)
    assert {"pure", "scan", "final_observation", "truncation"} <= {f.check for f in findings}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in registry.BUILTIN["env"] if name != "tictactoe"])  # a game is not stepped
def test_nothing_false_in_any_built_in_for_several_seeds(name):
    for seed in range(5):
        assert not failed(check_env(name, seed=seed))


def test_an_object_is_checked_as_it_is():
    """No second copy can be made, so what outlives a reset shows at once, as a seed that does not decide."""
    assert failed(check_env(planted.Tires())) == {"seeding"}
    env = planted.ClosesOnce()
    findings = check_env(env)
    assert not failed(findings) and not env.shut and "close" not in {f.check for f in findings}
    made = gymnasium.make("FrozenLake-v1")
    assert "close" in {f.check for f in check_env(made)}  # Gymnasium knows how to make another


def test_notes_are_no_defects():
    findings = {f.check: f for f in check_env("FrozenLake-v1")}
    assert findings["info"].ok and "prob" in findings["info"].detail and findings["info"].consequence
    assert findings["seeding"].ok and "same first observation" in findings["seeding"].detail
    limit = {f.check: f for f in check_env(planted.GoodLine)}["limit"]
    assert limit.ok and not limit.consequence
    raw = {f.check: f for f in check_env(registry.find("env", "cartpole"), options={"start": 0.0})}
    assert raw["seeding"].ok and raw["seeding"].consequence


def test_global_generators_are_left_alone():
    np.random.seed(1)
    random.seed(1)
    expected = np.random.get_state()[1].copy(), random.getstate()
    assert failed(check_env(planted.SeedsTheProcess)) == {"global_random"}
    assert (np.random.get_state()[1] == expected[0]).all() and random.getstate() == expected[1]


def test_must_raises_one_line_per_defect():
    with pytest.raises(NonConforming, match="Tight does not conform\nbounds: observation"):
        check_env(planted.Tight, must=True)
    assert check_env(planted.Walk, must=True)


@pytest.mark.parametrize(("env", "options", "text"), [
    (3, {}, "expected an environment"),
    ("cartpol", {}, "did you mean 'cartpole'"),
    ("cartpole", {"gravty": 1.0}, "'gravity'"),
    ("Walk-v9", {}, "unknown env"),
    (planted.Walk, {"speed": 1}, "cannot be made"),
    (planted.Walk(), {"speed": 1}, "made already"),
])
def test_what_cannot_be_checked_is_refused(env, options, text):
    with pytest.raises(ConfigError, match=text):
        check_env(env, options=options)
    with pytest.raises(ConfigError, match="episodes = 0"):
        check_env(planted.Walk, episodes=0)


def test_the_command(capsys, tmp_path, monkeypatch):
    assert cli.main(["check-env", "FrozenLake-v1", "--episodes", "4", "--seed", "3", "--env-option", "is_slippery=false"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("FrozenLake-v1 conforms: 21 checks, 2 notes") and len(said) == 22
    assert any(line.startswith("note   info") and "→ shoal leaves it out" in line for line in said)
    (tmp_path / "faulty_plugin.py").write_text("import shoal, planted\nshoal.register(env={'faulty_room': planted.FinalRoom})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_added", {kind: {} for kind in registry.BUILTIN})
    assert cli.main(["check-env", "faulty_room", "--plugin", "faulty_plugin", "--json"]) == 1
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["name"] == "faulty_room" and not report["conforms"]
    assert [f["check"] for f in report["findings"] if not f["ok"]] == ["truncation"]


@pytest.mark.parametrize(("argv", "text"), [
    ([], "which environment"), (["cartpol"], "'cartpole'"), (["cartpole", "--episodes", "0"], "episodes = 0"),
    (["cartpole", "--sed", "1"], "'--seed'"), (["cartpole", "pendulum"], "unexpected argument 'pendulum'"),
    (["cartpole", "--env-option", "x"], "expected KEY=VALUE"),
])
def test_the_command_refuses_bad_input(capsys, argv, text):
    assert cli.main(["check-env", *argv]) == 2
    assert text in capsys.readouterr().err


def test_lines_say_what_shoal_does():
    text = lines("x", [Finding("a", True, "fine", ""), Finding("bc", False, "bad", "stops")])
    assert text == ["ok     a   fine", "FAULT  bc  bad → stops", "x has 1 defect: 2 checks, 0 notes"]
