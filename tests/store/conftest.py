"""A run folder with two checkpoints, and no fault left armed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal import store
from shoal.testing import faults


@pytest.fixture(autouse=True)
def _disarmed(monkeypatch):
    # a kill does not lose what the kernel holds: real flushes would cost seconds here and show nothing
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    yield
    faults.disarm()


@pytest.fixture
def tensors():
    """``tensors(n)``: a state that tells which step it belongs to, with every awkward shape."""

    def make(step: int) -> dict[str, np.ndarray]:
        return {
            "params/weight": np.arange(24, dtype=np.float32).reshape(4, 6) + step,
            "params/turned": (np.arange(6, dtype=np.int64).reshape(2, 3) + step).T,
            "flags": np.array([True, False, True]),
            "key": np.array([step, 7], np.uint32),
            "scalar": np.asarray(np.float64(step) / 3),
            "none": np.zeros((0, 5), np.float16),
        }

    return make


@pytest.fixture
def run(tmp_path: Path, tensors) -> Path:
    folder = tmp_path / "runs" / "one"
    store.create_run(folder, {"seed": 1})
    for step in (9, 100):
        store.save(folder, step, tensors(step), {"updates": step}, {})
    return folder


@pytest.fixture
def killed():
    """``killed(n, fn)``: the signal that ends a child that runs ``fn`` and is killed at the n-th point of the store."""

    def fork(nth: int, fn: Callable[[], object]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX and newer Pythons warn of threads; the child only touches files
            child = os.fork()
        if not child:
            try:
                faults.arm("store", "*", nth, "kill")
                fn()
            finally:
                os._exit(0)
        return os.WTERMSIG(os.waitpid(child, 0)[1])

    return fork
