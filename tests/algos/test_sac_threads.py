"""Wide networks of SAC and TD3 have the same bits after a few updates for any number of XLA threads, in whole batches and in blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, json, os, sys
os.environ["NPROC"] = sys.argv[1]
import jax, jax.numpy as jnp, numpy as np
from shoal.algos.sac import SAC
from shoal.algos.td3 import TD3
from shoal.runtime.cut import on_device
from shoal.specs import Box, EnvSpec
from shoal.types import Batch, Transition

spec = EnvSpec("box", Box((3,)), Box((1,), -1.0, 1.0))
draw = np.random.default_rng(0)
answer = {}
for algorithm, rows in ((SAC(), 256), (TD3(), 300)):
    algorithm = on_device(algorithm)
    first = jax.jit(lambda a, key: a.init(spec, key))(algorithm, jax.random.key(0))
    data = Transition(*(jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in ((rows, 3), (rows, 1), (rows,))), jnp.ones(rows),
                      jnp.asarray(draw.normal(size=(rows, 3)), jnp.float32), jnp.zeros(rows, bool), jnp.ones(rows), ())
    def learn(algorithm, state):
        one = lambda i, state: algorithm.update(state, Batch(data, (), (), 1.0), jax.random.fold_in(jax.random.key(1), i)).state
        return jax.lax.fori_loop(0, 4, one, state)
    last = jax.jit(learn)(algorithm, first)
    moved = [bool((a != b).any()) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(last))]
    digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(last))).hexdigest()
    answer[type(algorithm).__name__] = [digest, sum(moved), len(moved)]
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")] if os.path.isdir("/proc/self/task") else []
print(json.dumps({"learned": answer, "pool": sum("XLAEigen" in name for name in names)}))
"""


def run(threads):
    env = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(threads)], capture_output=True, text=True, env=env, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_same_bits_for_one_thread_and_four():
    one, four = run(1), run(4)
    assert one["learned"] == four["learned"]
    for digest, moved, leaves in one["learned"].values():
        assert len(digest) == 64 and moved > leaves // 2
    if sys.platform == "linux":  # the setting must have been heard
        assert (one["pool"], four["pool"]) == (1, 4)
