"""Deep deterministic policy gradient: a policy without chance climbs its critic, and explores by noise on its actions.

Lillicrap et al. (2016), "Continuous control with deep reinforcement learning", algorithm 1; the gradient is that of Silver et al. (2014).
``Deterministic`` is what TD3 shares with it.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import heads, nets, optim
from shoal.algos.off_policy import OffPolicy, anywhere, check_bounded, flat, from_box, mixed, shares, to_box
from shoal.ops import blocks, dists, explore, returns
from shoal.specs import EnvSpec, num_features
from shoal.types import Acted, Array, Batch, Key, Memory, Params, Role, Transition, Tree, Updated, pytree


class Actor(eqx.Module):
    """The part that acts: all that travels to actors."""

    net: nets.Net
    fresh: Array  # []: 1 while actions are any at all, until the first update
    space: Any = eqx.field(static=True)
    action: Any = eqx.field(static=True)

    def features(self, obs: Tree) -> Array:
        return nets.features(self.space, obs)


class State(NamedTuple):
    actor: Actor
    critics: heads.Several
    target_net: nets.Net  # the policy's
    target_critics: heads.Several
    actor_optimiser: Tree
    critic_optimiser: Tree
    updates: Array  # [] int32


class Rows(NamedTuple):
    """What a gradient sees of a batch, [R, ...]; share 0 marks a row that counts for nothing."""

    features: Array
    following: Array  # features of the successor
    action: Array  # in [-1, 1]
    reward: Array
    alive: Array
    share: Array
    weight: Array  # how much its error counts besides
    noise: Array | None  # [R, D] on the target policy's action, where it has any


@pytree
class Deterministic(OffPolicy):
    """Settings and functions of algorithms whose policy answers one action, not a distribution of them."""

    hidden: tuple[int, ...] = (256, 256)
    """Units in each hidden layer."""
    init_scheme: str = "narrow"
    """Initial weights: orthogonal, xavier, he, lecun or narrow (uniform, the smallest)."""
    batch_size: int = 256
    """Transitions per update."""
    tau: float = 0.005
    """Share of the new weights that the targets take whenever they are moved."""
    noise: str = "gaussian"
    """Noise on actions: gaussian, anew at each step, or ou (Ornstein-Uhlenbeck), which lasts."""
    noise_scale: float = 0.1
    """Standard deviation of the noise, in units of half the actions' range; ou: of its steps."""
    noise_theta: float = 0.15
    """ou: the share by which the noise goes back in a step."""
    warm_up: bool = True
    """Take actions at random until the first update."""

    RANGES: ClassVar[dict] = {"tau": (0, 1), "noise_scale": (0, 1e3), "noise_theta": (0, 1e3)}
    CHOICES: ClassVar[dict] = {"noise": ("gaussian", "ou")}

    def start(self, spec: EnvSpec, key: Key, num_critics: int) -> State:
        """Fresh weights, with so many critics; consumes ``key``."""
        action = check_bounded(type(self).__name__, spec)
        name, num_inputs, options = self.net_name(spec), num_features(spec.obs), self.net_options(spec)
        actor_key, critic_key = jax.random.split(key)
        net = nets.make(name, num_inputs, action.size, key=actor_key, gain=0.01, **options)
        critics = heads.Several(lambda key: heads.Critic(name, num_inputs, action.size, key=key, **options), num_critics, key=critic_key)
        actor = Actor(net, jnp.full((), float(self.warm_up)), spec.obs, action)
        # arrays of their own: the state is donated to the calls that change it
        return State(actor, critics, jax.tree.map(jnp.copy, net), jax.tree.map(jnp.copy, critics), optim.init(self.optimiser, net),
                     optim.init(self.optimiser, critics), jnp.zeros((), jnp.int32))

    def memory(self, spec: EnvSpec, batch: int) -> Memory:
        """The noise of the moment, [B, D], where it lasts; an episode starts it anew."""
        return jnp.zeros((batch, check_bounded(type(self).__name__, spec).size)) if self.noise == "ou" else ()

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Tree:
        """Standard normal noise for ``shape`` actions, and the actions themselves before the first update; consumes ``key``."""
        action, (own, other) = check_bounded(type(self).__name__, spec), jax.random.split(key)
        return {"own": dists.noise(action, own, shape)} | (anywhere(action, other, shape) if self.warm_up else {})

    def policy(self, state: State) -> Actor:
        return state.actor

    def act(self, params: Actor, memory: Memory, obs: Tree, role: Role, noise: Tree) -> Acted:
        exploring = (1.0 - role.greedy)[..., None]
        action = jnp.tanh(params.net(params.features(obs)))
        if self.noise == "ou":
            memory = explore.ornstein_uhlenbeck(memory, noise["own"], self.noise_theta, self.noise_scale)
            action = (action + exploring * memory).clip(-1.0, 1.0)
        else:
            action = explore.gaussian(action, noise["own"], exploring * self.noise_scale, -1.0, 1.0)
        if self.warm_up:
            action = jnp.where(exploring * params.fresh > 0, noise["anywhere"], action)
        return Acted(to_box(params.action, action), memory, ())

    def learn(self, state: State, batch: Batch, noise: Array | None, delay: int, scale: Array = 0.0, limit: Array = 0.0) -> Updated:
        """A gradient step of the critics; at every ``delay``-th update also one of the policy, and the targets follow.

        ``noise`` [R, D] is put on the target policy's actions, times ``scale`` and cut at ``limit``.
        """
        data, actor = flat(batch.data), state.actor
        rows = _rows(actor, data, batch.weight, noise)
        rate = self.rate(state.updates, batch.steps)
        grads, (parts, error) = self._critic_gradient(state, rows, scale, limit)
        critics, critic_optimiser = self.step(state.critics, grads, state.critic_optimiser, rate)

        def follow(old: tuple[nets.Net, Tree, nets.Net, heads.Several]) -> Any:
            net, optimiser, target_net, target_critics = old
            grads, loss = _policy_gradient(net, critics, rows)
            net, optimiser = self.step(net, grads, optimiser, rate)
            return (net, optimiser, mixed(target_net, net, self.tau), mixed(target_critics, critics, self.tau)), loss

        old = actor.net, state.actor_optimiser, state.target_net, state.target_critics
        if delay == 1:
            (net, actor_optimiser, target_net, target_critics), loss = follow(old)
        else:
            (net, actor_optimiser, target_net, target_critics), loss = jax.lax.cond(
                state.updates % delay == 0, follow, lambda old: (old, jnp.zeros(())), old)
            loss = delay * loss  # the mean over updates is then that over the policy's own
        after = State(Actor(net, jnp.zeros(()), actor.space, actor.action), critics, target_net, target_critics, actor_optimiser,
                      critic_optimiser, state.updates + 1)
        return Updated(after, {"value_loss": parts[0], "value": parts[1], "policy_loss": loss, "learning_rate": rate}, error)

    def _critic_gradient(self, state: State, rows: Rows, scale: Array, limit: Array) -> tuple[Params, tuple[Array, Array]]:
        """The gradient of the critics' loss; its mean and that of values; and each row's mean error."""

        def loss(critics: heads.Several, rows: Rows) -> tuple[Array, tuple[Array, Array]]:
            action = jnp.tanh(state.target_net(rows.following))
            if rows.noise is not None:
                action = returns.smoothed_action(action, rows.noise, scale, limit, -1.0, 1.0)
            value = state.target_critics(rows.following, action).min(-1)
            values = critics(rows.features, rows.action)
            error = values - returns.td_target(rows.reward, rows.alive, value, self.discount)[:, None]
            squares = 0.5 * (error**2).sum(-1)
            lines = jnp.stack([squares, values.mean(-1)])
            return (rows.share * rows.weight * squares).sum(), ((rows.share * lines).sum(1), jnp.abs(error).mean(-1))

        def gradient(rows: Rows) -> tuple[Any, Array]:
            grads, (parts, error) = jax.grad(loss, has_aux=True)(state.critics, rows)
            return (grads, parts), error

        (grads, parts), error = blocks.sum_and_map(gradient, rows)
        return grads, (parts, error)


