"""Teams: an algorithm for one agent, made an algorithm for an axis of agents [T, B, N, ...].

Agents run one after the other inside the compiled program (``lax.map``), not as one wide batch (``vmap``): a batched matrix
product rounds differently for different numbers of agents, and a team of one must equal that agent in a team of n, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.buffers.rollout import Rollout
from shoal.errors import ConfigError
from shoal.specs import EnvSpec
from shoal.types import Acted, Algorithm, Array, Batch, Buffer, Key, Memory, Params, Role, Tree, Updated, pytree


def _first(tree: Tree, axis: int) -> Tree:
    """The agents' axis moved to the front."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), tree)


def _back(tree: Tree, axis: int) -> Tree:
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, axis), tree)


def _each(fn: Callable[..., Any], *trees: Tree) -> Tree:
    """``fn`` for every agent in turn, over trees with the agents' axis in front."""
    return jax.lax.map(lambda parts: fn(*parts), trees)


def _keys(key: Key, num: int) -> Array:
    """One key per agent; an agent's does not depend on how many there are."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(num))


def _draw(agent: Algorithm, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Tree:
    drawn = jax.vmap(lambda k: agent.draw(spec.single(), k, shape))(_keys(key, spec.num_agents))
    return _back(drawn, len(shape))


def _buffer(agent: Algorithm, spec: EnvSpec) -> Buffer:
    kept = agent.buffer(spec.single())
    if not isinstance(kept, Rollout):
        raise ConfigError(f"team: {type(agent).__name__} learns from replay, which is not kept for several agents; expected an algorithm "
                          "that uses chunks once, such as ppo")
    return kept


@pytree
class Independent:
    """Every agent learns by itself: own weights, buffer and key, nothing shared."""

    agent: Algorithm

    @property
    def num_steps(self) -> int:
        return self.agent.num_steps

    def init(self, spec: EnvSpec, key: Key) -> Tree:
        return _each(lambda k: self.agent.init(spec.single(), k), _keys(key, spec.num_agents))

    def buffer(self, spec: EnvSpec) -> Buffer:
        return _buffer(self.agent, spec)

    def memory(self, spec: EnvSpec, batch: int) -> Memory:
        one = self.agent.memory(spec.single(), batch)
        return jax.tree.map(lambda x: jnp.stack([x] * spec.num_agents, axis=1), one)

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Tree:
        return _draw(self.agent, spec, key, shape)

    def policy(self, state: Tree) -> Params:
        return _each(self.agent.policy, state)

    def act(self, params: Params, memory: Memory, obs: Tree, role: Role, noise: Tree) -> Acted:
        def one(params: Params, memory: Memory, obs: Tree, noise: Tree) -> Acted:
            return self.agent.act(params, memory, obs, role, noise)

        return _back(_each(one, params, _first(memory, 1), _first(obs, 1), _first(noise, 1)), 1)

    def update(self, state: Tree, batch: Batch, key: Key) -> Updated:
        num = batch.data.reward.shape[2]

        def one(state: Tree, data: Any, memory: Memory, behaviour: Params, key: Key) -> Updated:
            return self.agent.update(state, Batch(data, memory, behaviour, batch.steps), key)

        done = _each(one, state, _first(batch.data, 2), _first(batch.memory, 1), batch.behaviour, _keys(key, num))
        priorities = None if done.priorities is None else _back(done.priorities, -1)
        return Updated(done.state, jax.tree.map(lambda x: x.mean(0), done.metrics), priorities)


@pytree
class Shared:
    """All agents learn one policy, each from its own point of view: more data, one set of weights."""

    agent: Algorithm

    @property
    def num_steps(self) -> int:
        return self.agent.num_steps

    def init(self, spec: EnvSpec, key: Key) -> Tree:
        return self.agent.init(spec.single(), key)

    def buffer(self, spec: EnvSpec) -> Buffer:
        return _buffer(self.agent, spec)

    def memory(self, spec: EnvSpec, batch: int) -> Memory:
        return _unfold(self.agent.memory(spec.single(), batch * spec.num_agents), 0, spec.num_agents)

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Tree:
        return _draw(self.agent, spec, key, shape)

    def policy(self, state: Tree) -> Params:
        return self.agent.policy(state)

    def act(self, params: Params, memory: Memory, obs: Tree, role: Role, noise: Tree) -> Acted:
        num = jax.tree.leaves(obs)[0].shape[1]
        roles = jax.tree.map(lambda x: jnp.repeat(x, num), role)
        acted = self.agent.act(params, _fold(memory, 0), _fold(obs, 0), roles, _fold(noise, 0))
        return _unfold(acted, 0, num)

    def update(self, state: Tree, batch: Batch, key: Key) -> Updated:
        folded = Batch(_fold(batch.data, 1), _fold(batch.memory, 0), batch.behaviour, batch.steps)
        return self.agent.update(state, folded, key)


def _fold(tree: Tree, axis: int) -> Tree:
    """Agents beside environments: [..., B, N, ...] → [..., B·N, ...], where B is at ``axis``."""
    return jax.tree.map(lambda x: x.reshape(x.shape[:axis] + (-1,) + x.shape[axis + 2:]), tree)


def _unfold(tree: Tree, axis: int, num: int) -> Tree:
    return jax.tree.map(lambda x: x.reshape(x.shape[:axis] + (-1, num) + x.shape[axis + 1:]), tree)


def independent(agent: Algorithm) -> Independent:
    """A team in which every agent learns by itself."""
    return Independent(agent)


def shared(agent: Algorithm) -> Shared:
    """A team in which all agents learn one policy."""
    return Shared(agent)
