"""Proximal policy optimisation.

The policy takes several epochs of gradient steps on the data it just collected, held near the policy that collected it by a
clipped objective.
Schulman et al. (2017), "Proximal policy optimization algorithms", eqs. 7 and 9; advantages as in Schulman et al. (2016), eq. 16, or, for
data that an older policy made, as in Espeholt et al. (2018), section 4.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.algos.actor_critic import Actor, ActorCritic, State, flat, log_prob, weights, with_weights
from shoal.ops import blocks, losses, moments, returns, schedules, shuffle
from shoal.types import Array, Batch, Key, Metrics, Params, Transition, Tree, Updated, pytree


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
    ratio: Array | None = None  # how much the action counts, where it is corrected for being another policy's


class Estimates(NamedTuple):
    """What a batch is to teach, [T, B]."""

    advantage: Array
    target: Array
    ratio: Array | None  # what the advantage is multiplied by once it is normalised


@pytree
class PPO(ActorCritic):
    """Proximal policy optimisation, for discrete and continuous actions."""

    num_epochs: int = 4
    """Passes over the data of an iteration."""
    num_minibatches: int = 4
    """Gradient steps per pass."""
    gae_lambda: float = 0.95
    """Between one-step (0) and whole-episode (1) advantages."""
    clip: float = 0.2
    """How far a probability ratio may move before its gain is cut."""
    clip_schedule: str = "constant"
    """How the clip changes up to the horizon."""
    value_clip: float = float("inf")
    """How far a value may move from its old one before its gain is cut; inf for no clipping."""
    target_kl: float = float("inf")
    """Stop the passes of an iteration once the policy has moved this far; inf for never."""
    normalise_advantage: bool = True
    """Give each minibatch's advantages zero mean and unit variance."""
    correction: str = "none"
    """What is done about data of an older policy: none, or vtrace for values and advantages of the policy as it is now."""
    rho_bar: float = 1.0
    """vtrace: the most a step counts for being likelier now than when it was made."""
    c_bar: float = 1.0
    """vtrace: the most a step counts for in the targets of those before it; at most rho_bar."""

    RANGES: ClassVar[dict] = {
        "num_epochs": (1, 10_000), "num_minibatches": (1, 1_000_000), "gae_lambda": (0, 1), "clip": (0, float("inf")),
        "value_clip": (0, float("inf")), "target_kl": (0, float("inf")),
        "rho_bar": (0, float("inf")), "c_bar": (0, float("inf")),
    }
    CHOICES: ClassVar[dict] = {"clip_schedule": ("constant", "linear", "cosine", "exponential"), "correction": ("none", "vtrace")}

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One iteration's epochs over ``batch`` [T, B, ...]; ``key`` shuffles."""
        done, rate, bonus = self.scheduled(state, batch.steps)
        clip = self.clip * schedules.factor(self.clip_schedule, done)
        rows, return_moments = self._rows(state, batch)

        def gradient(moving: Params, some: Rows, key: Key) -> tuple[Params, Array]:
            keys = jax.random.split(key, some.weight.shape[0]) if self.dropout else None
            return self._gradient(moving, state.actor, some, keys, clip, bonus)

        moving, optimiser, metrics = self.passes(weights(state.actor, state.critic), state.optimiser, rows, gradient, rate, key)
        return Updated(self.moved(state, moving, optimiser, self.observed(state, batch), return_moments), metrics, None)

    def passes(self, moving: Params, optimiser: Tree, rows: Any, gradient_fn: Any, rate: Array, key: Key
               ) -> tuple[Params, Tree, Metrics]:
        """All epochs of gradient steps over ``rows`` [R, ...], shuffled along their first axis; and what they came to."""
        total = rows.weight.shape[0]
        size = total // self.num_minibatches
        orders = jax.vmap(lambda k: shuffle.affine(k, total))(jax.random.split(key, self.num_epochs))

        def step(carry: Any, i: Array) -> tuple[Any, None]:
            moving, optimiser, sums, steps, going = carry
            order = jax.tree.map(lambda x: x[i // self.num_minibatches], orders)
            index = shuffle.take(order, i % self.num_minibatches * size, size, total)
            grads, metrics = gradient_fn(moving, jax.tree.map(lambda x: x[index], rows), jax.random.fold_in(key, i))
            moved = self.step(moving, grads, optimiser, rate)
            # past the KL limit the rest is computed and dropped: a loop of known length needs no word from the device
            moving, optimiser = jax.tree.map(lambda new, old: jnp.where(going, new, old), moved, (moving, optimiser))
            sums, steps = sums + jnp.where(going, metrics, 0.0), steps + going
            return (moving, optimiser, sums, steps, going & (metrics[METRICS.index("approximate_kl")] <= self.target_kl)), None

        start = (moving, optimiser, jnp.zeros(len(METRICS)), jnp.zeros(()), jnp.ones((), bool))
        (moving, optimiser, sums, steps, _), _ = jax.lax.scan(step, start, jnp.arange(self.num_epochs * self.num_minibatches))
        metrics = {name: sums[i] / steps for i, name in enumerate(METRICS)}
        metrics |= {"learning_rate": rate, "gradient_steps": steps,
                    "explained_variance": returns.explained_variance(rows.value, rows.target, rows.weight)}
        return moving, optimiser, metrics

    def _rows(self, state: State, batch: Batch) -> tuple[Rows, moments.Moments]:
        """Everything about the batch that stays fixed while the weights move."""
        data, seen = batch.data, self.judge(state, batch)
        held, log_ratio = log_prob(batch.behaviour, data, seen), None
        if self.correction == "vtrace":  # held near the learner's own policy: how far it is from the behaviour is in the ratio
            behaviour, held = held, log_prob(state.actor, data, seen)
            log_ratio = (held - behaviour).reshape(data.reward.shape)
        made = self.estimates(data, seen.reward, seen.value, seen.next_value, log_ratio)
        columns = (flat(data, x) for x in (seen.value, made.advantage, made.target, data.valid))
        rows = Rows(seen.features, seen.mask, seen.action, held, *columns)
        return rows if made.ratio is None else rows._replace(ratio=flat(data, made.ratio)), seen.returns

    def estimates(self, data: Transition, reward: Array, value: Array, next_value: Array, log_ratio: Array | None) -> Estimates:
        """Advantages and targets; ``log_ratio`` [T, B], of the learner's policy to the behaviour's, where that is corrected."""
        if log_ratio is None:
            advantage, ratio = returns.gae(reward, data.alive, data.last, value, next_value, self.discount, self.gae_lambda), None
            target = advantage + value
        else:
            target, advantage, ratio = returns.vtrace(reward, data.alive, data.last, value, next_value, log_ratio, self.discount,
                                                      self.gae_lambda, rho_bar=self.rho_bar, c_bar=self.c_bar)
        if self.normalise_advantage:  # centred here, so that a minibatch needs one pass over its own
            advantage = losses.centred(advantage, data.valid)
        return Estimates(advantage, target, ratio)

    def _gradient(self, moving: Params, actor: Actor, rows: Rows, keys: Array | None, clip: Array, bonus: Array
                  ) -> tuple[Params, Array]:
        """The gradient of the loss over one minibatch, and its metrics; ``keys`` drop units."""
        rows, total = self.scaled(rows)

        def loss(moving: Params, given: tuple[Rows, Array | None]) -> tuple[Array, Array]:
            (net, log_std, critic), (rows, keys) = moving, given
            dist = with_weights(actor, net, log_std).dist(rows.features, rows.mask, keys)
            value = critic(rows.features, keys)[:, 0]
            return self.objective(dist.log_prob(rows.action), dist.entropy(), value, rows, rows.weight / total, clip, bonus)

        return blocks.sum_rows(lambda given: jax.grad(loss, has_aux=True)(moving, given), (rows, keys))

    def scaled(self, rows: Any) -> tuple[Any, Array]:
        """A minibatch with its advantages as they are learned from, and how many rows of it count."""
        if not self.normalise_advantage:
            return rows, jnp.maximum(rows.weight.sum(), 1.0)
        parts = rows.weight * jnp.stack([jnp.ones_like(rows.weight), rows.advantage, rows.advantage**2])
        total, first, second = parts.reshape(3, -1).sum(1)  # in one pass
        total = jnp.maximum(total, 1.0)
        mean = first / total
        scale = jnp.sqrt(jnp.maximum(second / total - mean**2, 0.0)) + 1e-8
        return rows._replace(advantage=(rows.advantage - mean) / scale), total

    def objective(self, log_prob: Array, entropy: Array, value: Array, rows: Any, share: Array, clip: Array, bonus: Array
                  ) -> tuple[Array, Array]:
        """The loss of rows, each counted by its ``share``, and metrics in the order of ``METRICS``."""
        log_ratio = log_prob - rows.log_prob
        advantage = rows.advantage if rows.ratio is None else rows.ratio * rows.advantage
        policy = losses.clipped_surrogate(log_ratio, advantage, clip)
        error = losses.clipped_value(value, rows.value, rows.target, self.value_clip)
        moved = jnp.abs(jnp.expm1(log_ratio)) > clip
        lines = jnp.stack([policy, error, entropy, losses.approximate_kl(log_ratio), moved.astype(jnp.float32)])
        loss = (share * (policy + self.value_coef * error - bonus * entropy)).sum()
        return loss, jax.lax.stop_gradient((lines * share).reshape(len(METRICS), -1).sum(1))


METRICS = ("policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction")
