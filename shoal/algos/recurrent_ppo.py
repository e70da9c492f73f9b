"""Proximal policy optimisation with memory, for worlds that do not show all there is to know.

Policy and value each have a gated recurrent unit between the network that reads observations and their head. Learning replays whole
columns (an environment's part of a chunk) from the memory that they were entered with, cut at episode ends; minibatches are sets of
columns. Cho et al. (2014), "Learning phrase representations using RNN encoder-decoder", eqs. 5 to 8.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import nets, optim
from shoal.algos.ppo import PPO
from shoal.ops import blocks, dists, moments, schedules
from shoal.specs import Box, EnvSpec, num_features
from shoal.types import Acted, Array, Batch, Key, Memory, Params, Role, Tree, Updated, pytree


class Tower(eqx.Module):
    """Features → encoder → memory → head."""

    encoder: nets.Net
    cell: nets.GRU
    head: nets.Linear
    activation: str = eqx.field(static=True)

    def recall(self, memory: Array, x: Array, keys: Array | None) -> Array:
        """Memory [B, H] after seeing features [B, F]."""
        return self.cell(memory, nets.ACTIVATIONS[self.activation](self.encoder(x, keys)))


class RecurrentNet(eqx.Module):
    """Policy and value, each with a memory of its own: what the optimiser moves. Memory is [B, 2, H]."""

    policy: Tower
    value: Tower
    log_std: Array  # [D]; [memory, D] where noise depends on the state; [0] for choices

    def recall(self, memory: Array, x: Array, keys: Array | None = None) -> Array:
        """Both memories after seeing features [B, F]; ``keys`` drop units."""
        return jnp.stack([self.policy.recall(memory[:, 0], x, keys), self.value.recall(memory[:, 1], x, keys)], axis=1)

    def judge(self, memory: Array) -> Array:
        """The value [B] where memory stands."""
        return self.value.head(memory[:, 1])[:, 0]


class Actor(eqx.Module):
    """The part that acts: all that travels to actors."""

    net: RecurrentNet
    moments: moments.Moments
    space: Any = eqx.field(static=True)
    action: Any = eqx.field(static=True)
    squash: bool = eqx.field(static=True)

    def features(self, obs: Tree) -> Array:
        return moments.normalise(self.moments, nets.features(self.space, obs))

    def dist(self, net: RecurrentNet, memory: Array, mask: Array | None) -> Any:
        """The action distribution where memory stands at [B, 2, H]."""
        out = net.policy.head(memory[:, 0])
        if net.log_std.ndim > 1:
            return dists.StateDependent(out, net.log_std, jax.lax.stop_gradient(memory[:, 0]))
        return dists.of(self.action, out, net.log_std, self.squash, mask)


class State(NamedTuple):
    actor: Actor
    optimiser: Tree
    returns: moments.Moments
    updates: Array  # [] int32


class Columns(NamedTuple):
    """What a gradient step sees of a batch, [B, T, ...]; weight 0 marks a step that counts for nothing."""

    features: Array
    mask: Array | None
    action: Array
    last: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    weight: Array
    memory: Array  # [B, 2, H]
    ratio: Array | None = None


@pytree
class RecurrentPPO(PPO):
    """Proximal policy optimisation with memory (GRU), for observations that do not show everything."""

    hidden: tuple[int, ...] = (64,)
    """Units in each hidden layer before the memory."""
    memory_size: int = 64
    """Units of memory."""

    RANGES: ClassVar[dict] = {"memory_size": (1, 100_000)}

    def init(self, spec: EnvSpec, key: Key) -> Any:
        """Fresh weights; consumes ``key``."""
        dists.check_state_noise(self.state_noise, spec)
        width, size = self.hidden[-1] if self.hidden else self.memory_size, self.memory_size

        def tower(key: Key, num_outputs: int, gain: float) -> Tower:
            first, second, third = jax.random.split(key, 3)
            encoder = self._net(spec, width, first, gain=2**0.5, hidden=self.hidden[:-1])
            cell = nets.GRU(width, size, init=self.init_scheme, key=second)
            return Tower(encoder, cell, nets.Linear(size, num_outputs, init=self.init_scheme, gain=gain, key=third), self.activation)

        policy_key, value_key = jax.random.split(key)
        wide = (size,) if self.state_noise else ()
        log_std = jnp.full((*wide, spec.action.size), self.log_std) if isinstance(spec.action, Box) else jnp.zeros((0,))
        net = RecurrentNet(tower(policy_key, dists.num_outputs(spec.action), 0.01), tower(value_key, 1, 1.0), log_std)
        actor = Actor(net, moments.init((num_features(spec.obs),)), spec.obs, spec.action, self.squash)
        return State(actor, optim.init(self.optimiser, net), moments.init(), jnp.zeros((), jnp.int32))

    def memory(self, spec: EnvSpec, batch: int) -> Memory:
        return jnp.zeros((batch, 2, self.memory_size))

    def act(self, params: Any, memory: Memory, obs: Tree, role: Role, noise: Array) -> Acted:
        memory = params.net.recall(memory, params.features(obs))
        return Acted(params.dist(params.net, memory, nets.mask_of(obs)).sample(noise, 1.0 - role.greedy), memory, ())

    def update(self, state: Any, batch: Batch, key: Key) -> Updated:
        """One iteration's epochs over ``batch`` [T, B, ...]; ``key`` shuffles its columns."""
        done, rate, bonus = self.scheduled(state, batch.steps)
        clip = self.clip * schedules.factor(self.clip_schedule, done)
        columns, seen = self._columns(state, batch)

        def gradient(net: RecurrentNet, some: Columns, key: Key) -> tuple[Params, Array]:
            keys = jax.random.split(key, some.weight.shape) if self.dropout else None
            return self._column_gradient(net, state.actor, some, keys, clip, bonus)

        net, optimiser, metrics = self.passes(state.actor.net, state.optimiser, columns, gradient, rate, key)
        actor = Actor(net, self.observed(state, batch), state.actor.space, state.actor.action, state.actor.squash)
        return Updated(State(actor, optimiser, seen, state.updates + 1), metrics, None)

    def _columns(self, state: Any, batch: Batch) -> tuple[Columns, moments.Moments]:
        """Everything about the batch that stays fixed while the weights move."""
        data = batch.data
        x, mask = state.actor.features(data.obs), nets.mask_of(data.obs)

        def judge(memory: Array, given: Any) -> tuple[Array, tuple[Array, Array]]:
            x, following, last = given
            memory = state.actor.net.recall(memory, x)
            ahead = state.actor.net.recall(memory, following)
            return _forget(memory, last), (state.actor.net.judge(memory), state.actor.net.judge(ahead))

        def log_prob(actor: Any) -> Array:
            def recount(memory: Array, given: Any) -> tuple[Array, Array]:
                x, mask, action, last = given
                memory = actor.net.recall(memory, x)
                return _forget(memory, last), actor.dist(actor.net, memory, mask).log_prob(action)

            return _unroll(recount, batch.memory, (actor.features(data.obs), mask, data.action, data.last))[1]

        _, (value, next_value) = _unroll(judge, batch.memory, (x, state.actor.features(data.next_obs), data.last))
        held, log_ratio = log_prob(batch.behaviour), None
        if self.correction == "vtrace":
            behaviour, held = held, log_prob(state.actor)
            log_ratio = held - behaviour
        reward, seen = self.rewards(state, data, next_value)
        made = self.estimates(data, reward, value, next_value, log_ratio)
        fixed = Columns(x, mask, data.action, data.last, held, value, made.advantage, made.target, data.valid, data.valid, made.ratio)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), fixed)._replace(memory=batch.memory), seen

    def _column_gradient(self, net: RecurrentNet, actor: Any, columns: Columns, keys: Array | None, clip: Array, bonus: Array
                         ) -> tuple[Params, Array]:
        """The gradient of the loss over a set of columns, through time, and its metrics."""
        columns, total = self.scaled(columns)

        def loss(net: RecurrentNet, given: tuple[Columns, Array | None]) -> tuple[Array, Array]:
            (columns, keys), memory = given, given[0].memory
            rows, keys = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (columns._replace(memory=columns.weight), keys))

            def step(memory: Array, given: Any) -> tuple[Array, tuple[Array, Array]]:
                row, keys = given
                memory = net.recall(memory, row.features, keys)
                dist = actor.dist(net, memory, row.mask)
                value, share = net.judge(memory), row.weight / total
                return _forget(memory, row.last), self.objective(dist.log_prob(row.action), dist.entropy(), value, row, share, clip, bonus)

            _, (parts, metrics) = jax.lax.scan(step, memory, (rows, keys))
            return parts.sum(), metrics.sum(0)

        return blocks.sum_rows(lambda given: jax.grad(loss, has_aux=True)(net, given), (columns, keys))


def _forget(memory: Array, last: Array) -> Array:
    """Memory [B, 2, H], at its beginning again where an episode ended."""
    return jnp.where(last[:, None, None], 0.0, memory)


def _unroll(step: Any, memory: Array, rows: Tree) -> Any:
    """``step`` along time over [T, B, ...], in blocks of environments."""
    def turn(tree: Tree) -> Tree:
        return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tree)

    def block(given: Any) -> Any:
        memory, rows = given
        memory, out = jax.lax.scan(step, memory, turn(rows))
        return memory, turn(out)

    memory, out = blocks.map_rows(block, (memory, turn(rows)))
    return memory, turn(out)
