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


# the files that take longest, so that no worker begins one when the others are done
LONG = ("test_doc_snippets_a", "test_doc_snippets_b", "test_threads", "test_probes_variants", "test_team", "test_probes_replay_actors",
        "test_probes_replay_values", "test_sac", "test_probes_gradients", "test_replay_runs", "test_budget", "test_own_package",
        "test_server", "test_process_ends", "test_process_faults", "test_fault_cells", "test_async", "test_processes", "test_kill_chains",
        "test_examples", "test_signals", "test_api", "test_host_act", "test_dqn", "test_dqn_threads", "test_bench_runs",
        "test_bench_spread", "test_saving", "test_vtrace_fixed_point", "test_correction", "test_timeline", "test_threads_runtime",
        "test_worker_kills", "test_probes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG)))
