"""Malformed configs, kept as data: each is refused in one short line that names the field or the file, and nothing of it runs."""

from __future__ import annotations

import sys
import contextlib
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shoal import api, config, fields
from shoal.errors import ShoalError

HERE = Path(__file__).parent / "configs"
GOOD = "seed = 1\n[algorithm]\ndiscount = 0.9\n[env_options]\ngravity = 9.8\n"
SYNTAX, BYTES, UNKNOWN, NUMBERS, PLACES = (
    tomllib.loads((HERE / f"{name}.toml").read_text())["case"] for name in ("syntax", "bytes", "unknown", "numbers", "places"))
KINDS = tomllib.loads((HERE / "wrong_kinds.toml").read_text())
FIELDS = [("", item) for item in fields.plan_fields()]
FIELDS += [("[algorithm]\n", item) for item in fields.describe("algo", "ppo").fields]
TEXTS = [*SYNTAX, *BYTES, *UNKNOWN, *NUMBERS]


def values_for(field: fields.Field) -> list[str]:
    return [value for value in KINDS["kinds"][field.type] if value not in KINDS["allowed"].get(field.name, ())]


def content(case: dict[str, Any]) -> bytes:
    if "hex" in case:
        return bytes.fromhex(case["hex"])
    return case["text"].replace("@", case.get("fill", "@") * case.get("times", 1)).encode()


def as_file(path: Path) -> None:
    """As ``shoal train --config FILE`` reads it."""
    config.resolve({}, path)


def as_run(path: Path) -> None:
    """As ``shoal resume`` and ``shoal eval`` read it from a run folder."""
    api.evaluate(path.parent, 1)


READERS = {"file": as_file, "run": as_run}


@pytest.fixture(scope="module", autouse=True)
def _one_good_load(tmp_path_factory, witness):
    """What is imported or read as source for the first time is no news afterwards."""
    path = tmp_path_factory.mktemp("good") / "config.toml"
    for env in ("cartpole", "CartPole-v1"):
        path.write_text(f"env = '{env}'\n{GOOD}" if env == "cartpole" else f"env = '{env}'\n")
        as_file(path)
        with pytest.raises(ShoalError, match="no checkpoint"):
            as_run(path)
    with witness.watch("good configs", "good") as seen:
        as_file(path)
    assert seen == []


def assert_refused(reader: str, path: Path, says: list[str], witness, name: str) -> None:
    with witness.watch("configs", f"{name}, as {reader}") as seen, pytest.raises(ShoalError) as caught:
        READERS[reader](path)
    said = str(caught.value)
    assert all(text in said for text in says), said
    short = said.replace(str(path), "FILE").replace(str(path.parent), "FOLDER")
    assert len(short) <= 300 and short.isprintable(), short
    assert seen == [], f"{name}: {seen}"


def test_the_corpus_is_as_large_as_promised():
    names = [case["name"] for case in (*TEXTS, *PLACES)]
    assert len(names) == len(set(names)) and len(names) >= 200
    assert sum(len(values_for(field)) for _, field in FIELDS) >= 200
    assert all(case["says"] for case in (*TEXTS, *PLACES))


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case["name"])
def test_a_malformed_config(case, scratch, witness):
    path = scratch / "config.toml"
    path.write_bytes(content(case))
    for reader in READERS if "only" not in case else (case["only"],):
        says = case.get("run", case["says"]) if reader == "run" else case["says"]
        named = [] if case in UNKNOWN or case in NUMBERS else [str(path)]
        assert_refused(reader, path, [*says, *named], witness, case["name"])


@pytest.mark.parametrize(("table", "field"), FIELDS, ids=lambda x: getattr(x, "name", None))
def test_a_field_of_the_wrong_kind(table, field, scratch, witness):
    path = scratch / "config.toml"
    values = values_for(field)
    assert len(values) >= 8
    for value in values:
        path.write_text(f"{table}{field.name} = {value}\n")
        for reader in READERS:
            assert_refused(reader, path, [f"{field.name} = ", ": expected "], witness, f"{field.name} = {value}")


def put(place: str, path: Path) -> None:
    if place == "forbidden":
        path.write_text(GOOD)
        path.chmod(0)
    elif place == "folder":
        path.mkdir()
    elif place == "pipe":
        os.mkfifo(path)
    elif place == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    elif place == "two loops":
        path.symlink_to(path.name + ".2")
        path.with_name(path.name + ".2").symlink_to(path.name)
    elif place != "nothing":
        # the memory of a process is a regular file whose first page cannot be read
        path.symlink_to({"device": "/dev/zero", "terminal": "/dev/tty", "dangling": "nowhere", "loop": path.name,
                         "failing": "/proc/self/mem"}[place])


@pytest.mark.parametrize("case", PLACES, ids=lambda case: case["name"])
def test_something_else_where_a_config_should_be(case, scratch, witness, without_rights):
    path = scratch / "config.toml"
    put(case["place"], path)
    for reader in READERS:
        says = case.get("run", case["says"]) if reader == "run" else case["says"]
        with without_rights() if case["place"] == "forbidden" else contextlib.nullcontext():
            assert_refused(reader, path, [*says, str(scratch)], witness, case["name"])


def test_the_witness_is_not_deaf(scratch, witness, tmp_path):
    sys.modules.pop("colorsys", None)  # another test may have it loaded
    with witness.watch("planted", "planted") as seen:
        exec("import colorsys")
        (tmp_path / "elsewhere").write_text("x")
        (scratch / "inside").write_text("x")
    assert {"exec", "compile", "import", "open"} <= {event for event, _ in seen}
    assert "elsewhere" in str(seen) and "inside" not in str(seen)
