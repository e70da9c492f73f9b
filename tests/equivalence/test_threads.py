"""The same bits for any number of XLA threads, and the setting does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, json, os, sys
path, threads, which = sys.argv[1], int(sys.argv[2]), sys.argv[3]
from shoal.runtime.device import prepare
prepare("cpu", threads)
from shoal.algos.a2c import A2C
from shoal.algos.impala import IMPALA
from shoal.algos.ppo import PPO
from shoal.algos.recurrent_ppo import RecurrentPPO
from shoal.envs import make
from shoal.testing.probes import PixelProbe
from shoal.runtime.fused import Fused
from shoal.runtime.ported import Ported
from shoal.types import Limits

# 2,048 rows in minibatches of 1,024: four blocks each, wide enough that a plain gradient is split over threads; memory and
# filters bring so many weights that a plain norm is
agents = {
    "ppo": PPO(num_steps=32, num_epochs=2, num_minibatches=2, init_scheme="xavier", normalise_obs=True, normalise_reward=True),
    "a2c": A2C(num_steps=32, hidden=(64, 64), init_scheme="xavier"),
    "impala": IMPALA(num_steps=32, hidden=(64, 64), init_scheme="xavier"),
    "recurrent_ppo": RecurrentPPO(num_steps=32, num_epochs=1, num_minibatches=2, init_scheme="xavier"),
    "cnn": PPO(num_steps=32, num_epochs=1, num_minibatches=2, init_scheme="xavier"),
}
agent = agents[which]
env, sizes = PixelProbe() if which == "cnn" else make("cartpole"), {"num_envs": 64, "lane_envs": 64}
engine = Fused(agent, env, **sizes) if path == "fused" else Ported(agent, env, None, **sizes)
engine.init(5)
start = engine.learner()
for _ in range(3):
    engine.run(Limits(1, 2**30, float("inf")))
end = engine.learner()
digest = hashlib.sha256()
for name in sorted(end):
    digest.update(name.encode() + end[name].tobytes())
moved = sum(bool((start[name] != end[name]).any()) for name in end)
tasks = "/proc/self/task"
names = [open(f"{tasks}/{task}/comm").read() for task in os.listdir(tasks)] if os.path.isdir(tasks) else []
pool = sum("XLAEigen" in name for name in names)
print(json.dumps({"hash": digest.hexdigest(), "moved": moved, "leaves": len(end), "pool": pool}))
"""


def run(path, threads, which="ppo"):
    env = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    env["SHOAL_CACHE"] = "off"  # every number of threads compiles for itself
    done = subprocess.run([sys.executable, "-c", SCRIPT, path, str(threads), which], capture_output=True, text=True, env=env,
                          timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("path", "counts"), [
    ("fused", (1, 4)), pytest.param("fused", (1, 2, 4), marks=pytest.mark.slow), pytest.param("ported", (1, 4), marks=pytest.mark.slow)])
def test_same_bits_for_any_number_of_threads(path, counts):
    results = [run(path, count) for count in counts]
    assert all(r["moved"] > r["leaves"] // 2 for r in results)
    assert len({r["hash"] for r in results}) == 1
    if sys.platform == "linux":  # where threads have names, count those of XLA's pool: the setting must have been heard
        assert [r["pool"] for r in results] == list(counts)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["recurrent_ppo", "a2c", "impala", "cnn"])
def test_same_bits_for_other_networks_and_algorithms(which):
    one, four = (run("fused", threads, which) for threads in (1, 4))
    assert one["moved"] > one["leaves"] // 2 and one["hash"] == four["hash"]
