"""Deep Q-learning: a network learns the value of every action from replayed transitions, and acts by the largest.

Mnih et al. (2015), "Human-level control through deep reinforcement learning", algorithm 1. With it, each by a setting: double (Van
Hasselt et al. 2016), duelling (Wang et al. 2016), noisy layers (Fortunato et al. 2018), prioritised replay (Schaul et al. 2016), n-step
rewards, and noise on weights (Plappert et al. 2018): all parts of Rainbow (Hessel et al. 2018) but its distribution, see ``qr_dqn``.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from shoal import heads, nets, optim
from shoal.algos.off_policy import OffPolicy, pulled
from shoal.errors import ConfigError
from shoal.ops import blocks, dists, explore, losses, returns, schedules
from shoal.specs import Discrete, EnvSpec, num_features
from shoal.types import Acted, Array, Batch, Key, Memory, Metrics, Role, Transition, Tree, Updated, pytree


class Wobble(NamedTuple):
    """Noise on weights: what actors' weights are moved by, and how far."""

    noise: Tree  # standard normal, like the head
    scale: Array  # []


class Judge(eqx.Module):
    """Values of all actions at an observation."""

    head: heads.Values
    space: Any = eqx.field(static=True)

    def features(self, obs: Tree) -> Array:
        return nets.features(self.space, obs)


class Player(eqx.Module):
    """All that travels to actors."""

    judge: Judge
    moved: Any  # the head with noise on its weights; () without
    level: Array  # []: epsilon or temperature, as of now


class State(NamedTuple):
    judge: Judge
    target: heads.Values
    optimiser: Tree
    wobble: Any  # Wobble, or ()
    updates: Array  # [] int32


class Rows(NamedTuple):
    """What the gradient sees of a batch, [B, ...]; share 0 marks a row that counts for nothing."""

    features: Array
    action: Array
    target: Array
    share: Array


