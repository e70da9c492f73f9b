"""Proximal policy optimisation.

The policy takes several epochs of gradient steps on the data it just collected, held near the policy that collected it by a
clipped objective. Actors record actions only: log-probabilities and values are recomputed here, in one call.
Schulman et al. (2017), "Proximal policy optimization algorithms", eqs. 7 and 9; advantages as in Schulman et al. (2016), eq. 16.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import nets, optim
from shoal.buffers.rollout import Rollout
from shoal.ops import blocks, dists, losses, moments, returns, schedules, shuffle
from shoal.specs import Box, EnvSpec, num_features
from shoal.types import Acted, Array, Batch, Key, Memory, Params, Role, Tree, Updated, pytree


class Actor(eqx.Module):
    """The part that acts: all that travels to actors."""

    net: nets.Net
    log_std: Array  # [D]; [0] for choices
    moments: moments.Moments  # of observations; of nothing unless normalised
    space: Any = eqx.field(static=True)
    squash: bool = eqx.field(static=True)

    def features(self, obs: Tree) -> Array:
        return moments.normalise(self.moments, nets.features(self.space, obs))

    def dist(self, x: Array, mask: Array | None) -> Any:
        """The action distribution at features [..., F]."""
        out = self.net(x)
        if self.log_std.shape[-1]:
            return (dists.SquashedGaussian if self.squash else dists.Gaussian)(out, self.log_std)
        choices = dists.Categorical(out)
        return choices if mask is None else choices.masked(mask)


class State(NamedTuple):
    actor: Actor
    critic: nets.Net
    optimiser: Tree
    returns: moments.Moments  # of raw returns; used where rewards are normalised
    updates: Array  # [] int32


class Rows(NamedTuple):
    """What a gradient step sees of a batch, [R, ...]; weight 0 marks a row that counts for nothing."""

    features: Array
    mask: Array | None
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    weight: Array


@pytree
class PPO:
    """Proximal policy optimisation, for discrete and continuous actions."""

    num_steps: int = 128
    """Steps each environment takes per iteration."""
    num_epochs: int = 4
    """Passes over the data of an iteration."""
    num_minibatches: int = 4
    """Gradient steps per pass."""
    learning_rate: float = 2.5e-4
    """Step size of the optimiser, before its schedule."""
    learning_rate_schedule: str = "constant"
    """How the step size changes up to the horizon: constant, linear, cosine or exponential."""
    horizon: float = float("inf")
    """Environment steps over which schedules run; the budget where it is not given."""
    discount: float = 0.99
    """How much a reward one step later counts."""
    gae_lambda: float = 0.95
    """Between one-step (0) and whole-episode (1) advantages."""
    clip: float = 0.2
    """How far a probability ratio may move before its gain is cut."""
    clip_schedule: str = "constant"
    """How the clip changes up to the horizon."""
    value_clip: float = float("inf")
    """How far a value may move from its old one before its gain is cut; inf for no clipping."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus, before its schedule."""
    entropy_schedule: str = "constant"
    """How the entropy weight changes up to the horizon."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm; inf for none."""
    target_kl: float = float("inf")
    """Stop the passes of an iteration once the policy has moved this far; inf for never."""
    normalise_advantage: bool = True
    """Give each minibatch's advantages zero mean and unit variance."""
    normalise_obs: bool = False
    """Give observations zero mean and unit variance, as seen so far."""
    normalise_reward: bool = False
    """Divide rewards by the running scale of returns."""
    net: str = "mlp"
    """Network, by registered name; policy and value each have their own."""
    hidden: tuple[int, ...] = (64, 64)
    """Units in each hidden layer."""
    activation: str = "tanh"
    """tanh, relu, elu, gelu, silu or identity."""
    init_scheme: str = "orthogonal"
    """Initial weights: orthogonal, xavier, he or lecun."""
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

    RANGES: ClassVar[dict] = {
        "num_steps": (1, 1_000_000), "num_epochs": (1, 10_000), "num_minibatches": (1, 1_000_000), "learning_rate": (0, 1e3),
        "horizon": (0, float("inf")), "discount": (0, 1), "gae_lambda": (0, 1), "clip": (0, float("inf")),
        "value_clip": (0, float("inf")), "value_coef": (0, 1e6), "entropy_coef": (0, 1e6), "max_grad_norm": (0, float("inf")),
        "target_kl": (0, float("inf")), "hidden": (1, 100_000), "epsilon": (0, 1), "l2": (0, 1e3), "log_std": (-20, 10),
    }
    CHOICES: ClassVar[dict] = {
        "learning_rate_schedule": ("constant", "linear", "cosine", "exponential"),
        "clip_schedule": ("constant", "linear", "cosine", "exponential"),
        "entropy_schedule": ("constant", "linear", "cosine", "exponential"),
        "activation": ("tanh", "relu", "elu", "gelu", "silu", "identity"),
        "init_scheme": ("orthogonal", "xavier", "he", "lecun"),
        "optimiser": ("adam", "adamw", "sgd", "rmsprop"),
    }

    def init(self, spec: EnvSpec, key: Key) -> State:
        """Fresh weights; consumes ``key``."""
        num_inputs, continuous = num_features(spec.obs), isinstance(spec.action, Box)
        num_outputs = spec.action.size if isinstance(spec.action, Box) else spec.action.num
        options = {"hidden": self.hidden, "activation": self.activation, "init": self.init_scheme}
        actor_key, critic_key = jax.random.split(key)
        net = nets.make(self.net, num_inputs, num_outputs, key=actor_key, gain=0.01, **options)
        critic = nets.make(self.net, num_inputs, 1, key=critic_key, gain=1.0, **options)
        log_std = jnp.full((num_outputs if continuous else 0,), self.log_std)
        actor = Actor(net, log_std, moments.init((num_inputs,)), spec.obs, self.squash)
        return State(actor, critic, optim.init(self.optimiser, _weights(actor, critic)), moments.init(), jnp.zeros((), jnp.int32))

    def buffer(self, spec: EnvSpec) -> Rollout:
        return Rollout()

    def memory(self, spec: EnvSpec, batch: int) -> Memory:
        return ()

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Array:
        """Noise for ``shape`` actions; consumes ``key``."""
        if isinstance(spec.action, Box):
            return dists.Gaussian.noise(key, shape, spec.action.size)
        return dists.Categorical.noise(key, shape, spec.action.num)

    def policy(self, state: State) -> Actor:
        return state.actor

    def act(self, params: Actor, memory: Memory, obs: Tree, role: Role, noise: Array) -> Acted:
        dist = params.dist(params.features(obs), nets.mask_of(obs))
        return Acted(dist.sample(noise, 1.0 - role.greedy), memory, ())

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One iteration's epochs over ``batch`` [T, B, ...]; ``key`` shuffles."""
        done = state.updates * (batch.steps / self.horizon)
        rate = self.learning_rate * schedules.factor(self.learning_rate_schedule, done)
        clip = self.clip * schedules.factor(self.clip_schedule, done)
        bonus = self.entropy_coef * schedules.factor(self.entropy_schedule, done)

        rows, return_moments = self._rows(state, batch)
        total = rows.weight.shape[0]
        size = total // self.num_minibatches

        orders = jax.vmap(lambda k: shuffle.affine(k, total))(jax.random.split(key, self.num_epochs))

        def step(carry: Any, i: Array) -> tuple[Any, None]:
            weights, optimiser, sums, steps, going = carry
            order = jax.tree.map(lambda x: x[i // self.num_minibatches], orders)
            index = shuffle.take(order, i % self.num_minibatches * size, size, total)
            grads, metrics = self._gradient(weights, state.actor, jax.tree.map(lambda x: x[index], rows), clip, bonus)
            moved = optim.step(self.optimiser, weights, grads, optimiser, learning_rate=rate,
                               max_grad_norm=self.max_grad_norm, l2=self.l2, epsilon=self.epsilon)
            # past the KL limit the rest is computed and dropped: a loop of known length needs no word from the device
            weights, optimiser = jax.tree.map(lambda new, old: jnp.where(going, new, old), moved, (weights, optimiser))
            sums, steps = sums + jnp.where(going, metrics, 0.0), steps + going
            return (weights, optimiser, sums, steps, going & (metrics[_METRICS.index("approximate_kl")] <= self.target_kl)), None

        start = (_weights(state.actor, state.critic), state.optimiser, jnp.zeros(len(_METRICS)), jnp.zeros(()), jnp.ones((), bool))
        (weights, optimiser, sums, steps, _), _ = jax.lax.scan(step, start, jnp.arange(self.num_epochs * self.num_minibatches))

        metrics = {name: sums[i] / steps for i, name in enumerate(_METRICS)}
        metrics |= {"learning_rate": rate, "gradient_steps": steps,
                    "explained_variance": returns.explained_variance(rows.value, rows.target, rows.weight)}
        net, log_std, critic = weights
        seen = state.actor.moments
        if self.normalise_obs:
            x = nets.features(state.actor.space, batch.data.obs)
            seen = moments.merge(seen, moments.of(x.reshape(total, -1), rows.weight))
        actor = Actor(net, log_std, seen, state.actor.space, state.actor.squash)
        return Updated(State(actor, critic, optimiser, return_moments, state.updates + 1), metrics, None)

    def _rows(self, state: State, batch: Batch) -> tuple[Rows, moments.Moments]:
        """Everything about the batch that stays fixed while the weights move."""
        data, shape = batch.data, batch.data.reward.shape

        def flat(x: Array) -> Array:
            return x.reshape((-1,) + x.shape[len(shape):])

        x, mask = flat(state.actor.features(data.obs)), nets.mask_of(data.obs)
        mask = mask if mask is None else flat(mask)
        value = blocks.map_rows(lambda x: state.critic(x)[:, 0], x)
        following = flat(state.actor.features(data.next_obs))
        next_value = blocks.map_successors(lambda x: state.critic(x)[:, 0], following, value, data.last.reshape(shape[0], -1))
        # the behaviour's own normaliser, in case it is older than the learner's
        acted = flat(batch.behaviour.features(data.obs)), mask, flat(data.action)
        log_prob = blocks.map_rows(lambda r: batch.behaviour.dist(r[0], r[1]).log_prob(r[2]), acted)

        value, next_value = value.reshape(shape), next_value.reshape(shape)
        reward, return_moments = data.reward, state.returns
        if self.normalise_reward:
            scale = moments.root_mean_square(state.returns)
            raw = returns.discounted_returns(data.reward, data.alive, data.last, scale * next_value, self.discount)
            return_moments = moments.merge(state.returns, moments.of(flat(raw), flat(data.valid)))
            reward = data.reward / moments.root_mean_square(return_moments)
        advantage = returns.gae(reward, data.alive, data.last, value, next_value, self.discount, self.gae_lambda)
        if self.normalise_advantage:  # centred here, so that a minibatch needs one pass over its own
            centred = advantage - (data.valid * advantage).sum() / jnp.maximum(data.valid.sum(), 1.0)
        else:
            centred = advantage
        rows = Rows(x, mask, flat(data.action), log_prob, flat(value), flat(centred), flat(advantage + value), flat(data.valid))
        return rows, return_moments

    def _gradient(self, weights: Params, actor: Actor, rows: Rows, clip: Array, bonus: Array) -> tuple[Params, Array]:
        """The gradient of the loss over one minibatch, and its metrics."""
        if self.normalise_advantage:
            total, first, second = (rows.weight * jnp.stack([jnp.ones_like(rows.weight), rows.advantage, rows.advantage**2])).sum(1)
            total = jnp.maximum(total, 1.0)
            mean = first / total
            scale = jnp.sqrt(jnp.maximum(second / total - mean**2, 0.0)) + 1e-8
            rows = rows._replace(advantage=(rows.advantage - mean) / scale)
        else:
            total = jnp.maximum(rows.weight.sum(), 1.0)

        def loss(weights: Params, rows: Rows) -> tuple[Array, Array]:
            net, log_std, critic = weights
            dist = Actor(net, log_std, actor.moments, actor.space, actor.squash).dist(rows.features, rows.mask)
            log_ratio = dist.log_prob(rows.action) - rows.log_prob
            policy = losses.clipped_surrogate(log_ratio, rows.advantage, clip)
            error = losses.clipped_value(critic(rows.features)[:, 0], rows.value, rows.target, self.value_clip)
            entropy = dist.entropy()
            share = rows.weight / total
            moved = jnp.abs(jnp.expm1(log_ratio)) > clip
            metrics = (jnp.stack([policy, error, entropy, losses.approximate_kl(log_ratio), moved.astype(jnp.float32)]) * share).sum(1)
            return (share * (policy + self.value_coef * error - bonus * entropy)).sum(), jax.lax.stop_gradient(metrics)

        return blocks.sum_rows(lambda rows: jax.grad(loss, has_aux=True)(weights, rows), rows)


_METRICS = ("policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction")


def _weights(actor: Actor, critic: nets.Net) -> Params:
    """What the optimiser moves."""
    return actor.net, actor.log_std, critic
