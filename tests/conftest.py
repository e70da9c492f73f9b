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
    given = os.environ.get("XLA_FLAGS", "")
    if config.option.markexpr == "not slow" and "optimization_level" not in given:
        # code that LLVM spent less on, with the same bits: a fifth less time for the tests; what is measured for docs/ is compiled in full
        os.environ["XLA_FLAGS"] = f"{given} --xla_backend_optimization_level=1".strip()
    from shoal.runtime import device

    device.prepare("cpu", 1)
