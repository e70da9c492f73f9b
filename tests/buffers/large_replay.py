"""A life of a mapped buffer whose every row can be told from its address: filled, come round, saved three times, loaded and continued.

Run as a program, ``large_replay.py fill|resume FOLDER PLAN``, it does its part of that life and prints what it saw as a line of JSON.
Nothing of what was written is remembered: a row's picture is worked out again from a counter.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.buffers import keep
from shoal.buffers.mapped import Mapped
from shoal.buffers.prioritised import Prioritised
from shoal.specs import Box, Discrete, EnvSpec
from shoal.types import Sample, Transition

LANES, ENVS, STEPS = 2, 8, 16
SAVES = 3


class Plan(NamedTuple):
    side: int  # of a picture of four bytes a point, even
    chunks: int  # that each lane holds
    segment_bytes: int
    again: int  # chunks of each lane after it is full
    between: int  # chunks of each lane between two saves
    batch: int
    draw_every: int  # chunks

    @property
    def picture_bytes(self) -> int:
        return 4 * self.side**2

    @property
    def rows(self) -> int:
        return LANES * ENVS * STEPS * self.chunks

    @property
    def new_bytes(self) -> int:
        """Pictures that come in between two saves."""
        return LANES * ENVS * STEPS * self.between * self.picture_bytes


def picture(plan: Plan, lane: int, number: int, final: bool) -> np.ndarray:
    """Random bytes by address: ``number`` counts a lane's rows, and a final picture is not the one that the next row has."""
    words = np.random.Philox(key=5, counter=[0, lane, number, final]).random_raw(plan.picture_bytes // 8)
    return words.view(np.uint8).reshape(plan.side, plan.side, 4)


def ended(number: Any) -> Any:
    return number * 7919 % 97 == 0


def chunk(plan: Plan, lane: int, seq: int) -> Transition:
    number = (seq * STEPS * ENVS + np.arange((STEPS + 1) * ENVS)).reshape(STEPS + 1, ENVS)
    film = np.stack([[picture(plan, lane, int(n), False) for n in row] for row in number])
    last, after = ended(number[:-1]), film[1:].copy()
    for step, env in np.argwhere(last):
        after[step, env] = picture(plan, lane, int(number[step, env]), True)
    ones = np.ones((STEPS, ENVS), np.float32)
    return Transition(film[:-1], number[:-1].astype(np.int32), ones * lane, ones - last, after, last, ones, ())


def check(plan: Plan, sample: Sample, newest: int) -> None:
    """Every transition drawn against its address, to the bit; ``newest``: chunks that each lane has written."""
    batch = jax.tree.map(np.asarray, sample.batch)
    oldest = max(0, newest - plan.chunks) * STEPS * ENVS
    for place, (lane, number) in enumerate(zip(batch.reward.astype(int).tolist(), batch.action.tolist(), strict=True)):
        over = bool(ended(number))
        right = (oldest <= number < newest * STEPS * ENVS and bool(batch.last[place]) == over
                 and np.array_equal(batch.obs[place], picture(plan, lane, number, False))
                 and np.array_equal(batch.next_obs[place], picture(plan, lane, number if over else number + ENVS, over)))
        if not right:
            raise AssertionError(f"lane {lane}, row {number}, newest chunk {newest}: not as it was written")


class Life:
    """One process with the buffer."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.verified, self.digest = plan, 0, hashlib.sha256()
        self.buffer = Mapped(Prioritised(capacity=plan.rows, batch_size=plan.batch, start=1), str(folder), plan.segment_bytes)
        spec = EnvSpec("film", Box((plan.side, plan.side, 4), 0, 255, "uint8"), Discrete(2**31 - 1))
        self.files = self.buffer.buffer.nbytes(spec, LANES * ENVS, LANES, STEPS)
        self.state = self.buffer.init(spec, LANES * ENVS, LANES, STEPS)
        self.index = self.buffer.buffer.index_nbytes(self.state.form[0])

    def run(self, begin: int, end: int) -> None:
        """Chunks ``begin`` to ``end`` of each lane, with draws among them that are verified and given new priorities."""
        for seq in range(begin, end):
            for lane in range(LANES):
                self.state = self.buffer.add(self.state, lane, chunk(self.plan, lane, seq))
            if seq % self.plan.draw_every == 0 or seq == end - 1:
                self.state, sample = self.buffer.sample(self.state, jax.random.key(seq))
                check(self.plan, sample, seq + 1)
                self.verified += len(sample.weight)
                for leaf in (sample.ticket.row, sample.weight, sample.batch.obs, sample.batch.next_obs):
                    self.digest.update(np.ascontiguousarray(leaf).data)
                self.state = self.buffer.update(self.state, sample.ticket, jnp.abs(jnp.sin(sample.batch.action.astype(jnp.float32))))


def number_in(file: str, name: str) -> int:
    """The number behind ``name:`` in a file of /proc."""
    return next(int(line.split()[1]) for line in Path(file).read_text().splitlines() if line.startswith(name + ":"))


@contextmanager
def watching() -> Iterator[list[int]]:
    """Look at this process's anonymous memory all the time; the most of it, in bytes, as the only element."""
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            most[0] = max(most[0], number_in("/proc/self/status", "RssAnon") * 1024)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def inodes(folder: Path) -> dict[int, int]:
    """Bytes on the disk by inode: a file with several names counts once."""
    return {path.stat().st_ino: path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()}


def fill(plan: Plan, folder: Path) -> dict[str, Any]:
    """Fill a buffer, go round, save three times, and go on a little from there."""
    begun = time.perf_counter()
    with watching() as most:
        life = Life(plan, folder / "rows")
        seq = plan.chunks + plan.again
        life.run(0, seq)
        filled_s, saves, known = time.perf_counter() - begun, [], inodes(folder)
        for number in range(SAVES):
            if number:
                life.run(seq, seq + plan.between)
                seq += plan.between
            known |= inodes(folder)
            before, start = number_in("/proc/self/io", "write_bytes"), time.perf_counter()
            place = keep.save(folder / f"save{number}", life.state)
            held = inodes(place)
            saves.append({"holds": sum(held.values()), "new": sum(size for inode, size in held.items() if inode not in known),
                          "written": number_in("/proc/self/io", "write_bytes") - before, "seconds": time.perf_counter() - start})
        life.digest = hashlib.sha256()
        life.run(seq, seq + plan.between)
    return {"saves": saves, "draws": life.digest.hexdigest(), "verified": life.verified, "anonymous": most[0], "files": life.files,
            "index": life.index, "filled_s": filled_s, "on_disk": sum(inodes(folder / "rows").values()), "next": seq}


def resume(plan: Plan, folder: Path) -> dict[str, Any]:
    """Load what was saved last and go on as the first life did."""
    with watching() as most:
        life, start = Life(plan, folder / "again"), time.perf_counter()
        life.state = keep.load(folder / f"save{SAVES - 1}", life.state)
        loaded_s, seq = time.perf_counter() - start, plan.chunks + plan.again + (SAVES - 1) * plan.between
        life.run(seq, seq + plan.between)
    return {"draws": life.digest.hexdigest(), "verified": life.verified, "anonymous": most[0], "loaded_s": loaded_s}


def end_with_parent() -> None:
    """Do not go on filling a disk for nobody."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    part = {"fill": fill, "resume": resume}[sys.argv[1]]
    print(json.dumps(part(Plan(*json.loads(sys.argv[3])), Path(sys.argv[2]))), flush=True)
