"""Soft actor-critic: the policy is paid for its entropy besides its reward, and learns from replay.

Two critics learn the soft value of actions from the smaller of their targets, the policy follows the smaller of the critics, and the
price of entropy, the temperature, is set so that the policy keeps as much of it as is wanted.
Haarnoja et al. (2018b), "Soft actor-critic algorithms and applications", algorithm 1, eqs. 5, 7 and 18; for choices Christodoulou
(2019), "Soft actor-critic for discrete action settings", eqs. 10 to 12. All three gradients are taken at the same weights, so policy and
critics learn in two halves that do not wait for each other.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import heads, nets, optim, rng
from shoal.algos.off_policy import OffPolicy, anywhere, check_bounded, flat, from_box, mixed, shares, to_box
from shoal.ops import blocks, dists, losses, returns, serial
from shoal.specs import Box, Discrete, EnvSpec, num_features
from shoal.types import Acted, Array, Batch, Half, Key, Memory, Params, Role, Transition, Tree, Updated, pytree

_LOG_STD = (-20.0, 2.0)  # how far apart standard deviations may be


class Actor(eqx.Module):
    """The part that acts: all that travels to actors."""

    net: nets.Net
    log_std: Array  # []: added to the network's own; [H, D] where noise depends on the state; not used for choices
    fresh: Array  # []: 1 while actions are any at all, until the first update
    space: Any = eqx.field(static=True)
    action: Any = eqx.field(static=True)

    def features(self, obs: Tree) -> Array:
        return nets.features(self.space, obs)

    def choices(self, x: Array, mask: Array | None) -> dists.Categorical:
        choices = dists.Categorical(self.net(x))
        return choices if mask is None else choices.masked(mask)

    def state_dependent(self, x: Array) -> dists.StateDependent:
        out, latent = self.net.with_latent(x)
        return dists.StateDependent(out, self.log_std, latent)

    def squashed(self, x: Array) -> dists.SquashedGaussian:
        """The distribution of actions in [-1, 1] at features [..., F]."""
        if self.log_std.ndim:
            return dists.SquashedGaussian(*self.state_dependent(x).normal())
        out = self.net(x)
        mean, log_std = out[..., :self.action.size], out[..., self.action.size:]
        return dists.SquashedGaussian(mean, (log_std + self.log_std).clip(*_LOG_STD))


class State(NamedTuple):
    actor: Actor
    critics: heads.Several
    targets: heads.Several
    log_temperature: Array  # []
    actor_optimiser: Tree  # the temperature's, too
    critic_optimiser: Tree
    updates: Array  # [] int32


class Rows(NamedTuple):
    """What a gradient sees of a batch, [R, ...]; share 0 marks a row that counts for nothing."""

    data: Transition
    noise: Any  # [R, D] for the actions of a half, here or at the successor; None for choices
    share: Array
    weight: Array  # how much its error counts besides


@pytree
class SAC(OffPolicy):
    """Soft actor-critic, for bounded continuous actions and for choices."""

    batch_size: int = 256
    """Transitions per update."""
    learning_rate: float = 3e-4
    """Step size of the optimiser, before its schedule."""
    hidden: tuple[int, ...] = (256, 256)
    """Units in each hidden layer."""
    init_scheme: str = "narrow"
    """Initial weights: orthogonal, xavier, he, lecun or narrow (uniform, the smallest)."""
    tau: float = 0.005
    """Share of the new weights that the target critics take at every update."""
    temperature: float = 1.0
    """The price of entropy; where it is automatic, at first."""
    auto_temperature: bool = True
    """Set the temperature so that the policy keeps the entropy that is wanted."""
    target_entropy: float = -1.0
    """Continuous actions: entropy wanted per dimension, in units of half their range."""
    target_entropy_share: float = 0.98
    """Choices: entropy wanted, as a share of that of a choice at random among those allowed."""
    warm_up: bool = True
    """Take actions at random until the first update."""
    log_std: float = 0.0
    """Initial log standard deviation of continuous actions, before squashing; -3 suits state_noise."""
    state_noise: bool = False
    """Explore with noise that is a function of the state and kept for a while (gSDE); continuous actions only."""
    noise_every: int = 0
    """Steps for which state-dependent noise is kept; 0 for a whole chunk."""

    RANGES: ClassVar[dict] = {
        "tau": (0, 1), "temperature": (0, 1e6), "target_entropy": (-1e3, 1e3), "target_entropy_share": (0, 1), "log_std": (-20, 2),
        "noise_every": (0, 1_000_000),
    }

    def init(self, spec: EnvSpec, key: Key) -> State:
        """Fresh weights; consumes ``key``."""
        name, num_inputs, options = self.net_name(spec), num_features(spec.obs), self.net_options(spec)
        actor_key, critic_key = jax.random.split(key)
        make: Any
        dists.check_state_noise(self.state_noise, spec)
        if isinstance(spec.action, Discrete):
            num_outputs, make, sizes = spec.action.num, heads.Values, (num_inputs, spec.action.num)
        else:
            size = check_bounded(type(self).__name__, spec).size
            num_outputs = size if self.state_noise else 2 * size
            make, sizes = heads.Critic, (num_inputs, size)
        net = nets.make(name, num_inputs, num_outputs, key=actor_key, gain=0.01, **options)
        shape = (net.latent_size(num_inputs), num_outputs) if self.state_noise else ()
        actor = Actor(net, jnp.full(shape, self.log_std), jnp.full((), float(self.warm_up)), spec.obs, spec.action)
        critics = heads.Several(lambda key: make(name, *sizes, key=key, **options), 2, key=critic_key)
        log_temperature = jnp.log(jnp.maximum(self.temperature, 1e-8))
        actor_optimiser = optim.init(self.optimiser, (actor.net, actor.log_std, log_temperature))
        # an array of their own: the state is donated to the calls that change it
        return State(actor, critics, jax.tree.map(jnp.copy, critics), log_temperature, actor_optimiser,
                     optim.init(self.optimiser, critics), jnp.zeros((), jnp.int32))

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Tree:
        """Noise for ``shape`` actions; consumes ``key``."""
        if not isinstance(spec.action, Box):
            return {"own": dists.noise(spec.action, key, shape)}
        own, other = jax.random.split(key)
        drawn = dists.StateDependent.noise(own, shape, self.noise_every) if self.state_noise else dists.noise(spec.action, own, shape)
        return {"own": drawn} | (anywhere(spec.action, other, shape) if self.warm_up else {})

    def policy(self, state: State) -> Actor:
        return state.actor

    def act(self, params: Actor, memory: Memory, obs: Tree, role: Role, noise: Tree) -> Acted:
        x, explore = params.features(obs), 1.0 - role.greedy
        at_random = params.fresh * explore
        if isinstance(params.action, Discrete):
            logits = (1.0 - at_random)[..., None] * params.net(x)  # of equal ones the noise decides
            mask = nets.mask_of(obs)
            choices = dists.Categorical(logits) if mask is None else dists.Categorical(logits).masked(mask)
            return Acted(choices.sample(noise["own"], explore), memory, ())
        if self.state_noise:
            action = jnp.tanh(params.state_dependent(x).sample(noise["own"], explore))
        else:
            action = params.squashed(x).sample(noise["own"], explore)
        if self.warm_up:
            action = jnp.where(at_random[..., None] > 0, noise["anywhere"], action)
        return Acted(to_box(params.action, action), memory, ())

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One gradient step of critics, policy and temperature on ``batch`` [R, ...]; ``key`` draws actions."""
        first, second = self.update_policy(state, batch, key), self.update_values(state, batch, key)
        return Updated(state._replace(**first.fields, **second.fields), first.metrics | second.metrics, second.priorities)

    def update_policy(self, state: State, batch: Batch, key: Key) -> Half:
        """One gradient step of policy and temperature; ``key`` draws actions."""
        actor, temperature = state.actor, self._temperature(state.log_temperature)

        def loss(moving: Params, rows: Rows) -> tuple[Array, Array]:
            net, log_std, log_temperature = moving
            policy, entropy, wanted = self._climbed(_with(actor, net, log_std, actor.fresh), state.critics, temperature, rows)
            price = losses.temperature(log_temperature, entropy, wanted)
            lines = jax.lax.stop_gradient(jnp.stack([policy, entropy]))
            return (rows.share * (policy + price)).sum(), (lines * rows.share).sum(1)

        moving = actor.net, actor.log_std, state.log_temperature
        rows = self._rows(batch, actor, rng.fold_in(key, 0))
        grads, parts = blocks.sum_rows(lambda rows: jax.grad(loss, has_aux=True)(moving, rows), rows)
        rate = self.rate(state.updates, batch.steps)
        (net, log_std, log_temperature), optimiser = self.step(moving, grads, state.actor_optimiser, rate)
        fields = {"actor": _with(actor, net, log_std, jnp.zeros(())), "log_temperature": log_temperature, "actor_optimiser": optimiser}
        return Half(fields, {"policy_loss": parts[0], "entropy": parts[1], "temperature": temperature, "learning_rate": rate}, None)

    def update_values(self, state: State, batch: Batch, key: Key) -> Half:
        """One gradient step of the critics, whose targets follow; ``key`` draws actions at successors."""
        temperature = self._temperature(state.log_temperature)

        def loss(critics: heads.Several, rows: Rows) -> tuple[Array, tuple[Array, Array]]:
            values, target = self._judged(state.actor, critics, state.targets, temperature, rows)
            error = values - target[:, None]
            squares = 0.5 * (error**2).sum(-1)
            lines = jax.lax.stop_gradient(jnp.stack([squares, values.mean(-1)]))
            return (rows.share * rows.weight * squares).sum(), ((lines * rows.share).sum(1), jnp.abs(error).mean(-1))

        def gradient(rows: Rows) -> tuple[Any, Array]:
            grads, (parts, error) = jax.grad(loss, has_aux=True)(state.critics, rows)
            return (grads, parts), error

        (grads, parts), error = blocks.sum_and_map(gradient, self._rows(batch, state.actor, rng.fold_in(key, 1)))
        critics, optimiser = self.step(state.critics, grads, state.critic_optimiser, self.rate(state.updates, batch.steps))
        fields = {"critics": critics, "targets": mixed(state.targets, critics, self.tau), "critic_optimiser": optimiser,
                  "updates": serial.held(state.updates, error) + 1}
        return Half(fields, {"value_loss": parts[0], "value": parts[1]}, error)

    def _temperature(self, log_temperature: Array) -> Array:
        return jnp.exp(log_temperature) if self.auto_temperature else jnp.asarray(self.temperature)

    def _rows(self, batch: Batch, actor: Actor, key: Key) -> Rows:
        data = flat(batch.data)
        share = shares(data)
        noise = rng.normal(key, (*share.shape, actor.action.size)) if isinstance(actor.action, Box) else None
        return Rows(data, noise, share, jnp.broadcast_to(batch.weight, share.shape))

    def _climbed(self, actor: Actor, critics: heads.Several, temperature: Array, rows: Rows) -> tuple[Array, Array, Array]:
        """The policy's loss, its entropy and that which is wanted, [R]: of a sampled action, or of all choices by their probabilities."""
        x = actor.features(rows.data.obs)
        if isinstance(actor.action, Box):
            action, log_prob = actor.squashed(x).sample_with_log_prob(rows.noise)
            wanted = jnp.full_like(log_prob, self.target_entropy * actor.action.size)
            return losses.soft_policy(log_prob, critics(x, action).min(-1), temperature), -log_prob, wanted
        mask = nets.mask_of(rows.data.obs)
        choices, best = actor.choices(x, mask), critics(x).min(-1)
        loss = -returns.soft_value(jax.nn.log_softmax(choices.logits), best, temperature)
        allowed = jnp.full_like(loss, best.shape[-1]) if mask is None else jnp.maximum((mask > 0).sum(-1), 1)
        return loss, choices.entropy(), self.target_entropy_share * jnp.log(allowed.astype(jnp.float32))

    def _judged(self, actor: Actor, critics: heads.Several, targets: heads.Several, temperature: Array, rows: Rows
                ) -> tuple[Array, Array]:
        """Values of what was done, [R, 2], and what they should be, [R]: by a sampled action, or by all choices, at the successor."""
        data, x, following = rows.data, actor.features(rows.data.obs), actor.features(rows.data.next_obs)
        if isinstance(actor.action, Box):
            action, log_prob = actor.squashed(following).sample_with_log_prob(rows.noise)
            return critics(x, from_box(actor.action, data.action)), returns.soft_q_target(
                data.reward, data.alive, targets(following, action).min(-1), log_prob, temperature, self.discount)
        choices = actor.choices(following, nets.mask_of(data.next_obs))
        value = returns.soft_value(jax.nn.log_softmax(choices.logits), targets(following).min(-1), temperature)
        return (returns.chosen(jnp.swapaxes(critics(x), -1, -2), data.action[:, None]),
                returns.td_target(data.reward, data.alive, value, self.discount))


def _with(actor: Actor, net: nets.Net, log_std: Array, fresh: Array) -> Actor:
    return Actor(net, log_std, fresh, actor.space, actor.action)
