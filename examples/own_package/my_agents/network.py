"""A network that sees its inputs as waves."""

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal.nets import Linear
from shoal.types import Array, Key


class Waves(eqx.Module):
    """Sines of learned directions, then a linear layer."""

    directions: Linear
    last: Linear

    def __init__(self, num_inputs: int, num_outputs: int, *, gain: float = 1.0, key: Key):
        first, second = jax.random.split(key)
        self.directions = Linear(num_inputs, 64, init="he", gain=1.4, key=first)
        self.last = Linear(64, num_outputs, init="orthogonal", gain=gain, key=second)

    def __call__(self, x: Array) -> Array:
        return self.last(jnp.sin(self.directions(x)))
