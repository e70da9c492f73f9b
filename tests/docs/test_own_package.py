"""A user's package, written and used as its page says: it trains, is killed, goes on and is scored, by name, from the shell."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import doc_pages
import pytest

import shoal.testing
from shoal import registry
from shoal.testing.probes import Kind

PAGE = doc_pages.ROOT / "docs" / "own-algorithm.md"
PACKAGE = doc_pages.ROOT / "examples" / "own_package"
FILES = {snippet.file: snippet.code for snippet in doc_pages.snippets(PAGE) if snippet.file}
REFUSAL = next(snippet.code for snippet in doc_pages.snippets(PAGE) if snippet.language == "text")
COMMANDS = {shlex.split(line)[2]: shlex.split(line)[2:] for snippet in doc_pages.snippets(PAGE) if snippet.language == "bash"
            for line in doc_pages.commands(snippet)}
Shoal = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The package as the page has it."""
    folder = tmp_path_factory.mktemp("own")
    for name, code in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def typed(folder, tmp_path_factory) -> Shoal:
    """``typed("train", …, path=".")``: a command as it is typed in the package's folder, in a process of its own."""
    cache = str(tmp_path_factory.mktemp("compiled"))

    def run(*args: str, path: str = ".", **extra: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([path, str(doc_pages.ROOT)]), "JAX_COMPILATION_CACHE_DIR": cache,
               "JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **extra}
        return subprocess.run([sys.executable, "-m", "shoal", *args], cwd=folder, env=env, capture_output=True, text=True,
                              timeout=300)

    return run


def test_the_page_and_the_example_are_the_same_package():
    there = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8")
             for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml")}
    assert there == FILES
    assert sum(bool(line.strip()) for line in FILES["my_agents/algorithm.py"].splitlines()) <= 80


@pytest.fixture(scope="module")
def runs(typed) -> list[dict]:
    """The page's run without a stop, and the same, killed and resumed to its budget: runs/whole and runs/awr."""
    train = [*COMMANDS["train"], "--checkpoint-every", "4096", "--json", "--quiet"]
    out = train.index("--out") + 1
    whole = typed(*train[:out], "runs/whole", *train[out + 1:])
    assert whole.returncode == 0, whole.stderr
    killed = typed(*train, SHOAL_FAULT="store:rename:3:kill")  # as the third checkpoint is about to appear
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resume = [*COMMANDS["resume"], "--json", "--quiet"]
    more = resume.index("--steps")
    done = typed(*resume[:more], *resume[more + 2:])
    assert done.returncode == 0, done.stderr
    return [json.loads(run.stdout.splitlines()[-1]) for run in (whole, done)]


def test_a_killed_run_goes_on_by_name(runs, typed):
    whole, done = runs
    assert done["params_sha256"] == whole["params_sha256"] and done["steps"] == 20_224
    assert (done["algo"], done["env"]) == ("awr", "stream")
    further = json.loads(typed(*COMMANDS["resume"], "--json", "--quiet").stdout.splitlines()[-1])
    assert further["steps"] == 20_224 + 2_048 and further["params_sha256"] != done["params_sha256"]
    scores = json.loads(typed(*COMMANDS["eval"], "--json").stdout.splitlines()[-1])
    assert scores["episodes"] == 20 and 40 < scores["mean_return"] <= 50  # one that acts at random gets about 12


def test_without_the_plugin_it_is_refused_in_the_line_that_the_page_shows(runs, typed):
    for command in ("resume", "eval"):
        refused = typed(command, "runs/awr")
        assert (refused.returncode, refused.stderr) == (2, REFUSAL)


def listed(done) -> list[list[str]]:
    """Names and what is said of them, however wide the column of names is."""
    return [line.split(maxsplit=1) for line in done.stdout.splitlines()]


def test_list_names_it_by_flag_and_once_installed_without(typed, tmp_path):
    line = ["awr", "Advantage-weighted regression, for choices."]
    assert line in listed(typed(*COMMANDS["list"]))
    assert "awr" not in typed("list", "algos").stdout
    entries = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]["shoal.plugins"]
    record = tmp_path / "my_agents-0.1.0.dist-info"  # what an installer leaves of pyproject.toml
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: my-agents\nVersion: 0.1.0\n")
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (record / "entry_points.txt").write_text("".join(["[shoal.plugins]\n", *lines]))
    installed = typed("list", "algos", path=os.pathsep.join([".", str(tmp_path)]))
    assert line in listed(installed), installed.stderr


def test_its_fields_are_flags_with_help_and_bounds(typed):
    said = typed("train", "awr", "--plugin", "my_agents", "--help").stdout
    assert "--temperature" in said and "An advantage this large makes an action count e times as much." in " ".join(said.split())
    refused = typed("train", "awr", "stream", "--plugin", "my_agents", "--temperature", "0")
    assert refused.returncode == 2 and "temperature = 0.0" in refused.stderr and refused.stderr.count("\n") == 1


def test_the_algorithm_solves_the_probes(monkeypatch):
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.setattr(registry, "_added", {kind: {} for kind in registry.BUILTIN})
    from my_agents import AWR

    agent = AWR(num_steps=16, learning_rate=1e-2, discount=0.8, net="waves")
    found = shoal.testing.check_algorithm(agent, value_fn=lambda state, obs: state.heads[1](obs)[:, 0], paths=("fused",),
                                          seeds=(0,), iterations=60)
    assert [finding.detail for finding in found if not finding.ok] == []
    solved = {finding.check for finding in found}
    assert {f"{kind.name.lower()} (fused)" for kind in Kind if kind is not Kind.MEMORY} <= solved
    for name in [name for name in sys.modules if name.split(".")[0] == "my_agents"]:
        del sys.modules[name]
