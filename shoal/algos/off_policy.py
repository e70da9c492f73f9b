"""What algorithms that learn from memory share: a replay buffer, target networks, their settings and schedules."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal import nets, optim
from shoal.buffers.hindsight import Hindsight
from shoal.buffers.host import Host
from shoal.buffers.mapped import Mapped
from shoal.buffers.prioritised import Prioritised
from shoal.buffers.shards import Shards
from shoal.buffers.uniform import Uniform
from shoal.errors import ConfigError
from shoal.ops import blocks, schedules
from shoal.specs import Box, EnvSpec
from shoal.types import Array, Key, Memory, Params, Transition, Tree, pytree


@pytree
class Replay:
    """Settings and functions of every algorithm that learns from a replay buffer, whatever its function of observations is."""

    num_steps: int = 1
    """Steps each environment takes per iteration."""
    capacity: int = 100_000
    """Transitions kept for replay, over all environments."""
    start_size: int = 1_000
    """Transitions before the first update."""
    batch_size: int = 128
    """Transitions per update."""
    updates: int = 1
    """Updates for every ``update_every`` environment steps."""
    update_every: int = 1
    """Environment steps, over all environments, for every ``updates`` updates."""
    n_step: int = 1
    """Steps of reward before the bootstrap."""
    store: str = "device"
    """Where they are kept: device, host (the computer's memory) or mapped (files in the run folder)."""
    memory_limit: float = float("inf")
    """GiB of memory that they may take; a mapped store takes its room on the disk."""
    shards: int = 1
    """Buffers that they are spread over by chunks, which are then cut off at their last step; drawn from as one."""
    routing: str = "round_robin"
    """shards: where a chunk goes: round_robin (in turn), least_loaded (where there is least) or lane (always to the same for a lane)."""
    prioritised: bool = False
    """Replay what was learned most from more often."""
    priority_alpha: float = 0.6
    """prioritised: how much priorities count; 0 is uniform."""
    priority_beta: float = 0.4
    """prioritised: share of the bias that weights take back at first; it rises to 1 over the horizon."""
    hindsight: str = "none"
    """Put in goals that were reached afterwards: future, final or episode, by which step they are taken from; none without."""
    hindsight_goals: int = 4
    """hindsight: draws with such a goal, for every one with its own."""
    learning_rate: float = 1e-3
    """Step size of the optimiser, before its schedule."""
    learning_rate_schedule: str = "constant"
    """How the step size changes up to the horizon: constant, linear, cosine or exponential."""
    horizon: float = float("inf")
    """Environment steps over which schedules run; the budget where it is not given."""
    discount: float = 0.99
    """How much a reward one step later counts."""
    max_grad_norm: float = float("inf")
    """Gradients are scaled down to this global norm; inf for none."""
    optimiser: str = "adam"
    """adam, adamw, sgd or rmsprop."""
    epsilon: float = 1e-8
    """The optimiser's guard against division by zero."""
    l2: float = 0.0
    """Weight decay."""

    KEPT: ClassVar[tuple[str, ...]] = (
        "capacity", "start_size", "batch_size", "updates", "update_every", "n_step", "store", "memory_limit", "shards", "routing",
        "prioritised", "priority_alpha", "priority_beta", "hindsight", "hindsight_goals",
    )  # what ``replay=`` may say
    RANGES: ClassVar[dict] = {
        "num_steps": (1, 1_000_000), "capacity": (1, 2**31 - 1), "start_size": (1, 2**31 - 1), "batch_size": (1, 2**20),
        "updates": (1, 1_000_000), "update_every": (1, 1_000_000_000), "n_step": (1, 1_000), "priority_alpha": (0, 1),
        "priority_beta": (0, 1), "learning_rate": (0, 1e3), "horizon": (0, float("inf")), "discount": (0, 1),
        "max_grad_norm": (0, float("inf")), "epsilon": (0, 1), "l2": (0, 1e3), "memory_limit": (1e-6, float("inf")),
        "hindsight_goals": (1, 1_000), "shards": (1, 4096),
    }
    CHOICES: ClassVar[dict] = {
        "store": ("device", "host", "mapped"), "routing": ("round_robin", "least_loaded", "lane"),
        "hindsight": ("none", "future", "final", "episode"),
        "learning_rate_schedule": ("constant", "linear", "cosine", "exponential"),
        "optimiser": ("adam", "adamw", "sgd", "rmsprop"),
    }

    def buffer(self, spec: EnvSpec) -> Any:
        kept = self._kept()
        stored: Any = kept if self.store == "device" else Mapped(kept) if self.store == "mapped" else Host(kept)
        return stored if self.shards == 1 else Shards(stored, num=self.shards, routing=self.routing)

    def _kept(self) -> Uniform:
        plain: dict[str, Any] = {"capacity": self.capacity, "batch_size": self.batch_size, "start": self.start_size, "n_step": self.n_step,
                 "updates": self.updates, "every": self.update_every, "discount": self.discount, "limit": self.memory_limit * 2.0**30}
        if self.hindsight != "none":
            if self.prioritised:
                raise ConfigError("prioritised: hindsight draws uniformly; set one of the two")
            if self.shards > 1:
                raise ConfigError(f"shards = {self.shards}: a pool cuts episodes that hindsight needs whole; set one of the two")
            return Hindsight(**plain, goals=self.hindsight_goals, choice=self.hindsight)
        if not self.prioritised:
            return Uniform(**plain)
        rising: Any = jnp.maximum((self.horizon - self.start_size) * self.updates / self.update_every, 1.0)
        return Prioritised(**plain, alpha=self.priority_alpha, beta=self.priority_beta, beta_updates=rising)

    def memory(self, spec: EnvSpec, batch: int) -> Memory:
        return ()

    def done(self, count: Array, steps: float) -> Array:
        """The share of the horizon that lies behind after ``count`` updates, one for every ``steps`` environment steps."""
        return (self.start_size + count * steps) / self.horizon

    def rate(self, count: Array, steps: float) -> Array:
        return self.learning_rate * schedules.factor(self.learning_rate_schedule, self.done(count, steps))

    def step(self, params: Params, grads: Params, optimiser: Tree, rate: Array) -> tuple[Params, Tree]:
        """New weights and optimiser state after one step down ``grads``."""
        return optim.step(self.optimiser, params, grads, optimiser, learning_rate=rate, max_grad_norm=self.max_grad_norm, l2=self.l2,
                          epsilon=self.epsilon)


@pytree
class OffPolicy(Replay):
    """Settings and functions of those among them that learn networks."""

    net: str = "auto"
    """Network, by registered name. auto: cnn for images, else mlp."""
    hidden: tuple[int, ...] = (64, 64)
    """Units in each hidden layer."""
    activation: str = "relu"
    """tanh, relu, elu, gelu, silu or identity."""
    init_scheme: str = "he"
    """Initial weights: orthogonal, xavier, he, lecun or narrow (uniform, the smallest)."""
    channels: tuple[int, ...] = (16, 32)
    """cnn: channels of each convolution."""
    kernels: tuple[int, ...] = (3, 3)
    """cnn: width of each convolution."""
    strides: tuple[int, ...] = (2, 2)
    """cnn: stride of each convolution."""

    RANGES: ClassVar[dict] = {"hidden": (1, 100_000), "channels": (1, 10_000), "kernels": (1, 1_000), "strides": (1, 1_000)}
    CHOICES: ClassVar[dict] = {
        "activation": ("tanh", "relu", "elu", "gelu", "silu", "identity"),
        "init_scheme": ("orthogonal", "xavier", "he", "lecun", "narrow"),
    }

    def net_options(self, spec: EnvSpec) -> dict[str, Any]:
        """What networks of this algorithm are made with, besides sizes and key."""
        return {"hidden": self.hidden, "activation": self.activation, "init": self.init_scheme, "shape": nets.image_shape(spec.obs),
                "channels": self.channels, "kernels": self.kernels, "strides": self.strides}

    def net_name(self, spec: EnvSpec) -> str:
        return nets.suited(spec.obs) if self.net == "auto" else self.net


def mixed(target: Tree, new: Tree, share: Array) -> Tree:
    """Target weights moved by ``share`` towards the new ones; 1 copies them. Lillicrap et al. (2016), section 3."""
    return jax.tree.map(lambda old, now: (1.0 - share) * old + share * now, target, new)


def pulled(target: Tree, new: Tree, share: Array, count: Array, every: int) -> Tree:
    """``mixed``, at every ``every``-th update only."""
    return mixed(target, new, jnp.where(count % every == 0, share, 0.0))


def flat(data: Transition) -> Transition:
    """A batch's rows along one axis, [R, ...]."""
    return jax.tree.map(lambda x: x.reshape((-1,) + x.shape[data.reward.ndim:]), data)


def shares(data: Transition) -> Array:
    """How much each row [R] counts in a mean over the batch."""
    return data.valid / jnp.maximum(blocks.total(data.valid), 1.0)


# bounded actions: a policy answers in [-1, 1], [..., D], whatever the box ---------------------------------------------


def check_bounded(name: str, spec: EnvSpec) -> Box:
    """The action space of an algorithm whose actions must have bounds."""
    if not isinstance(spec.action, Box) or not spec.action.bounded:
        raise ConfigError(f"env {spec.name!r}: {name} expects actions that are real numbers between bounds, got {spec.action}")
    return spec.action


def anywhere(space: Box, key: Key, shape: tuple[int, ...]) -> dict[str, Array]:
    """Actions at random for ``shape`` of them, uniform in [-1, 1), to go along with other noise; consumes ``key``."""
    return {"anywhere": jax.random.uniform(key, (*shape, space.size), minval=-1.0)}


def _scale(space: Box) -> tuple[Any, Any]:
    low, high = space.bounds()
    return 0.5 * (low + high), 0.5 * (high - low)


def to_box(space: Box, action: Array) -> Array:
    """[..., D] in [-1, 1] as an action of ``space``."""
    middle, half = _scale(space)
    return middle + half * action.reshape((*action.shape[:-1], *space.shape))


def from_box(space: Box, action: Array) -> Array:
    """The inverse of ``to_box``; a dimension without room is 0."""
    middle, half = _scale(space)
    inside = (action - middle) / np.where(half > 0, half, 1.0)
    return inside.reshape((*action.shape[:action.ndim - len(space.shape)], -1))
