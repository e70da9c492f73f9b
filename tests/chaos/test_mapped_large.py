"""A buffer of 10 GB in files works in 2 GB of memory: ``make chaos ARGS="-k mapped_large"``. It takes some 25 GB of disk for minutes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import proofs
from shoal import disk

PROGRAM = Path(__file__).parents[1] / "buffers" / "large_replay.py"
LIMIT, ANONYMOUS, BYTES = 2 * 10**9, 10**9, 10 * 2**30
SIDE, CHUNK = 96, 2 * 8 * 16  # bytes of a picture: 4 · 96²; rows of a chunk of both lanes
CHUNKS = -(-BYTES // (CHUNK * 4 * SIDE**2))
PLAN = (SIDE, CHUNKS, 2**26, CHUNKS // 5, CHUNKS // 20, 64, 8)


class Limited(NamedTuple):
    kind: str  # what the limit counts
    enter: str  # shell command that puts a process under it
    peak_fn: Callable[[], int]  # the most that was counted, in bytes; 0 where nobody counts


def _group() -> tuple[Path, str, str] | None:
    """A new memory control group below this process's own, and its files for the limit and the peak; None where there can be none."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    for root, controller, limit, peak in (("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                                          ("/sys/fs/cgroup", "", "memory.max", "memory.peak")):
        if controller not in own:
            continue
        group = Path(root) / own[controller].lstrip("/") / f"shoal-{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / limit).exists() and os.access(group / limit, os.W_OK):
                return group, limit, peak
            group.rmdir()
    return None


@contextlib.contextmanager
def limited(nbytes: int) -> Iterator[Limited]:
    """A limit on memory for a child: by a control group, which counts file pages, too; else on what the process itself allocates."""
    found = _group()
    if found is None:
        yield Limited("limit on allocations (RLIMIT_DATA)", f"ulimit -d {nbytes // 1024}", lambda: 0)
        return
    group, limit, peak = found
    try:
        (group / limit).write_text(str(nbytes))
        yield Limited("control group, file pages included", f"echo $$ > {group / 'cgroup.procs'}", lambda: int((group / peak).read_text()))
    finally:
        group.rmdir()


def live(part: str, folder: Path, limit: Limited) -> dict[str, Any]:
    """One process of that life under a limit."""
    env = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2]), "JAX_PLATFORMS": "cpu"}
    command = ["sh", "-c", f'{limit.enter} && exec "$@"', "sh", sys.executable, str(PROGRAM), part, str(folder), json.dumps(PLAN)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3_000)
    assert done.returncode == 0, f"{part}: exit code {done.returncode}\n{done.stderr[-3000:]}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_mapped_large(tmp_path: Path):
    if disk.room(tmp_path) < 30e9:
        pytest.fail("30 GB of free disk are needed")
    try:
        with limited(LIMIT) as limit:
            first = live("fill", tmp_path, limit)
            second = live("resume", tmp_path, limit)
            peak = limit.peak_fn()
    finally:
        for path in tmp_path.iterdir():
            shutil.rmtree(path)
    saves, new = first["saves"], CHUNK * PLAN[4] * 4 * SIDE**2
    failures = [what for what, good in {
        "10 GB of files": first["on_disk"] >= BYTES and first["files"] >= BYTES,
        "within the limit": peak <= LIMIT,
        "anonymous memory": max(first["anonymous"], second["anonymous"]) < ANONYMOUS,
        "a small index": first["index"] < 10**7,
        "saves hold all": all(save["holds"] >= BYTES for save in saves),
        "saves write only what is new": all(save["written"] <= new and save["new"] <= new for save in saves),
        "the same draws": first["draws"] == second["draws"] and second["verified"] > 0,
    }.items() if not good]
    wrote = ", ".join(f"{save['written'] / 1e6:.0f}" for save in saves)
    text = (f"memory at most {peak / 1e9:.2f} GB, anonymous {max(first['anonymous'], second['anonymous']) / 1e9:.2f} GB; index "
            f"{first['index'] / 1e6:.1f} MB; {first['verified']:,} rows verified; filled in {first['filled_s']:.0f} s; saves of "
            f"{saves[0]['holds'] / 1e9:.1f} GB wrote {wrote} MB, with "
            f"{new / 1e6:.0f} MB of pictures come in between; loaded and verified in {second['loaded_s']:.0f} s, then the same draws")
    if os.environ.get("SHOAL_DOCS"):
        done = (f"{first['on_disk'] / 1e9:.1f} GB of prioritised rows in files, come round by a fifth, saved thrice, loaded by another "
                f"process; limit {LIMIT / 1e9:.0f} GB: {limit.kind}")
        expected = "anonymous < 1 GB; each save writes less than came in since the last"
        proofs.write("10 GB mapped in 2 GB", done, text, expected, not failures)
    assert not failures, f"{failures}\n{text}\n{first}\n{second}"
