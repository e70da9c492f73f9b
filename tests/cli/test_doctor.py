"""``shoal doctor`` says what is true of this machine, and what to type where something is missing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

import shoal
from shoal import cli, doctor

ROOT = Path(shoal.__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder on the path in front of all others, for packages that are only metadata."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(name: str, version: str, **files: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + files.pop("metadata", ""))
        for file, text in files.items():
            (folder / f"{file}.txt").write_text(text)
        importlib.invalidate_caches()

    return add


def told(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_report_is_true(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor", "--json"]) == 0
    report = told(capsys)
    assert report["fine"] and not report["problems"]
    assert report["versions"]["jax"] == jax.__version__ and report["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(report["versions"]) >= {"jax", "jaxlib", "numpy", "gymnasium", "equinox", "optax", "safetensors"}
    assert report["devices"]["found"] == [{"platform": d.platform, "kind": d.device_kind} for d in jax.devices()]
    assert report["cpu"]["cores"] == os.cpu_count() and report["cpu"]["threads"] == 1
    assert report["disk"]["folder"] == str(tmp_path / "runs") and not (tmp_path / "runs").exists()
    assert 2**20 < report["memory"]["free"] <= report["memory"]["total"]
    assert report["cache"]["folder"] == os.environ["SHOAL_CACHE"]


def test_every_extra_is_installed_or_has_its_command(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    extras = told(capsys)["extras"]
    assert set(extras) == set(EXTRAS)
    assert extras["dev"]["packages"]["pytest"] == pytest.__version__
    for name, state in extras.items():
        assert state["command"] == f"pip install 'shoal[{name}]'" and state["installed"] == (not state["missing"])


def test_an_extra_of_an_extra_counts(packages):
    """jax is here; what its own extra asks for may not be."""
    wanted = doctor.Requirement("jax", ("cuda12",), "0.10", "cuda")
    plugin = next(r.name for r in doctor.requirements("jax") if r.extra == "cuda12" and "plugin" in r.name)
    assert doctor._satisfied(wanted) == (doctor._version(plugin) is not None)
    assert doctor._satisfied(wanted._replace(extras=())) and not doctor._satisfied(wanted._replace(extras=(), at_least="99.0"))


def test_an_extra_counts_only_what_this_python_needs(packages):
    asks = "".join(f"Requires-Dist: {name}; python_version {sign} '{version}' and extra == 'box'\n"
                   for name, sign, version in (("oldbox", "<", "3.11"), ("newbox", ">=", "3.11"), ("farbox", ">", "3.99")))
    packages("boxes", "1.0", metadata=asks)
    wanted = doctor.Requirement("boxes", ("box",), "", "box")
    assert not doctor._satisfied(wanted)
    packages("newbox", "1.0")
    assert doctor._satisfied(wanted)


def test_a_package_too_old_is_named_with_its_command(capsys, packages):
    packages("equinox", "0.9.1")
    assert cli.main(["doctor", "--json"]) == 1
    report = told(capsys)
    (problem,) = report["problems"]
    assert problem == {"what": "equinox 0.9.1 is too old: >=0.13 is needed", "command": "pip install 'equinox>=0.13'"}
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "FAULT  equinox 0.9.1 is too old: >=0.13 is needed → pip install 'equinox>=0.13'" in said
    assert said.splitlines()[-1].startswith("the core is not fine: 1 to mend")


def test_plugins_are_found_and_a_broken_one_is_named(capsys, packages, tmp_path):
    (tmp_path / "sound_plugin.py").write_text("")
    packages("sound", "1.0", entry_points="[shoal.plugins]\nsound = sound_plugin\n")
    assert cli.main(["doctor", "--json"]) == 0
    assert told(capsys)["plugins"] == [{"name": "sound", "value": "sound_plugin", "package": "sound", "error": ""}]
    (tmp_path / "broken_plugin.py").write_text("1 / 0")
    packages("broken", "1.0", entry_points="[shoal.plugins]\nbroken = broken_plugin\n")
    assert cli.main(["doctor", "--json"]) == 1
    (problem,) = told(capsys)["problems"]
    assert "ZeroDivisionError" in problem["what"] and problem["command"] == "pip uninstall broken"


def test_a_driver_without_cuda_in_jax_gives_the_command(capsys, tmp_path, monkeypatch):
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert ("JAX sees no GPU → pip install 'shoal[cuda]'" in said) == (jax.default_backend() != "gpu")


def test_a_broken_jax_is_reported_not_raised(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise ImportError('jaxlib is not built for this machine')")
    done = subprocess.run([sys.executable, "-m", "shoal", "doctor"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert done.returncode == 1 and not done.stderr
    assert "FAULT  JAX finds no device: jaxlib is not built for this machine" in done.stdout


def test_cache_switched_off_is_said(capsys, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE", "off")
    assert cli.main(["doctor"]) == 0
    assert "off (SHOAL_CACHE)" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "expected"), [
    ("numpy>=2", ("numpy", (), "2", "")),
    ("jax[cuda12] >=0.10 ; extra == 'cuda'", ("jax", ("cuda12",), "0.10", "cuda")),
    ('mpi4py; extra == "mpi"', ("mpi4py", (), "", "mpi")),
    ("pytest-xdist<9,>=3.6; python_version > '3' and extra == 'dev'", ("pytest-xdist", (), "3.6", "dev")),
])
def test_requirements_are_read(text, expected):
    assert doctor._parse(text) == expected


def test_sizes_in_words():
    assert [doctor._size(n) for n in (0, 1023, 1024, 1536 * 1024, 3 * 2**30, 5 * 2**40)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "3.0 GiB", "5.0 TiB"]


def test_bad_input_is_refused(capsys):
    assert cli.main(["doctor", "now"]) == 2
    assert "unexpected argument 'now'" in capsys.readouterr().err
