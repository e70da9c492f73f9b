"""A worker that the kernel kills for memory is named so, and started again."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import fault_page
import pytest

LIMIT = 64 << 20


@contextlib.contextmanager
def small_group() -> Iterator[str]:
    """A memory control group below this process's own, of either version, with little memory; skips where there can be none."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    why = "no memory control group can be made here"
    for root, controller, limit in (("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "", "memory.max")):
        group = Path(root) / own.get(controller, "").lstrip("/") / f"shoal-{secrets.token_hex(4)}"
        try:
            group.mkdir()
        except OSError as error:
            why = f"{why}: {error}"
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(LIMIT))
                yield str(group)
                return
        finally:
            group.rmdir()
    pytest.skip(why)


@pytest.mark.slow
def test_a_worker_that_the_kernel_kills_for_memory_is_named_so(run, tmp_path):
    calm = run()
    with small_group() as group:
        done = run(workers=2, env_options={"trouble": "leak", "marker": str(tmp_path / "leaked"), "group": group})
    assert (done.sha, done.metrics) == (calm.sha, calm.metrics)
    assert done.ledger["restarts"] == 1 and done.ledger["lost"] == 0
    (line,) = [line for line in done.said if "started again" in line]
    assert "killed by the kernel: out of memory; try fewer workers or smaller environments" in line
    fault_page.write("F1", "out of memory, killed by the kernel", "env, actor", "R, cause named", "same bits, cause named", 1)
