"""DQN learns the same bits with one XLA thread and with four, from batches wide enough to be split over them."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import hashlib, sys
from shoal.runtime.device import prepare
prepare("cpu", int(sys.argv[1]))
from shoal.algos.dqn import DQN
from shoal.envs import make
from shoal.runtime.fused import Fused
from shoal.types import Limits

agent = DQN(num_steps=32, batch_size=1024, start_size=1024, capacity=4096, update_every=512, hidden=(64, 64), init_scheme="xavier",
            duelling=True, noisy=True, prioritised=True, n_step=3, horizon=1e5)
engine = Fused(agent, make("cartpole"), num_envs=64, lane_envs=64)
engine.init(5)
start = engine.learner()
engine.run(Limits(2, 2**30, float("inf")))
end = engine.learner()
digest = hashlib.sha256(b"".join(end[name].tobytes() for name in sorted(end)))
print(digest.hexdigest(), int(end["learner.updates"]), sum(bool((start[name] != end[name]).any()) for name in end))
"""


def run(threads):
    env = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")} | {"SHOAL_CACHE": "off"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(threads)], capture_output=True, text=True, env=env, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def test_same_bits_for_any_number_of_threads():
    one, four = run(1), run(4)
    assert one == four
    assert int(one[1]) == 8 and int(one[2]) >= 20  # two iterations of four updates; all weights, targets not yet
