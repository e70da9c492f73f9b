"""Which threads XLA gets: a plan's on a CPU, every core's where a GPU computes, since there they only compile."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shoal.runtime import device

ASK = "import os, sys; from shoal.runtime import device; device.prepare(sys.argv[1], 3); print(os.environ['NPROC'])"


@pytest.mark.parametrize("chosen", ["cpu", "auto"])
def test_a_cpu_gets_the_threads_of_the_plan(chosen: str) -> None:
    env = {**os.environ, "NPROC": "2", "JAX_PLATFORMS": "cpu"}
    said = subprocess.run([sys.executable, "-c", ASK, chosen], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert said.stdout.split() == ["3"]


LOOP = """
import os, shoal
loop = shoal.MainLoop("cartpole", shoal.PPO(num_steps=8, num_minibatches=1), num_envs=2, threads=3, device="cpu", out="run")
loop.run(steps=16)
print(os.environ["NPROC"])
try:
    shoal.MainLoop("cartpole", shoal.PPO(), device="gpu", out="other").run(steps=16)
except shoal.errors.ConfigError as error:
    print(error)
"""


def test_a_main_loop_by_itself_chooses_device_and_threads(tmp_path) -> None:
    env = {**os.environ, "NPROC": "2", "JAX_PLATFORMS": "cpu"}
    said = subprocess.run([sys.executable, "-c", LOOP], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    first, second = said.stdout.splitlines()
    assert first == "3" and second.startswith("device = 'gpu': JAX sees no GPU here")
    assert not (tmp_path / "other").exists()


def test_a_gpu_asked_for_leaves_the_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "2")
    monkeypatch.setattr(device, "_started", lambda: False)
    monkeypatch.setattr(device, "_confirm", lambda device: None)  # no GPU here: what is tested comes before the devices open
    device.prepare("gpu", 3)
    assert os.environ["NPROC"] == "2"


def test_a_gpu_is_expected_where_a_plugin_and_a_driver_are(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    driver = tmp_path / "driver"
    driver.touch()
    there, gone = (str(driver),), (str(tmp_path / "none"),)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(device, "find_spec", lambda name: object())
    assert device._on_gpu("auto", there) and not device._on_gpu("auto", gone)
    assert device._on_gpu("gpu", gone) and not device._on_gpu("cpu", there)
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert not device._on_gpu("auto", there)
    monkeypatch.setattr(device, "find_spec", lambda name: object())
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert not device._on_gpu("auto", there)
