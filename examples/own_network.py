"""A network of your own: any equinox module that maps a vector of features to a vector of outputs, registered under a name.

    python examples/own_network.py --steps 20000
"""

from __future__ import annotations

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp

import shoal
from shoal.nets import Linear
from shoal.types import Array, Key


class Residual(eqx.Module):
    """Two layers whose output is added to their input."""

    first: Linear
    second: Linear
    last: Linear

    def __init__(self, num_inputs: int, num_outputs: int, *, gain: float = 1.0, key: Key):
        keys = jax.random.split(key, 3)
        self.first = Linear(num_inputs, 32, init="orthogonal", gain=1.4, key=keys[0])
        self.second = Linear(32, 32, init="orthogonal", gain=1.4, key=keys[1])
        self.last = Linear(32, num_outputs, init="orthogonal", gain=gain, key=keys[2])

    def __call__(self, x: Array) -> Array:
        x = jnp.tanh(self.first(x))
        return self.last(x + jnp.tanh(self.second(x)))


shoal.register(net={"residual": Residual})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()

    agent = shoal.PPO(net="residual", num_steps=32, num_epochs=10, learning_rate=1e-3)
    run = shoal.train(agent, "cartpole", steps=args.steps, seed=1)
    print(f"score of the residual network after {run.result['steps']} steps: {run.result['eval_return']:.1f} of at most 500")


if __name__ == "__main__":
    main()