def _rows(actor: Actor, data: Transition, weight: Array, noise: Array | None) -> Rows:
    share = shares(data)
    return Rows(actor.features(data.obs), actor.features(data.next_obs), from_box(actor.action, data.action), data.reward, data.alive,
                share, jnp.broadcast_to(weight, share.shape), noise)


def _policy_gradient(net: nets.Net, critics: heads.Several, rows: Rows) -> tuple[Params, Array]:
    """The gradient that climbs the first critic, and the loss. Silver et al. (2014), theorem 1; Lillicrap et al. (2016), eq. 6."""
    first = jax.tree.map(lambda x: x[0], critics.stacked)

    def loss(net: nets.Net, rows: Rows) -> tuple[Array, Array]:
        value = -(rows.share * first(rows.features, jnp.tanh(net(rows.features)))).sum()
        return value, value

    return blocks.sum_rows(lambda rows: jax.grad(loss, has_aux=True)(net, rows), rows)


@pytree
class DDPG(Deterministic):
    """Deep deterministic policy gradient, for bounded continuous actions."""

    noise: str = "ou"
    """Noise on actions: gaussian, anew at each step, or ou (Ornstein-Uhlenbeck), which lasts."""
    noise_scale: float = 0.2
    """Standard deviation of the noise, in units of half the actions' range; ou: of its steps."""

    def init(self, spec: EnvSpec, key: Key) -> State:
        """Fresh weights; consumes ``key``."""
        return self.start(spec, key, 1)

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One gradient step of critic and policy on ``batch`` [R, ...]; nothing is random."""
        return self.learn(state, batch, None, 1)
