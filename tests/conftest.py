"""One set-up for all tests: the CPU, one XLA thread, and compiled programs shared between test processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if "SHOAL_CACHE" not in os.environ:
        os.environ["SHOAL_CACHE"] = str(Path(config.cache.mkdir("xla")).resolve())  # type: ignore[union-attr]
        Path(os.environ["SHOAL_CACHE"]).chmod(0o700)
    from shoal.runtime import device

    device.prepare("cpu", 1)
