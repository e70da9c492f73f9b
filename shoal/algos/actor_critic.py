"""What policy-gradient algorithms share: a policy, a value, their settings, and advantages from one pass over a batch.

Actors record actions only: log-probabilities and values are recomputed by the learner, in one call.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import nets, optim
from shoal.buffers.rollout import Rollout
from shoal.ops import blocks, dists, losses, moments, returns, schedules
from shoal.specs import Box, EnvSpec, num_features
from shoal.types import Acted, Array, Batch, Fixed, Key, Memory, Metrics, Params, Role, Transition, Tree, Updated, pytree


class Actor(eqx.Module):
    """The part that acts: all that travels to actors."""

    net: nets.Net
    log_std: Array  # [D]; [hidden, D] where noise depends on the state; [0] for choices
    moments: moments.Moments  # of observations; of nothing unless normalised
    space: Any = eqx.field(static=True)
    action: Any = eqx.field(static=True)
    squash: bool = eqx.field(static=True)

    def features(self, obs: Tree) -> Array:
        return moments.normalise(self.moments, nets.features(self.space, obs))

    def dist(self, x: Array, mask: Array | None, keys: Array | None = None) -> Any:
        """The action distribution at features [..., F]; ``keys`` [...] drop units, where the network does."""
        if self.log_std.ndim > 1:
            out, latent = self.net.with_latent(x, keys)
            return dists.StateDependent(out, self.log_std, jax.lax.stop_gradient(latent))
        return dists.of(self.action, self.net(x, keys), self.log_std, self.squash, mask)


class State(NamedTuple):
    actor: Actor
    critic: nets.Net
    optimiser: Tree
    returns: moments.Moments  # of raw returns; used where rewards are normalised
    updates: Array  # [] int32


class Judged(NamedTuple):
    """A batch as the learner sees it before any weight moves; [T, B] and, flat, [R, ...]."""

    features: Array  # [R, F]
    mask: Array | None  # [R, A]
    action: Array  # [R, ...]
    value: Array  # [T, B]
    next_value: Array  # [T, B]
    reward: Array  # [T, B], normalised where asked for
    returns: moments.Moments


class Aim(NamedTuple):
    """What a batch is to teach, [T, B]."""

    target: Array  # of the value
    advantage: Array  # what actions are weighed by
    weight: Array  # 0 for a step that counts for nothing


class Rows(NamedTuple):
    """What the gradient sees of a batch, [R, ...]; share 0 marks a row that counts for nothing."""

    features: Array
    mask: Array | None
    action: Array
    advantage: Array
    target: Array
    share: Array


class Aux(NamedTuple):
    """What a gradient leaves for whoever applies it besides itself; small."""

    returns: moments.Moments
    observed: moments.Moments
    metrics: Metrics
    steps: Array  # [] int32: environment steps behind it


@pytree
class ActorCritic:
    """Settings and functions of every algorithm that has a policy and a value, each with a network of its own."""

    num_steps: int = 128
    """Steps each environment takes per iteration."""
    learning_rate: float = 2.5e-4
    """Step size of the optimiser, before its schedule."""
    learning_rate_schedule: str = "constant"
    """How the step size changes up to the horizon: constant, linear, cosine or exponential."""
    horizon: float = float("inf")
    """Environment steps over which schedules run; the budget where it is not given."""
    discount: float = 0.99
    """How much a reward one step later counts."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus, before its schedule."""
    entropy_schedule: str = "constant"
    """How the entropy weight changes up to the horizon."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm; inf for none."""
    normalise_obs: bool = False
    """Give observations zero mean and unit variance, as seen so far."""
    normalise_reward: bool = False
    """Divide rewards by the running scale of returns."""
    net: str = "auto"
    """Network, by registered name; policy and value each have their own. auto: cnn for images, else mlp."""
    hidden: tuple[int, ...] = (64, 64)
    """Units in each hidden layer."""
    activation: str = "tanh"
    """tanh, relu, elu, gelu, silu or identity."""
    init_scheme: str = "orthogonal"
    """Initial weights: orthogonal, xavier, he, lecun or narrow (uniform, the smallest)."""
    channels: tuple[int, ...] = (16, 32)
    """cnn: channels of each convolution."""
    kernels: tuple[int, ...] = (3, 3)
    """cnn: width of each convolution."""
    strides: tuple[int, ...] = (2, 2)
    """cnn: stride of each convolution."""
    dropout: Fixed = 0.0
    """Share of hidden units dropped while learning; acting uses all."""
    optimiser: str = "adam"
    """adam, adamw, sgd or rmsprop."""
    epsilon: float = 1e-5
    """The optimiser's guard against division by zero."""
    l2: float = 0.0
    """Weight decay."""
    log_std: float = 0.0
    """Initial log standard deviation of continuous actions, in units of half their range."""
    squash: bool = False
    """Squash continuous actions through tanh instead of clipping them."""
    state_noise: bool = False
    """Explore with noise that is a function of the state and kept for a while (gSDE); continuous actions only."""
    noise_every: int = 0
    """Steps for which state-dependent noise is kept; 0 for a whole chunk."""

    RANGES: ClassVar[dict] = {
        "num_steps": (1, 1_000_000), "learning_rate": (0, 1e3), "horizon": (0, float("inf")), "discount": (0, 1),
        "value_coef": (0, 1e6), "entropy_coef": (0, 1e6), "max_grad_norm": (0, float("inf")), "hidden": (1, 100_000),
        "channels": (1, 10_000), "kernels": (1, 1_000), "strides": (1, 1_000), "dropout": (0, 0.99), "epsilon": (0, 1),
        "l2": (0, 1e3), "log_std": (-20, 10), "noise_every": (0, 1_000_000),
    }
    CHOICES: ClassVar[dict] = {
        "learning_rate_schedule": ("constant", "linear", "cosine", "exponential"),
        "entropy_schedule": ("constant", "linear", "cosine", "exponential"),
        "activation": ("tanh", "relu", "elu", "gelu", "silu", "identity"),
        "init_scheme": ("orthogonal", "xavier", "he", "lecun", "narrow"),
        "optimiser": ("adam", "adamw", "sgd", "rmsprop"),
    }

    def init(self, spec: EnvSpec, key: Key) -> State:
        """Fresh weights; consumes ``key``."""
        dists.check_state_noise(self.state_noise, spec)
        num_inputs, num_outputs = num_features(spec.obs), dists.num_outputs(spec.action)
        actor_key, critic_key = jax.random.split(key)
        net = self._net(spec, num_outputs, actor_key, gain=0.01)
        critic = self._net(spec, 1, critic_key, gain=1.0)
        actor = Actor(net, self._log_std(spec, net), moments.init((num_inputs,)), spec.obs, spec.action, self.squash)
        return State(actor, critic, optim.init(self.optimiser, weights(actor, critic)), moments.init(), jnp.zeros((), jnp.int32))

    def _net(self, spec: EnvSpec, num_outputs: int, key: Key, gain: float, **changed: Any) -> nets.Net:
        options = {"hidden": self.hidden, "activation": self.activation, "init": self.init_scheme, "dropout": self.dropout,
                   "shape": nets.image_shape(spec.obs), "channels": self.channels, "kernels": self.kernels, "strides": self.strides,
                   **changed}
        name = nets.suited(spec.obs) if self.net == "auto" else self.net
        return nets.make(name, num_features(spec.obs), num_outputs, key=key, gain=gain, **options)

    def _log_std(self, spec: EnvSpec, net: nets.Net) -> Array:
        if not isinstance(spec.action, Box):
            return jnp.zeros((0,))
        shape = (net.latent_size(num_features(spec.obs)),) if self.state_noise else ()
        return jnp.full((*shape, spec.action.size), self.log_std)

    def buffer(self, spec: EnvSpec) -> Rollout:
        return Rollout()

    def memory(self, spec: EnvSpec, batch: int) -> Memory:
        return ()

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Array:
        """Noise for ``shape`` actions; consumes ``key``."""
        if self.state_noise:
            return dists.StateDependent.noise(key, shape, self.noise_every)
        return dists.noise(spec.action, key, shape)

    def policy(self, state: State) -> Actor:
        return state.actor

    def act(self, params: Actor, memory: Memory, obs: Tree, role: Role, noise: Array) -> Acted:
        dist = params.dist(params.features(obs), nets.mask_of(obs))
        return Acted(dist.sample(noise, 1.0 - role.greedy), memory, ())

    def scheduled(self, state: State, steps: float) -> tuple[Array, Array, Array]:
        """How far the run is, the learning rate, and the weight of the entropy, as of now."""
        done = state.updates * (steps / self.horizon)
        rate = self.learning_rate * schedules.factor(self.learning_rate_schedule, done)
        return done, rate, self.entropy_coef * schedules.factor(self.entropy_schedule, done)

    def judge(self, state: State, batch: Batch) -> Judged:
        """Everything about the batch that depends on the value alone."""
        data, shape = batch.data, batch.data.reward.shape
        x, mask = flat(data, state.actor.features(data.obs)), nets.mask_of(data.obs)
        value = blocks.map_rows(lambda x: state.critic(x)[:, 0], x)
        following = flat(data, state.actor.features(data.next_obs))
        next_value = blocks.map_successors(lambda x: state.critic(x)[:, 0], following, value, data.last.reshape(shape[0], -1))
        reward, seen = self.rewards(state, data, next_value.reshape(shape))
        mask = mask if mask is None else flat(data, mask)
        return Judged(x, mask, flat(data, data.action), value.reshape(shape), next_value.reshape(shape), reward, seen)

    def rewards(self, state: State, data: Transition, next_value: Array) -> tuple[Array, moments.Moments]:
        """Rewards as they are learned from, and the moments of returns that scale them."""
        if not self.normalise_reward:
            return data.reward, state.returns
        scale = moments.root_mean_square(state.returns)
        raw = returns.discounted_returns(data.reward, data.alive, data.last, scale * next_value, self.discount)
        seen = moments.merge(state.returns, moments.of(flat(data, raw), flat(data, data.valid)))
        return data.reward / moments.root_mean_square(seen), seen

    def step(self, params: Params, grads: Params, optimiser: Tree, rate: Array) -> tuple[Params, Tree]:
        """New weights and optimiser state after one step down ``grads``."""
        return optim.step(self.optimiser, params, grads, optimiser, learning_rate=rate, max_grad_norm=self.max_grad_norm, l2=self.l2,
                          epsilon=self.epsilon)

    def observed(self, state: State, batch: Batch) -> moments.Moments:
        """Moments of observations, with the batch's where they are used."""
        if not self.normalise_obs:
            return state.actor.moments
        x = flat(batch.data, nets.features(state.actor.space, batch.data.obs))
        return moments.merge(state.actor.moments, moments.of(x, flat(batch.data, batch.data.valid)))

    def moved(self, state: State, params: Params, optimiser: Tree, observed: moments.Moments, seen: moments.Moments) -> State:
        """The state with new weights and moments, one update further."""
        net, log_std, critic = params
        actor = Actor(net, log_std, observed, state.actor.space, state.actor.action, state.actor.squash)
        return State(actor, critic, optimiser, seen, state.updates + 1)


