"""What the command line says and hands on, with the running itself replaced."""

from __future__ import annotations

import json
import math
import re
import sys
import types

import pytest

import shoal
from shoal import cli, config, fields
from shoal.errors import ConfigError, EnvError
from shoal.toml import dumps_toml

RESULT = {
    "algo": "ppo",
    "env": "cartpole",
    "runtime": "local",
    "path": "fused",
    "workers": 1,
    "seed": 3,
    "steps": 2048,
    "episodes": 17,
    "updates": 9,
    "wall_s": 1.5,
    "compile_s": 0.5,
    "steps_per_s": 123456.0,
    "mean_return": math.nan,
    "eval_return": 487.25,
    "params_sha256": "ab",
    "run_dir": "my run",
}
SCORES = {"mean_return": 1.5, "std_return": 0.5, "min_return": 1.0, "max_return": 2.0, "success_rate": math.nan, "episodes": 4}


@pytest.fixture
def api(monkeypatch, tmp_path):
    """Stands in for ``shoal.api`` and records how it was called."""
    fake = types.ModuleType("shoal.api")
    fake.calls, fake.result = [], dict(RESULT)

    def run_train(plan, out, quiet, note):
        fake.calls.append((plan, out, quiet, note))
        if isinstance(fake.result, BaseException):
            raise fake.result
        return fake.result

    def run_resume(folder, more_steps, inexact, quiet):
        fake.calls.append((folder, more_steps, inexact, quiet))
        return fake.result

    def run_eval(folder, episodes, sampled, seed):
        fake.calls.append((folder, episodes, sampled, seed))
        return dict(SCORES)

    fake.run_train, fake.run_resume, fake.run_eval = run_train, run_resume, run_eval
    monkeypatch.setitem(sys.modules, "shoal.api", fake)
    monkeypatch.setattr(shoal, "api", fake, raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


def test_train_help_lists_every_field_with_its_sentence_and_default(capsys):
    assert cli.main(["train", "ppo", "--help"]) == 0
    text = re.sub(r"-\s*\n\s+", "-", capsys.readouterr().out)
    text = re.sub(r"\s+", " ", text)
    own = [item for item in fields.plan_fields() if item.name not in ("algo", "env", "algorithm", "plugins", "env_options")]
    for item in [*own, *config.fields("algo", "ppo")]:
        assert f"--{item.name.replace('_', '-')} " in text, item.name
        assert re.sub(r"\s+", " ", item.help) in text, item.name
    for flag in (
        "--plugin MODULE",
        "--env-option KEY=VALUE",
        "--config FILE",
        "--out DIR",
        "--json",
        "--quiet",
        "--no-normalise-advantage",
    ):
        assert flag in text
    assert "(default: 0.00025)" in text and "(default: 64,64)" in text and "(default: 60s)" in text


def test_flags_reach_the_plan(api, capsys):
    argv = [
        "train",
        "--learning-rate",
        "3e-3",
        "ppo",
        "--steps",
        "1e4",
        "CartPole-v1",
        "--hidden",
        "32,16",
        "--no-normalise-advantage",
        "--normalise-obs",
        "--log-std=-1.5",
        "--log-every",
        "200",
        "--seed",
        "3",
        "--quiet",
        "--out",
        "here",
        "--checkpoint-every",
        "5m",
        "--env-option",
        "sutton_barto_reward=true",
        "--env-option",
        "x=[1, 2]",
        "--target-return",
        "-1e1",
        "--eval-every",
        "5_000",
    ]
    assert cli.main(argv) == 0
    plan, out, quiet, note = api.calls[0]
    assert (plan.env, plan.steps, plan.seed, plan.checkpoint_every, plan.eval_every) == ("CartPole-v1", 10_000, 3, "5m", 5000)
    assert plan.target_return == -10.0 and plan.env_options == {"sutton_barto_reward": True, "x": [1, 2]}
    got = plan.algorithm
    assert (got["learning_rate"], got["hidden"], got["normalise_advantage"], got["normalise_obs"], got["log_std"]) == (
        0.003,
        (32, 16),
        False,
        True,
        -1.5,
    )
    assert (out, quiet) == ("here", True) and note.startswith("preset ppo/cartpole")
    assert set(got) == {item.name for item in config.fields("algo", "ppo")}


def test_names_may_come_from_the_file(api, tmp_path):
    (tmp_path / "a.toml").write_text('algo = "ppo"\nenv = "pendulum"\nsteps = 64000\n[algorithm]\ndiscount = 0.5\n')
    assert cli.main(["train", "--config", "a.toml", "--num-envs", "16"]) == 0
    assert cli.main(["train", "ppo", "acrobot", "--config", "a.toml"]) == 0
    assert cli.main(["train", "ppo", "--config", "a.toml"]) == 0
    first, second, third = (call[0] for call in api.calls)
    assert (first.env, first.num_envs, first.steps, first.algorithm["discount"]) == ("pendulum", 16, 64_000, 0.5)
    assert second.env == "acrobot" and third.env == "pendulum"


def test_default_folder_is_new(api, tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.plan.time.strftime", lambda form: "20250101-000000")
    name = "runs/ppo-cartpole-7-20250101-000000"
    for taken, expected in ((None, name), (name, f"{name}-2"), (f"{name}-2", f"{name}-3")):
        if taken:
            (tmp_path / taken).mkdir(parents=True)
        assert cli.main(["train", "ppo", "cartpole", "--seed", "7"]) == 0
        assert api.calls[-1][1] == expected


def test_json_is_the_last_line(api, capsys):
    assert cli.main(["train", "ppo", "cartpole", "--json", "--out", "r"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1]) == {**RESULT, "mean_return": None}
    assert "NaN" not in out and out.splitlines()[0].startswith("preset ppo/cartpole")


def test_summary_says_what_to_type_next(api, capsys):
    api.result["curve"] = "▁▃▇"
    assert cli.main(["train", "ppo", "cartpole", "--out", "r"]) == 0
    out = capsys.readouterr().out
    for text in (
        "▁▃▇",
        "score 487.25",
        "last training episodes –",
        "shoal eval 'my run'",
        "shoal resume 'my run'",
        "123,456 steps/s",
    ):
        assert text in out


@pytest.mark.parametrize(
    ("outcome", "code", "text"),
    [
        (EnvError("it\nraised"), 1, "shoal: error: it raised\n"),
        (ConfigError("no gpu"), 2, "shoal: error: no gpu\n"),
        (KeyboardInterrupt(), 130, ""),
        ({**RESULT, "exit_code": 143, "stopped_by": "SIGTERM"}, 143, ""),
    ],
)
def test_exit_codes(api, capsys, outcome, code, text):
    api.result = outcome
    assert cli.main(["train", "ppo", "cartpole", "--out", "r"]) == code
    assert capsys.readouterr().err == text


def test_resume_and_eval(api, tmp_path, capsys):
    plan, _ = config.resolve({"env": "cartpole"})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(dumps_toml(config.plan_to_dict(plan)))
    assert cli.main(["resume", "run", "--steps", "1e5", "--inexact-resume", "--json"]) == 0
    assert cli.main(["resume", "run"]) == 0
    assert cli.main(["eval", "run", "--episodes", "4", "--sampled", "--seed", "9"]) == 0
    assert cli.main(["eval", "run"]) == 0
    assert api.calls == [("run", 100_000, True, False), ("run", 0, False, False), ("run", 4, True, 9), ("run", 100, False, None)]
    assert "mean return 1.50 ± 0.50 (from 1.00 to 2.00) over 4 sampled episodes" in capsys.readouterr().out
    assert cli.main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {**SCORES, "success_rate": None}


def test_list_says_what_each_is(capsys):
    assert cli.main(["list", "envs"]) == 0
    out = capsys.readouterr().out
    for name in ("cartpole", "acrobot", "pendulum", "matrix_game", "rendezvous"):
        assert re.search(rf"^{name} +\w+ \w+", out, re.MULTILINE)
    assert int(re.search(r"and (\d+) Gymnasium", out).group(1)) > 20
    assert cli.main(["list", "algos"]) == 0
    assert re.search(r"^ppo +Proximal policy optimisation", capsys.readouterr().out, re.MULTILINE)


def test_a_plugin_brings_algorithm_and_flags(api, tmp_path, monkeypatch, capsys):
    from shoal import registry

    (tmp_path / "cli_plugin.py").write_text(
        "import dataclasses, shoal.registry\n@dataclasses.dataclass(frozen=True)\nclass Walk:\n    '''A walk.'''\n"
        "    num_steps: int = 4\n    '''Steps.'''\n    stride: float = 1.0\n    '''How far.'''\n"
        "    RANGES = {'stride': (0, 2)}\nshoal.registry.register(algo={'walk': Walk})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_added", {kind: {} for kind in registry.BUILTIN})
    assert cli.main(["train", "walk", "cartpole", "--plugin", "cli_plugin", "--stride", "1.5", "--out", "r"]) == 0
    plan, _, _, note = api.calls[0]
    assert (
        plan.algorithm == {"num_steps": 4, "stride": 1.5}
        and plan.plugins == ("cli_plugin",)
        and note == "no preset: defaults of walk"
    )
    for argv, text in (
        (["--stride", "3"], "stride = 3.0"),
        (["--strid", "1"], "'--stride'"),
        (["--discount", "1"], "unknown flag --discount"),
    ):
        assert cli.main(["train", "walk", "cartpole", "--plugin", "cli_plugin", *argv]) == 2
        assert text in capsys.readouterr().err
    assert cli.main(["train", "walk", "--help", "--plugin", "cli_plugin"]) == 0
    assert "How far. (default: 1.0)" in capsys.readouterr().out
