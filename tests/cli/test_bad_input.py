"""Bad input: one line that names the field and the nearest right thing, exit code 2, nothing written, no JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBE = "import sys; from shoal.cli import main; code = main(sys.argv[1:]); sys.exit(99 if 'jax' in sys.modules else code)"


def shoal(*argv: str, cwd: Path, **kwargs) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; exit code 99 where JAX was imported."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", PROBE, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, **kwargs
    )


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in folder.rglob("*"))


TRAIN = ("train", "ppo", "cartpole")
BAD: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("trian", "ppo", "cartpole"), ("trian", "'train'")),
    (("--versio",), ("--versio", "'--version'")),
    (("train",), ("which algorithm", "shoal train ppo cartpole")),
    (("train", "ppo"), ("which environment", "shoal list envs")),
    (("train", "pppo", "cartpole"), ("unknown algo 'pppo'", "'ppo'")),
    (("train", "cartpole"), ("unknown algo 'cartpole'", "shoal train ppo cartpole")),
    (("train", "dqm", "cartpole"), ("unknown algo 'dqm'", "'dqn'")),
    (("train", "dqn", "cartpole", "--preset", "none", "--episodes", "9"), ("epsilon_schedule = 'linear'", "--steps", "--horizon")),
    (("train", "ppo", "cartpol"), ("unknown env 'cartpol'", "'cartpole'")),
    (("train", "ppo", "CartPole-v11"), ("CartPole-v11", "'CartPole-v1'")),
    (("train", "ppo", "Cartpole-V1"), ("Cartpole-V1", "'CartPole-v1'")),
    (("train", "ppo", "os:CartPole-v1"), ("os:CartPole-v1", "--plugin")),
    (("train", "ppo", ""), ("unknown env ''", "CartPole-v1")),
    ((*TRAIN, "again"), ("unexpected argument 'again'", "shoal train")),
    ((*TRAIN, "--step", "5"), ("--step", "'--steps'")),
    ((*TRAIN, "--learning-rat", "1e-3"), ("--learning-rat", "'--learning-rate'")),
    (("train", "--learning-rat", "1e-3", "ppo", "cartpole"), ("--learning-rat", "'--learning-rate'")),
    ((*TRAIN, "--learning_rate=1e-3"), ("--learning_rate", "'--learning-rate'")),
    ((*TRAIN, "--steps"), ("--steps", "expected one argument")),
    ((*TRAIN, "--steps", "many"), ("steps = 'many'", "whole number", "--steps")),
    ((*TRAIN, "--steps", "1.5"), ("steps = 1.5", "whole number")),
    ((*TRAIN, "--steps", "0"), ("no budget", "--steps")),
    ((*TRAIN, "--steps", "-5"), ("steps = -5", "at least 0")),
    ((*TRAIN, "--episodes", "-1e3"), ("episodes = -1000", "at least 0")),
    ((*TRAIN, "--minutes", "nan"), ("minutes = nan", "a number")),
    ((*TRAIN, "--minutes", "inf"), ("minutes = inf", "a number")),
    ((*TRAIN, "--target-return", "nan"), ("target_return = nan", "a number")),
    ((*TRAIN, "--num-envs", "0"), ("num_envs = 0", "at least 1")),
    ((*TRAIN, "--num-envs", "12"), ("num_envs = 12", "--num-envs 8 or --num-envs 16")),
    ((*TRAIN, "--lane-envs", "3"), ("lane_envs = 3", "--num-envs 6 or --num-envs 9")),
    ((*TRAIN, "--threads", "0"), ("threads = 0", "at least 1")),
    ((*TRAIN, "--keep", "0"), ("keep = 0", "at least 1")),
    ((*TRAIN, "--eval-episodes", "0"), ("eval_episodes = 0", "at least 1")),
    ((*TRAIN, "--seed", "-1"), ("seed = -1", "at least 0")),
    ((*TRAIN, "--seed", "18446744073709551616"), ("seed", "2**64")),
    ((*TRAIN, "--path", "fusd"), ("path = 'fusd'", "fused")),
    ((*TRAIN, "--device", "tpu"), ("device = 'tpu'", "gpu")),
    ((*TRAIN, "--runtime", "locla"), ("unknown runtime 'locla'", "'local'")),
    ((*TRAIN, "--team", "apart"), ("team = 'apart'", "independent, shared")),
    ((*TRAIN, "--patience", "3"), ("patience = 3", "--eval-every")),
    ((*TRAIN, "--checkpoint-every", "often"), ("checkpoint_every = 'often'", "30s")),
    ((*TRAIN, "--preset", "cartpol"), ("preset = 'cartpol'", "'cartpole'")),
    ((*TRAIN, "--plugin", "no_such_plugin_anywhere"), ("no_such_plugin_anywhere", "PYTHONPATH")),
    ((*TRAIN, "--learning-rate", "nan"), ("learning_rate = nan", "expected a number", "--learning-rate")),
    ((*TRAIN, "--learning-rate", "-1e-3"), ("learning_rate = -0.001", "from 0")),
    ((*TRAIN, "--learning-rate", "fast"), ("learning_rate = 'fast'", "a number")),
    ((*TRAIN, "--discount", "1.5"), ("discount = 1.5", "from 0 to 1")),
    ((*TRAIN, "--hidden", "64,big"), ("hidden = 'big'", "whole number")),
    ((*TRAIN, "--hidden", "64,0"), ("hidden = (64, 0)", "from 1")),
    ((*TRAIN, "--optimiser", "adm"), ("optimiser = 'adm'", "'adam'")),
    ((*TRAIN, "--num-minibatches", "0"), ("num_minibatches = 0", "from 1")),
    ((*TRAIN, "--num-steps", "16", "--num-minibatches", "48"), ("num_minibatches = 48", "--num-envs 6 or --num-envs 24")),
    (("train", "impala", "cartpole", "--rho-bar", "0.5"), ("c_bar = 1 is more than rho_bar = 0.5", "--c-bar 0.5")),
    ((*TRAIN, "--correction", "vtrace", "--c-bar", "2"), ("c_bar = 2 is more than rho_bar = 1", "--c-bar 1")),
    ((*TRAIN, "--normalise-obs=5"), ("--normalise-obs", "5")),
    ((*TRAIN, "--env-option", "gravit=3"), ("'gravit'", "'gravity'", "--env-option")),
    ((*TRAIN, "--env-option", "gravity=strong"), ("gravity = 'strong'", "a number")),
    ((*TRAIN, "--env-option", "gravity"), ("gravity", "KEY=VALUE")),
    (("train", "--algo", "ppo", "--env", "cartpole"), ("unknown flag --algo; usage: shoal train ppo ENV [flags]",)),
    (("eval", "--dir", "run"), ("unknown flag --dir; usage: shoal eval DIR [flags]",)),
    ((*TRAIN, "--config", "no.toml"), ("no config file 'no.toml'", "did you mean")),
    ((*TRAIN, "--config", "malformed.toml"), ("malformed.toml", "not valid TOML", "line 1")),
    ((*TRAIN, "--config", "."), ("no config file '.'",)),
    ((*TRAIN, "--config", "typo.toml"), ("typo.toml [algorithm]", "'discoun'", "'discount'")),
    (("train", "--config", "typo.toml"), ("typo.toml [algorithm]", "'discoun'", "'discount'")),
    (("train", "--config", "wrong.toml", "ppo", "cartpole"), ("steps = '5'", "whole number", "wrong.toml")),
    ((*TRAIN, "--config", "plugin.toml"), ("plugin.toml needs plugin 'antigravity'", "--plugin antigravity")),
    ((*TRAIN, "--out", "file.txt"), ("out = 'file.txt'", "not a folder")),
    ((*TRAIN, "--out", "file.txt/run"), ("out = 'file.txt/run'", "not a folder")),
    ((*TRAIN, "--out", ""), ("out = ''", "--out")),
    ((*TRAIN, "--out", "x" * 300), ("out = 'xxx", "name of a folder")),
    ((*TRAIN, "--out", "runs/done"), ("not empty", "shoal resume runs/done")),
    ((*TRAIN, "--out", "dangling"), ("out = 'dangling'", "not a folder")),
    (("resume",), ("which run", "shoal resume")),
    (("resume", "runs/dome"), ("no run at 'runs/dome'", "'done'")),
    (("resume", "runs"), ("no run at 'runs'", "config.toml")),
    (("resume", "x" * 300), ("no run at", "no such folder")),
    (("resume", "runs/done", "--steps", "0"), ("steps = 0", "at least 1")),
    (("resume", "runs/done", "--stops", "5"), ("--stops", "'--steps'")),
    (("resume", "runs/done", "runs/done"), ("unexpected argument 'runs/done'",)),
    (("resume", "runs/broken"), ("runs/broken/config.toml", "not valid TOML")),
    (("eval", "runs/none"), ("no run at 'runs/none'", "'done'")),
    (("eval", "runs/done", "--episodes", "0"), ("episodes = 0", "at least 1")),
    (("eval", "runs/done", "--episodes", "ten"), ("episodes = 'ten'", "whole number")),
    (("eval", "runs/done", "--sample"), ("--sample", "'--sampled'")),
    (("eval", "runs/plugged"), ("needs plugin 'antigravity'", "--plugin antigravity")),
    (("list",), ("envs, algos or runtimes",)),
    (("list", "env"), ("'env'", "'envs'")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cwd")
    (root / "malformed.toml").write_text("steps = = 5\n")
    (root / "typo.toml").write_text("algo = 'ppo'\nenv = 'cartpole'\n[algorithm]\ndiscoun = 0.9\n")
    (root / "wrong.toml").write_text("steps = '5'\n")
    (root / "plugin.toml").write_text("plugins = ['antigravity']\n")
    (root / "file.txt").write_text("")
    (root / "dangling").symlink_to("nowhere/at/all")
    for name, text in (("done", "steps = 5\n"), ("broken", "steps"), ("plugged", "plugins = ['antigravity']\n")):
        (root / "runs" / name).mkdir(parents=True)
        (root / "runs" / name / "config.toml").write_text(text)
    return root


@pytest.mark.parametrize(("argv", "expected"), BAD, ids=[" ".join(argv)[:60] or "-" for argv, _ in BAD])
def test_bad_input(argv, expected, folder):
    before = listing(folder)
    done = shoal(*argv, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("shoal: error: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n")
    for text in expected:
        assert text in done.stderr
    assert listing(folder) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    done = shoal(*TRAIN, "--out", "locked/run", cwd=tmp_path)
    assert done.returncode == 2 and "cannot be written to" in done.stderr and done.stderr.count("\n") == 1


def test_unwritable_folder_for_root_too(tmp_path, monkeypatch, capsys):
    from shoal import cli

    monkeypatch.setattr(cli.os, "access", lambda path, mode: False)
    assert cli.main([*TRAIN, "--out", str(tmp_path / "run")]) == 2
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--help",),
        ("--version",),
        ("train", "--help"),
        ("train", "ppo", "--help"),
        ("resume", "-h"),
        ("eval", "--help"),
        ("list", "--help"),
        ("list", "envs"),
        ("list", "algos"),
        ("list", "runtimes"),
    ],
)
def test_answers_without_jax(argv, tmp_path):
    done = shoal(*argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "shoal" in done.stdout + " ".join(argv[:1]) or argv[:1] == ("list",)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_early(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "train", "ppo", "--help"],
        cwd=tmp_path,
        env=env,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(write)
    assert done.stderr == "" and done.returncode == 1