def weights(actor: Actor, critic: nets.Net) -> Params:
    """What the optimiser moves."""
    return actor.net, actor.log_std, critic


def with_weights(actor: Actor, net: nets.Net, log_std: Array) -> Actor:
    return Actor(net, log_std, actor.moments, actor.space, actor.action, actor.squash)


def flat(data: Transition, x: Array) -> Array:
    """[T, B, ...] → [R, ...]."""
    return x.reshape((-1,) + x.shape[data.reward.ndim:])


def log_prob(actor: Actor, data: Transition, seen: Judged) -> Array:
    """Of the actions taken, [R], by ``actor`` with the normaliser of its own, which may be older than the learner's."""
    acted = flat(data, actor.features(data.obs)), seen.mask, seen.action
    return blocks.map_rows(lambda r: actor.dist(r[0], r[1]).log_prob(r[2]), acted)


def one_step(algorithm: ActorCritic, state: State, grads: Params, aux: Aux) -> Updated:
    """The state one step further down ``grads``, wherever they were made."""
    _, rate, _ = algorithm.scheduled(state, aux.steps)
    moved, optimiser = algorithm.step(weights(state.actor, state.critic), grads, state.optimiser, rate)
    metrics = aux.metrics | {"learning_rate": rate, "gradient_steps": jnp.ones(())}
    return Updated(algorithm.moved(state, moved, optimiser, aux.observed, aux.returns), metrics, None)


