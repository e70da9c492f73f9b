"""Policy and values side by side: in what order values learn, what becomes of refusals and errors, and which threads do the work."""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

import numpy as np
import pytest

from shoal.algos.sac import SAC
from shoal.envs import make
from shoal.errors import DivergedError
from shoal.ops import serial
from shoal.runtime import ported
from shoal.runtime.cut import idle, with_idle
from shoal.runtime.halves import _second_halves
from shoal.types import Limits

SMALL = SAC(num_steps=1, capacity=64, start_size=4, batch_size=8, hidden=(8,), horizon=100.0)


def add(numbers, learner, refused=0.0):
    """A half that adds its numbers' first to the second leaf."""
    return {(1,): [learner[1] + numbers[0]]}, {("refused", "sum"): np.float32([refused, learner[1] + numbers[0]])}, {}


def done_in_turn(jobs, half=add):
    asked, done = SimpleQueue(), SimpleQueue()
    for job in [*jobs, None]:
        asked.put(job)
    _second_halves(half, asked, done)
    return [done.get() for _ in jobs]


def sums(found):
    return [metrics["sum"] for _, metrics in found]


def test_values_follow_those_before_whatever_the_learner_knows_of_them():
    assert sums(done_in_turn([(False, [1], ["p", 10]), (True, [2], ["p", 10]), (True, [4], ["p", 10])])) == [11, 13, 17]


def test_values_that_follow_nothing_are_the_learners():
    assert sums(done_in_turn([(False, [1], ["p", 10]), (False, [2], ["p", 50])])) == [11, 52]


def test_refused_values_are_not_followed():
    jobs = [(False, [1], ["p", 10]), (True, [2], ["p", 10], 1.0), (True, [4], ["p", 10])]
    assert sums(done_in_turn(jobs)) == [11, 13, 15]
    assert sums(done_in_turn([(False, [2], ["p", 10], 1.0), (True, [4], ["p", 10])])) == [12, 14]


def test_an_error_is_answered_in_its_place_and_the_thread_goes_on():
    first, second = done_in_turn([(False, [1], ["p"]), (False, [1], ["p", 10])])
    assert isinstance(first, IndexError)
    assert second[1] == {"refused": 0.0, "sum": 11.0}


@pytest.fixture
def side_by_side(monkeypatch):
    monkeypatch.setattr(ported, "_LARGE", 0)

    def made(agent=SMALL):
        engine = ported.Ported(agent, make("pendulum", 20), None, num_envs=1, lane_envs=1)
        engine.init(5)
        assert engine._halves is not None
        return engine

    return made


def run(engine, iterations):
    return engine.run(Limits(iterations, 2**30, math.inf)).iterations


def values_threads():
    return [t for t in threading.enumerate() if t.name == "shoal-values"]


def test_nothing_is_under_way_once_too_many_updates_were_refused(side_by_side):
    engine = side_by_side(SAC(num_steps=1, capacity=64, start_size=4, batch_size=8, hidden=(8,), horizon=100.0, learning_rate=1e38))
    with pytest.raises(DivergedError):
        while True:
            run(engine, 1)
    assert engine._halves._under_way == 0
    before = engine.learner()
    assert all(np.isfinite(x).all() for x in before.values())
    np.testing.assert_equal(engine.learner(), before)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
def test_the_thread_ends_with_its_engine(side_by_side, closed):
    before = len(values_threads())
    engine = side_by_side()
    for _ in range(8):
        run(engine, 1)
    assert len(values_threads()) == before + 1
    if closed:
        engine.close()
    else:
        del engine
        gc.collect()
    deadline = time.monotonic() + 20
    while len(values_threads()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(values_threads()) == before


def test_a_process_ends_while_values_learn():
    code = """
import threading, _thread
from shoal.runtime import device, ported
device.prepare("cpu", 1)
from shoal import SAC
from shoal.envs import make
from shoal.types import Limits
engine = ported.Ported(SAC(num_steps=1, capacity=400, start_size=260), make("pendulum", 20), None, num_envs=1, lane_envs=1)
engine.init(5)
while engine._open is None:
    engine._iterate()
print("learning", engine._halves._under_way, flush=True)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (found.returncode, found.stdout.split(), found.stderr) == (0, ["learning", "1"], "")


def test_idle_numbers_are_compiled_in():
    agent = SAC(max_grad_norm=math.inf, l2=0.0, horizon=100.0)
    plain, also = idle(agent), idle(agent, l2=0.0)
    assert [x for x in plain if x is not None] == [math.inf] * plain.count(math.inf) and plain.count(math.inf) >= 1
    assert [x for x in also if x is not None].count(0.0) == 1
    assert idle(SAC(l2=0.5, horizon=100.0), l2=0.0).count(0.0) == 0
    assert with_idle(["limit", "decay", "rate"], (math.inf, 0.0, None)) == [math.inf, 0.0, "rate"]


LEARN = """
import json, os, resource, sys
import shoal
from shoal.runtime import device
device.prepare("cpu", 1)
from shoal.runtime import ported

class Enough(Exception): pass

def spent():
    found = {}
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name, open(f"/proc/self/task/{task}/schedstat") as stat:
            name = name.read().strip()
            found[name] = found.get(name, 0) + int(stat.read().split()[0])
    return found, resource.getrusage(resource.RUSAGE_SELF).ru_minflt

iterate, seen = ported.Ported._iterate, []

def counted(self):
    if self._iteration in (900, 1300):
        assert self._halves is not None
        seen.append(spent())
    if len(seen) == 2:
        raise Enough
    return iterate(self)

ported.Ported._iterate = counted
agent = shoal.SAC(num_steps=1, start_size=300, updates=1, update_every=1, horizon=1e12)
try:
    shoal.MainLoop("Pendulum-v1", agent, path="ported", num_envs=1, device="cpu", quiet=True, out=sys.argv[1]).run(steps=10**6)
except Enough:
    pass
(before, faults), (after, more) = seen
print(json.dumps({"threads": {name: after[name] - before.get(name, 0) for name in after}, "faults": (more - faults) / 400}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_each_half_learns_on_the_thread_that_called_it_and_memory_is_kept(tmp_path):
    """XLA's own thread takes no part: it would take whole halves, one after the other. Nor does the system give and take memory."""
    said = subprocess.run([sys.executable, "-c", LEARN, str(tmp_path / "run")], capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(said.stdout.splitlines()[-1])
    total = sum(found["threads"].values())
    pool = sum(ns for name, ns in found["threads"].items() if "XLAEigen" in name)
    assert total > 400 * 1e6, found  # an update is more than a millisecond's work
    assert pool < (0.3 if serial.ELSEWHERE else 0.05) * total, found  # later versions still hand over a sum of the critics
    assert found["faults"] < 10, found
