"""What a buffer refuses, used by hand: by name, with the value, and before anything is written."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_streams import SPEC, chunk

from shoal.buffers.host import Host
from shoal.buffers.mapped import Mapped
from shoal.buffers.prioritised import Prioritised
from shoal.buffers.shards import Shards
from shoal.buffers.uniform import Uniform
from shoal.errors import ConfigError, DivergedError, EnvError

SIZES = SPEC, 6, 2, 4  # 2 lanes of 3 environments, chunks of 4 steps
KINDS = {"device": lambda kept, _: kept, "host": lambda kept, _: Host(kept),
         "mapped": lambda kept, folder: Mapped(kept, str(folder / "rows")),
         "pool": lambda kept, _: Shards(Host(kept), num=3)}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_rows_and_priorities_by_hand(kind, tmp_path):
    buffer = KINDS[kind](Prioritised(capacity=96, batch_size=8, start=13), tmp_path)
    state = buffer.add(buffer.init(*SIZES), 0, chunk(0, 0, 4, 3))
    with pytest.raises(ConfigError, match="start = 13: sampled with 12 rows in the buffer"):
        buffer.sample(state, jax.random.key(0))
    good = chunk(1, 0, 4, 3)
    for bad, why in ((good._replace(reward=np.zeros((4, 2), np.float32)), r"transition\.reward: shape \(4, 2\), expected \(4, 3\)"),
                     (good._replace(obs=np.zeros((4, 3, 3), np.float64)), r"transition\.obs: dtype float64, expected float32"),
                     (good._replace(last=np.zeros((4, 3), np.float32)), r"transition\.last: dtype float32, expected bool"),
                     (good._replace(extras=np.zeros((4, 3))), "transition: its fields are")):
        with pytest.raises(EnvError, match=why):
            buffer.add(state, 1, bad)
    state, drawn = buffer.sample(buffer.add(state, 1, good), jax.random.key(0))
    assert float(drawn.weight.min()) > 0
    for wrong in (np.nan, np.inf, -1.0):
        with pytest.raises(DivergedError, match=rf"priorities\[2\] = {wrong}: expected a finite number of at least 0"):
            buffer.update(state, drawn.ticket, jnp.ones(8).at[2].set(wrong))


@pytest.mark.parametrize(("fields", "why"), [
    ({"batch_size": 97}, "batch_size = 97: larger than the buffer, which holds 96"),
    ({"start": 97}, "start = 97: an algorithm's start_size, more than the buffer ever holds, 96"),
    ({"n_step": 14}, "n_step = 14: with a chunk of 4 that is 17 steps; capacity = 96 keeps 16 of each"),
    ({"length": 14}, "length = 14: with a chunk of 4 that is 17 steps; capacity = 96 keeps 16 of each"),
    ({"limit": 100.0}, r"capacity = 96: .* MiB of memory for 96 rows, more than the 0\.0 MiB there are")])
def test_sizes_that_cannot_work(fields, why):
    buffer = Uniform(**({"capacity": 96, "batch_size": 8, "start": 1} | fields))
    for each in (buffer, Host(buffer)):
        with pytest.raises(ConfigError, match=why):
            each.check(*SIZES)
    assert Uniform(capacity=96, batch_size=96, start=96, n_step=13).check(*SIZES) > 0


def test_compiled_code_counts_what_it_cannot_refuse():
    buffer = Prioritised(capacity=96, batch_size=8, start=1)
    state, drawn = jax.jit(buffer.sample)(buffer.add(buffer.init(*SIZES), 0, chunk(0, 0, 4, 3)), jax.random.key(0))
    after = jax.jit(buffer.update)(state, drawn.ticket, jnp.ones(8).at[2].set(jnp.nan).at[5].set(-1.0))
    seen = {name: float(x) for name, x in buffer.metrics(after).items()}
    assert seen == {"replay_rows": 12, "priorities_ignored": 0, "priorities_bad": 2}
    assert all(np.isfinite(np.asarray(level)).all() for level in after.priority.levels)