def policy_gradient(algorithm: ActorCritic, state: State, batch: Batch, seen: Judged, aim: Aim, key: Key, normalise: bool
                    ) -> tuple[Params, Metrics]:
    """The gradient of the plain policy-gradient loss with a value beside it, and its parts; ``key`` drops units."""
    data = batch.data
    target, advantage, weight = (flat(data, x) for x in aim)
    share = weight / jnp.maximum(blocks.total(weight), 1.0)
    if normalise:
        advantage = losses.standardised(advantage, share)
    keys = jax.random.split(key, share.shape[0]) if algorithm.dropout else None
    _, _, bonus = algorithm.scheduled(state, batch.steps)

    def loss(moving: Params, given: tuple[Rows, Array | None]) -> tuple[Array, Array]:
        (net, log_std, critic), (rows, keys) = moving, given
        dist = with_weights(state.actor, net, log_std).dist(rows.features, rows.mask, keys)
        policy = losses.policy_gradient(dist.log_prob(rows.action), rows.advantage)
        error, entropy = losses.squared(critic(rows.features, keys)[:, 0], rows.target), dist.entropy()
        total = (rows.share * (policy + algorithm.value_coef * error - bonus * entropy)).sum()
        return total, jax.lax.stop_gradient((jnp.stack([policy, error, entropy]) * rows.share).sum(1))

    params = weights(state.actor, state.critic)
    rows = Rows(seen.features, seen.mask, seen.action, advantage, target, share)
    grads, parts = blocks.sum_rows(lambda given: jax.grad(loss, has_aux=True)(params, given), (rows, keys))
    metrics = dict(zip(("policy_loss", "value_loss", "entropy"), parts, strict=True))
    return grads, metrics | {"explained_variance": returns.explained_variance(flat(data, seen.value), target, weight)}
