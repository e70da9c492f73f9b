"""Pages and examples run in processes of their own, as a reader's would, and share what JAX compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def run_python(tmp_path_factory) -> Callable[..., str]:
    """``run_python(cwd, file, *arguments)`` → what it printed; fails with all of it where the program does."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PLATFORMS": "cpu",
           "PYTHONDONTWRITEBYTECODE": "1",
           "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # what pages train is short: compiling it well would take longer

    def run(cwd: Path, file: Path, *arguments: object) -> str:
        done = subprocess.run([sys.executable, str(file), *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True,
                              timeout=600)
        assert done.returncode == 0, f"{file} {arguments}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    return run