@pytree
class DQN(OffPolicy):
    """Deep Q-learning, plain, double, duelling, noisy, n-step or prioritised; for discrete actions."""

    learning_rate: float = 5e-4
    """Step size of the optimiser, before its schedule."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this global norm; inf for none."""
    double: bool = True
    """Choose the successor's action by the network that learns, and value it by the target network."""
    duelling: bool = False
    """A stream for the value of a state and one for what actions add to it."""
    noisy: bool = False
    """Layers with learned noise, which explore by themselves: exploration then plays no part."""
    noisy_sigma: float = 0.5
    """noisy: how much noise the layers start with."""
    exploration: str = "epsilon"
    """How actors explore: epsilon (any action, now and then), boltzmann (better ones more often) or parameter_noise."""
    epsilon_start: float = 1.0
    """Share of random actions at first; parameter_noise: what the noise is made to be as good as."""
    epsilon_end: float = 0.05
    """Share of random actions in the end."""
    temperature_start: float = 1.0
    """boltzmann: difference of value that counts, at first."""
    temperature_end: float = 0.05
    """boltzmann: difference of value that counts, in the end."""
    epsilon_fraction: float = 0.2
    """Share of the horizon after which exploration has come to its end value."""
    epsilon_schedule: str = "linear"
    """How exploration gets there: constant (stays at its start), linear, cosine or exponential."""
    lane_epsilon: bool = False
    """Lane i of N has an epsilon of its own, epsilon^(1 + lane_alpha · i / N): some explore much, most little."""
    lane_alpha: float = 7.0
    """lane_epsilon: how much lanes differ."""
    noise_scale: float = 0.05
    """parameter_noise: its first standard deviation; it adapts from there."""
    noise_updates: int = 50
    """parameter_noise: updates for which actors keep the same noise."""
    target_every: int = 250
    """Updates between two changes of the target network."""
    tau: float = 1.0
    """How far the target network then moves towards the one that learns; 1 copies it."""
    huber: float = 1.0
    """Errors count by their square up to here, and in proportion beyond; inf: by their square."""

    RANGES: ClassVar[dict] = {
        "noisy_sigma": (0, 1e3), "epsilon_start": (0, 1), "epsilon_end": (0, 1), "temperature_start": (0, 1e6), "temperature_end": (0, 1e6),
        "epsilon_fraction": (1e-6, 1), "lane_alpha": (0, 1e3), "noise_scale": (1e-6, 1e3), "noise_updates": (1, 1_000_000),
        "target_every": (1, 1_000_000_000), "tau": (0, 1), "huber": (1e-6, float("inf")),
    }
    CHOICES: ClassVar[dict] = {
        "exploration": ("epsilon", "boltzmann", "parameter_noise"), "epsilon_schedule": ("constant", "linear", "cosine", "exponential"),
    }

    def init(self, spec: EnvSpec, key: Key) -> State:
        """Fresh weights; consumes ``key``."""
        head_key, noise_key = jax.random.split(key)
        head = self._head(spec, head_key)
        wobble = Wobble(explore.normal_like(noise_key, head), jnp.asarray(self.noise_scale, jnp.float32)) if self._wobbles else ()
        return State(Judge(head, spec.obs), head, optim.init(self.optimiser, head), wobble, jnp.zeros((), jnp.int32))

    def _head(self, spec: EnvSpec, key: Key, **more: Any) -> heads.Values:
        return heads.Values(self.net_name(spec), num_features(spec.obs), num_choices(spec), duelling=self.duelling, noisy=self.noisy,
                            sigma=self.noisy_sigma, key=key, **self.net_options(spec), **more)

    @property
    def _wobbles(self) -> bool:
        return self.exploration == "parameter_noise" and not self.noisy

    def draw(self, spec: EnvSpec, key: Key, shape: tuple[int, ...]) -> Array:
        """Noise for ``shape`` actions; consumes ``key``."""
        if self.noisy:
            return jax.random.normal(key, (*shape, jax.eval_shape(lambda: self._head(spec, key)).num_noise))
        if self.exploration == "boltzmann":
            return jax.random.gumbel(key, (*shape, num_choices(spec)))
        return explore.coins(key, shape)

    def policy(self, state: State) -> Player:
        level = self.level(state.updates)
        if not self._wobbles:
            return Player(state.judge, (), level)
        # weights that learned nothing yet are no policy to explore around: until then any action will do
        return Player(state.judge, explore.perturb(state.judge.head, *state.wobble), (state.updates == 0).astype(jnp.float32))

    def act(self, params: Player, memory: Memory, obs: Tree, role: Role, noise: Array) -> Acted:
        x, mask, explores = params.judge.features(obs), nets.mask_of(obs), 1.0 - role.greedy
        if self.noisy:
            values = self.expected(params.judge.head(x, noise * explores[:, None]))
            return Acted(dists.argmax(explore.allowed(values, mask)), memory, ())
        values = self.expected(params.judge.head(x))
        if self.exploration == "boltzmann":
            return Acted(explore.boltzmann(values, noise, params.level * explores, mask), memory, ())
        if self._wobbles:
            values = jnp.where(role.greedy[:, None] > 0, values, self.expected(params.moved(x)))
        epsilon = explore.lane_epsilon(role.rank, params.level, self.lane_alpha) if self.lane_epsilon else params.level
        return Acted(explore.epsilon_greedy(values, noise, epsilon * explores, mask), memory, ())

    def level(self, count: Array) -> Array:
        """Epsilon, or temperature, after ``count`` updates."""
        hot = self.exploration == "boltzmann"
        start, end = (self.temperature_start, self.temperature_end) if hot else (self.epsilon_start, self.epsilon_end)
        done = self.done(count, self.update_every / self.updates) / self.epsilon_fraction
        return schedules.between(self.epsilon_schedule, start, end, done)

    def update(self, state: State, batch: Batch, key: Key) -> Updated:
        """One gradient step on ``batch`` [B, ...]; ``key`` is for noise on layers and weights."""
        data, (target_key, chooser_key, own_key, wobble_key) = batch.data, jax.random.split(key, 4)
        target = self._targets(state, data, target_key, chooser_key)
        share = data.valid * batch.weight / jnp.maximum(blocks.total(data.valid), 1.0)
        rows = Rows(state.judge.features(data.obs), data.action, target, share)
        grads, errors, metrics = self._gradient(state.judge.head, rows, self._noise(state.target, own_key))
        rate, count = self.rate(state.updates, batch.steps), state.updates + 1
        head, optimiser = self.step(state.judge.head, grads, state.optimiser, rate)
        judge = Judge(head, state.judge.space)
        wobble = self._wobbled(judge, state.wobble, rows.features, nets.mask_of(data.obs), count, wobble_key)
        metrics |= {"learning_rate": rate, "exploration": self.level(state.updates)}
        after = State(judge, pulled(state.target, head, self.tau, count, self.target_every), optimiser, wobble, count)
        return Updated(after, metrics, jnp.abs(errors) if self.prioritised else None)

    # what a head's answers mean; another kind of head says otherwise ---------------------------------------------------

    def expected(self, out: Array) -> Array:
        """Values [..., A] from what a head answers."""
        return out

    def aim(self, reward: Array, alive: Array, ahead: Array, chooser: Array, mask: Array | None) -> Array:
        """What to learn, from the target's answer ``ahead`` to the successor and the values [..., A] that choose its action."""
        return returns.double_q_target(reward, alive, ahead, chooser, self.discount, mask)

    def error(self, out: Array, action: Array, target: Array) -> tuple[Array, Array]:
        """The loss of every row, and its error, [B]."""
        error = target - returns.chosen(out, action)
        return losses.huber(error, self.huber), error

    # the parts of an update --------------------------------------------------------------------------------------------

    def _noise(self, head: heads.Values, key: Key) -> Array | None:
        """One draw for all rows of a batch: of layers, not of actions."""
        return jax.random.normal(key, (head.num_noise,)) if self.noisy else None

    def _targets(self, state: State, data: Transition, target_key: Key, chooser_key: Key) -> Array:
        of_target, of_chooser = self._noise(state.target, target_key), self._noise(state.target, chooser_key)

        def some(given: Any) -> Array:
            x, mask, reward, alive = given
            ahead = state.target(x, of_target)
            return self.aim(reward, alive, ahead, self.expected(state.judge.head(x, of_chooser) if self.double else ahead), mask)

        following = state.judge.features(data.next_obs)
        return blocks.map_rows(some, (following, nets.mask_of(data.next_obs), data.reward, data.alive))

    def _gradient(self, head: heads.Values, rows: Rows, noise: Array | None) -> tuple[heads.Values, Array, Metrics]:
        """The gradient of the loss, every row's error before the step, and the parts of the loss."""

        def loss(head: heads.Values, rows: Rows) -> tuple[Array, Array]:
            out = head(rows.features, noise)
            lost, error = self.error(out, rows.action, rows.target)
            value = returns.chosen(self.expected(out), rows.action)
            return (rows.share * lost).sum(), jax.lax.stop_gradient((jnp.stack([lost, jnp.abs(error), value]) * rows.share).sum(1))

        grads, parts = blocks.sum_rows(lambda rows: jax.grad(loss, has_aux=True)(head, rows), rows)
        # the same forward pass again, of which the compiler makes one; blocks keep only sums
        errors = blocks.map_rows(lambda rows: self.error(head(rows.features, noise), rows.action, rows.target)[1], rows)
        return grads, errors, dict(zip(("value_loss", "td_error", "value"), parts, strict=True))

    def _wobbled(self, judge: Judge, wobble: Any, x: Array, mask: Array | None, count: Array, key: Key) -> Any:
        """New noise on weights every so many updates, larger or smaller by how much the old one changed the policy."""
        if not self._wobbles:
            return ()

        def distance(given: tuple[Array, Array | None]) -> Array:
            values, moved = (self.expected(head(given[0])) for head in (judge.head, explore.perturb(judge.head, *wobble)))
            return explore.values_distance(values, moved, given[1])

        def renew(_: None) -> Wobble:
            wanted = explore.epsilon_distance(self.level(count), judge.head.num_actions)
            mean = blocks.total(blocks.map_rows(distance, (x, mask))) / x.shape[0]
            return Wobble(explore.normal_like(key, judge.head), explore.adapt_scale(wobble.scale, mean, wanted))

        return jax.lax.cond(count % self.noise_updates == 0, renew, lambda _: wobble, None)


def num_choices(spec: EnvSpec) -> int:
    """How many actions there are to value."""
    if not isinstance(spec.action, Discrete):
        raise ConfigError(f"action of {spec.name!r} is a {type(spec.action).__name__}: values of actions expect Discrete")
    return spec.action.num
