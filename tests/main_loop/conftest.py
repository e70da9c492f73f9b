"""Small runs that share their compiled programs through a cache on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import shoal
from shoal.main_loop import MainLoop
from shoal.monitor.sinks import read_rows
from shoal.testing import faults

PER_ITERATION = 64  # 16 steps of 4 environments


def agent(**fields: Any) -> shoal.PPO:
    return shoal.PPO(**({"num_steps": 16, "num_minibatches": 2, "num_epochs": 2, "hidden": (8,), "learning_rate": 3e-3} | fields))


class Done(NamedTuple):
    loop: MainLoop
    result: dict[str, Any]
    folder: Path

    @property
    def sha(self) -> str:
        return self.result["params_sha256"]

    def rows(self) -> list[dict[str, Any]]:
        """Rows of training."""
        return [row for row in read_rows(self.folder / "metrics.jsonl") if "eval_return" not in row]

    def evaluations(self) -> list[tuple[int, float]]:
        return [(row["step"], row["eval_return"]) for row in read_rows(self.folder / "metrics.jsonl") if "eval_return" in row]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"


@pytest.fixture(scope="package", autouse=True)
def _cached(cache: Path):
    settings = {"jax_compilation_cache_dir": str(cache), "jax_persistent_cache_min_compile_time_secs": 0.0,
                "jax_persistent_cache_min_entry_size_bytes": -1}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX asks only once whether there is a cache, and tests before these may have compiled
    yield
    compilation_cache.reset_cache()
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    faults.disarm()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Done]:
    """``run(env, **settings)``: trains a small agent with small settings in a folder of its own."""
    count = 0

    def train(env: Any = "cartpole", who: Any = None, **settings: Any) -> Done:
        nonlocal count
        count += 1
        given = {"num_envs": 4, "seed": 3, "eval_episodes": 4, "checkpoint_every": "0", "log_every": PER_ITERATION,
                 "out": tmp_path / f"run{count}"} | settings
        loop = MainLoop(env, who or agent(), resume=(Path(given["out"]) / "config.toml").exists(), **given)
        result = loop.run()
        return Done(loop, result, Path(result["run_dir"]))

    return train


@pytest.fixture
def shoal_process(cache: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """``shoal_process("train", …)``: the command line, running; ``cold`` compiles everything."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, cold: bool = False, **environment: str) -> subprocess.Popen[str]:
        own = {"JAX_ENABLE_COMPILATION_CACHE": "false"} if cold else {
            "JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
        where = str(Path(shoal.__file__).parents[1])
        path = os.pathsep.join(filter(None, [str(tmp_path), where, os.environ.get("PYTHONPATH", "")]))
        process = subprocess.Popen([sys.executable, "-m", "shoal", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, "PYTHONPATH": path, **own, **environment}, cwd=tmp_path, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


FLAGS = ["--num-envs", "4", "--num-steps", "16", "--num-minibatches", "2", "--num-epochs", "2", "--hidden", "8", "--seed", "3",
         "--eval-episodes", "4", "--log-every", "64", "--preset", "none"]


@pytest.fixture
def flags() -> list[str]:
    """The small settings, for the command line."""
    return list(FLAGS)
