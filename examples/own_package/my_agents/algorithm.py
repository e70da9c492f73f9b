"""Advantage-weighted regression: imitate your own actions, the more the better they turned out.

Peng et al. (2019), "Advantage-weighted regression: simple and scalable off-policy reinforcement learning", eq. 10, on fresh data.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from shoal import nets
from shoal.buffers.rollout import Rollout
from shoal.errors import ConfigError
from shoal.ops import blocks, dists, returns
from shoal.specs import Discrete, EnvSpec, Space, num_features
from shoal.types import Acted, Array, Batch, Key, Role, Tree, Updated, pytree


class Head(eqx.Module):
    net: nets.Net
    space: Space = eqx.field(static=True)  # of observations

    def __call__(self, obs: Tree) -> Array:
        return self.net(nets.features(self.space, obs))


class State(NamedTuple):
    heads: tuple[Head, Head]  # policy and value
    optimiser: Tree


@pytree
class AWR:
    """Advantage-weighted regression, for choices."""

    num_steps: int = 32
    """Steps each environment takes per iteration."""
    num_passes: int = 8
    """Gradient steps per iteration, each on all of its data."""
    learning_rate: float = 3e-3
    """Step size of Adam."""
    discount: float = 0.99
    """How much a reward one step later counts."""
    gae_lambda: float = 0.95
    """Between one-step (0) and whole-episode (1) advantages."""
    temperature: float = 0.5
    """An advantage this large makes an action count e times as much."""
    net: str = "mlp"
    """Network, by registered name."""

    RANGES: ClassVar[dict] = {"num_steps": (1, 10_000), "num_passes": (1, 1_000), "temperature": (1e-3, 1e3), "discount": (0, 1)}

    def init(self, spec: EnvSpec, key: Key) -> State:
        if not isinstance(spec.action, Discrete):
            raise ConfigError(f"awr needs choices; the actions of {spec.name!r} are {type(spec.action).__name__}")
        keys, size = jax.random.split(key), num_features(spec.obs)
        policy = Head(nets.make(self.net, size, spec.action.num, gain=0.01, key=keys[0]), spec.obs)
        value = Head(nets.make(self.net, size, 1, gain=1.0, key=keys[1]), spec.obs)
        return State((policy, value), optax.adam(1.0).init((policy, value)))

    def buffer(self, spec: EnvSpec) -> Rollout:
        return Rollout()

    def memory(self, spec: EnvSpec, batch: int) -> tuple:
        return ()

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Array:
        return dists.noise(spec.action, key, shape)

    def policy(self, state: State) -> Head:
        return state.heads[0]

    def act(self, params: Head, memory: tuple, obs: Tree, role: Role, noise: Array) -> Acted:
        return Acted(dists.Categorical(params(obs)).sample(noise, 1.0 - role.greedy), memory, ())

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        data = batch.data
        value, next_value = (state.heads[1](obs)[..., 0] for obs in (data.obs, data.next_obs))
        advantage = returns.gae(data.reward, data.alive, data.last, value, next_value, self.discount, self.gae_lambda)
        share = data.valid / data.valid.sum()
        weight = share * jnp.minimum(jnp.exp(advantage / self.temperature), 20.0)
        rows = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), (data.obs, data.action, advantage + value, weight, share))

        def loss(heads: tuple[Head, Head], rows: Tree) -> tuple[Array, Array]:
            (policy, value), (obs, action, target, weight, share) = heads, rows
            imitation = -(weight * dists.Categorical(policy(obs)).log_prob(action)).sum()
            error = 0.5 * (share * (value(obs)[:, 0] - target) ** 2).sum()
            return imitation + error, jnp.stack([imitation, error])

        def step(state: State, _: None) -> tuple[State, Array]:
            grads, parts = blocks.sum_rows(lambda rows: jax.grad(loss, has_aux=True)(state.heads, rows), rows)
            change, optimiser = optax.adam(self.learning_rate).update(grads, state.optimiser)
            return State(optax.apply_updates(state.heads, change), optimiser), parts

        state, parts = jax.lax.scan(step, state, None, self.num_passes)
        return Updated(state, dict(zip(("imitation_loss", "value_loss"), parts.mean(0), strict=True)), None)
