"""Malformed checkpoints, kept as data: resuming refuses each in one short line that names the file, and nothing of it runs."""

from __future__ import annotations

import contextlib
import shutil
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import mutation
import pytest

import shoal
from shoal import api, fields, registry, store
from shoal.errors import ShoalError
from shoal.main_loop import MainLoop
from shoal.monitor.progress import Progress

HERE = Path(__file__).parent / "checkpoints"
DEFAULT_FILE = {"files": "MANIFEST.json", "manifest": "MANIFEST.json", "state": "state.safetensors", "config": "MANIFEST.json"}
ENVS = {"fused": "cartpole", "ported": "CartPole-v1"}


def expand(kind: str) -> list[tuple[str, dict[str, Any], Any]]:
    """Every line of the corpus for every value it lists: its name, the case and the value."""
    found = []
    for line in tomllib.loads((HERE / f"{kind}.toml").read_text())["case"]:
        for file in line.get("files", [line.get("file", DEFAULT_FILE[kind])]):
            case = line | {"file": file, "kind": kind, "do": line.get("do", "drop" if "drop" in line else "set")}
            values = line.get("each", line.get("drop", [None]))
            found += [(f"{line['name']}: {file} {value}"[:100], case, value) for value in values]
    return found


CASES = [item for kind in DEFAULT_FILE for item in expand(kind)]


class Base(NamedTuple):
    """A good run, and an engine of its plan to load into."""

    folder: Path
    engine: Any


@pytest.fixture(scope="module")
def bases(tmp_path_factory, witness) -> dict[str, Base]:
    agent = shoal.PPO(num_steps=16, num_minibatches=2, num_epochs=1, hidden=(8,), learning_rate=3e-3)
    made = {}
    for env in registry.names("env"):  # its source is read, as data, when it is first named
        fields.describe("env", env)
    for path, env in ENVS.items():
        folder = tmp_path_factory.mktemp("good") / "run"
        loop = MainLoop(env, agent, num_envs=4, seed=3, steps=128, eval_episodes=2, checkpoint_every="64", log_every=64,
                        out=folder)
        loop.run()
        made[path] = Base(folder, loop.engine)
        for _ in range(2):  # what the first load imports is no news in the second
            copy = tmp_path_factory.mktemp("copy") / "run"
            shutil.copytree(folder, copy, symlinks=True)
            witness.scratch = str(copy)
            with witness.watch("good checkpoints", path) as seen:
                assert resume(copy, made[path]).step == 128
        assert seen == []
    return made


def resume(folder: Path, base: Base) -> MainLoop:
    """As ``shoal resume`` does it, up to the first step; into an engine that is there already."""
    loop = api._loop(api._open(folder), folder, True, resume=True)
    loop._engine, loop._progress = base.engine, Progress(None, quiet=True)
    loop._resume(False)
    return loop


def copy_of(base: Base, scratch: Path, *, alone: bool) -> Path:
    """A copy of the run with its newest checkpoint alone, or with the one before it."""
    run = scratch / "run"
    run.mkdir()
    for name in ("config.toml", "metrics.jsonl"):
        shutil.copyfile(base.folder / name, run / name)
    for step in (mutation.NEWEST,) if alone else (mutation.NEWEST, mutation.OLDER):
        shutil.copytree(base.folder / "checkpoints" / step, run / "checkpoints" / step)
    return run


def base_of(case: dict[str, Any], value: Any, bases: dict[str, Base]) -> tuple[str, Base]:
    """The run a case is about; the rest are shared out between the two, so that each file of each is met."""
    name = case.get("base") or ("fused", "ported")[len(str(value)) % 2]
    return name, bases[name]


def damage(run: Path, case: dict[str, Any], value: Any, base: Base, other: Base) -> None:
    if case["do"].startswith("take"):
        whose, step = (other, mutation.NEWEST) if "other" in case["do"] else (base, mutation.OLDER)
        value = whose.folder / "checkpoints" / step
    mutation.VERBS[case["kind"]][case["do"]](run, case, value)


def test_the_corpus_is_as_large_as_promised():
    assert len(CASES) >= 300 and len({repr(item) for item in CASES}) == len(CASES)
    assert sum(bool(case.get("fallback")) for _, case, _ in CASES) >= 20
    used = {(case["kind"], case["do"]) for _, case, _ in CASES}
    assert used == {(kind, verb) for kind, verbs in mutation.VERBS.items() for verb in verbs}, "verbs that no case uses"


@pytest.mark.parametrize(("name", "case", "value"), CASES, ids=[name for name, _, _ in CASES])
def test_a_malformed_checkpoint(name, case, value, bases, scratch, witness, without_rights):
    which, base = base_of(case, value, bases)
    run = copy_of(base, scratch, alone=True)
    damage(run, case, value, base, bases["ported" if which == "fused" else "fused"])
    precious = (scratch / "precious").read_bytes() if (scratch / "precious").exists() else b""
    rights = contextlib.nullcontext() if "forbid" not in case["do"] else without_rights()
    with rights, witness.watch("checkpoints", name) as seen, pytest.raises(ShoalError) as caught:
        resume(run, base)
    said = str(caught.value)
    says = case.get("except", {}).get(value, case["says"]) if isinstance(value, str) else case["says"]
    assert case["file"] in said and all(text in said for text in says), said
    short = said.replace(str(run), "RUN")
    assert len(short) <= 400 and short.isprintable(), short
    assert seen == [], f"{name}: {seen}"
    assert not precious or (scratch / "precious").read_bytes() == precious
    if "forbid" in case["do"]:
        (run / "checkpoints").chmod(0o755)


FALLBACKS = [item for item in CASES if item[1].get("fallback")]


@pytest.mark.parametrize(("name", "case", "value"), FALLBACKS, ids=[name for name, _, _ in FALLBACKS])
def test_damage_is_told_and_the_checkpoint_before_it_used(name, case, value, bases, scratch):
    which, base = base_of(case, value, bases)
    run = copy_of(base, scratch, alone=False)
    damage(run, case, value, base, bases["ported" if which == "fused" else "fused"])
    loop = resume(run, base)
    assert (loop.step, loop.iteration) == (64, 1)
    older = store.load(run / "checkpoints" / mutation.OLDER)
    assert store.sha256(base.engine.cut()) == store.sha256(older.tensors)
    _, skipped = store.newest(run, loop._check)
    assert len(skipped) == 1 and skipped[0].startswith("skipped damaged step-128: ") and case["file"] in skipped[0]
    assert all(text in skipped[0] for text in case["says"]), skipped
