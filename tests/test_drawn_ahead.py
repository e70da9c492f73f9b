"""Noise that is drawn for many chunks in one call has the bits that each chunk's own address gives."""

from __future__ import annotations

import jax
import numpy as np

from shoal import rng
from shoal.algos.dqn import DQN
from shoal.algos.sac import SAC
from shoal.runtime import lanes
from shoal.specs import Box, Discrete, EnvSpec


def test_noise_drawn_ahead_has_the_bits_of_each_chunks_own():
    for algorithm, action in ((DQN(num_steps=3), Discrete(2)), (SAC(num_steps=3), Box((2,), -1.0, 1.0))):
        spec, root = EnvSpec("rows", Box((4,)), action), rng.root(3)
        ahead = lanes._draw_ahead(algorithm, spec, root, np.int32(1), np.int32(8), 2, 4)
        for number in range(4):
            own = lanes._draw(algorithm, spec, root, np.int32(1), np.int32(8 + number), 2)
            jax.tree.map(lambda all_, one, i=number: np.testing.assert_array_equal(all_[i], one), ahead, own)
        first = jax.tree.leaves(ahead)[0]
        assert not np.array_equal(first[0], first[1])
