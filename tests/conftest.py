"""One set-up for all tests: the CPU, one XLA thread, and compiled programs shared between test processes."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if "SHOAL_CACHE" not in os.environ:
        folder = config.rootpath / ".pytest_cache" / "xla"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["SHOAL_CACHE"] = str(folder)  # workers of xdist and processes that tests start inherit it
        for name, value in (("MIN_COMPILE_TIME_SECS", "0"), ("MIN_ENTRY_SIZE_BYTES", "-1")):  # small programs, too: there are many
            os.environ.setdefault(f"JAX_PERSISTENT_CACHE_{name}", value)
    from shoal.runtime import device

    device.prepare("cpu", 1)
