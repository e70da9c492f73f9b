"""Replay with goals put in afterwards: what an episode reached in the end is taken for what it had wanted.

A draw reads its row and, for ``goals`` of ``goals + 1`` of them, the row of another step of the same episode, whose achievement becomes
the goal; reward and end follow from the environment's own ``reward_fn``. Nothing is stored twice and a draw costs two reads, however
long episodes are. Andrychowicz et al. (2017), "Hindsight experience replay", section 3.3 and 4.5.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.buffers import layout, ring
from shoal.buffers.layout import Drawn, Fetched, Form
from shoal.buffers.uniform import Uniform
from shoal.errors import ConfigError
from shoal.specs import ACHIEVED, DESIRED, EnvSpec
from shoal.types import Array, Key, Transition, Tree, pytree


class Episodes(NamedTuple):
    """Where episodes begin and end, in steps since the lane began; past 2**31 they go on from below, and only differences are looked at."""

    begin: Array  # [L, slots, b] int32: of the row's episode
    end: Array  # [L, slots, b] int32: at the row that an episode begins with, its newest step so far
    running: Array  # [L, b] int32: where the running episode began


@pytree
class Hindsight(Uniform):
    """Uniform replay of single steps, most of them with a goal that was reached."""

    goals: int = 4
    """Draws with a goal put in afterwards, for every one with its own."""
    choice: str = "future"
    """Which step of the episode the goal is taken from: future (the same or a later one), final (the newest) or episode (any)."""

    RANGES: ClassVar[dict] = Uniform.RANGES | {"goals": (1, 1_000)}
    CHOICES: ClassVar[dict] = {"choice": ("future", "final", "episode")}

    def form(self, spec: EnvSpec, num_envs: int, lanes: int = 1, num_steps: int = 1, extras: Tree = ()) -> Form:
        if spec.reward_fn is None:
            raise ConfigError(f"hindsight: {spec.name!r} has no goals; expected an environment whose spec has a reward_fn")
        for name, right, wish in (("n_step", self.n_step == 1, "rewards of several steps cannot be told afresh: expected 1"),
                                  ("length", self.length == 0, "expected single transitions, 0"),
                                  ("num_agents", spec.num_agents == 0, "expected a single agent")):
            if not right:
                raise ConfigError(f"hindsight, {name}: {wish}")
        answer = super().form(spec, num_envs, lanes, num_steps, extras)
        if answer.pooled:
            raise ConfigError(f"hindsight: observations of {spec.name!r} are too large: expected at most 1,024 bytes")
        return answer._replace(reward_fn=spec.reward_fn)

    def priorities(self, form: Form) -> Episodes:
        shape = form.ring
        rows = shape.lanes, shape.slots, shape.envs
        return Episodes(jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.int32), jnp.zeros((shape.lanes, shape.envs), jnp.int32))

    def entered(self, form: Form, index: ring.Index, priority: Episodes, which: Array, slot: Array, gone: Array | None, last: Array
                ) -> Episodes:
        shape = form.ring
        over = last.reshape((shape.steps, which.shape[0], shape.envs))
        first = (index.count[which] - 1) * shape.steps  # [K]: the chunk's first step

        def step(carry: tuple[Array, Array], ended: Array) -> tuple[tuple[Array, Array], Array]:
            running, now = carry
            # one that is so long that its beginning will be overwritten counts as another from here on
            running = jnp.where(now - running >= shape.slots - shape.steps, now, running)
            return (jnp.where(ended, now + 1, running), now + 1), running

        now = jnp.broadcast_to(first[:, None], over.shape[1:])
        (running, _), begin = jax.lax.scan(step, (priority.running[which], now), over)
        time = jnp.broadcast_to(first[:, None] + jnp.arange(shape.steps, dtype=jnp.int32)[:, None, None], begin.shape)
        lane, env = (jnp.broadcast_to(x, begin.shape) for x in (which[:, None], jnp.arange(shape.envs)))
        newest = jnp.concatenate([begin[1:] != begin[:-1], jnp.ones_like(over[:1])])  # of its episode, in this chunk
        to = jnp.where(newest, _slot(shape, index, lane, begin), shape.slots)  # out of range: dropped
        return Episodes(priority.begin.at[lane, _slot(shape, index, lane, time), env].set(begin),
                        priority.end.at[lane, to, env].set(time, mode="drop"), priority.running.at[which].set(running))

    def draw(self, form: Form, index: ring.Index, priority: Episodes, key: Key) -> tuple[Any, Drawn, Array, ring.Ticket]:
        row_key, share_key, goal_key = jax.random.split(key, 3)
        row = ring.draw(form.ring, index, row_key, self.batch_size, 1)
        put_in = ring.below(share_key, jnp.asarray(self.goals + 1), self.batch_size) > 0
        rows = jnp.stack([row, self.goal_row(form, index, priority, row, goal_key)])
        weight = jnp.broadcast_to(ring.starts(index, 1).any(), row.shape).astype(jnp.float32)
        return priority, Drawn(rows, jnp.stack([jnp.ones_like(put_in), put_in]), ()), weight, ring.ticket(form.ring, index, row)

    def goal_row(self, form: Form, index: ring.Index, episodes: Episodes, row: Array, key: Key) -> Array:
        """For each of ``row`` [B] a row of the same episode, by the choice; consumes the key."""
        shape = form.ring
        lane, slot, env = ring.place(shape, row)
        passed = index.count[lane] * shape.steps  # steps of the lane so far
        time, begin = passed - 1 - ring.age(shape, index, row), episodes.begin[lane, slot, env]
        end = episodes.end[lane, _slot(shape, index, lane, begin), env]
        if self.choice == "final":
            chosen = end
        else:
            held = passed - index.filled[lane]
            low = time if self.choice == "future" else held + jnp.maximum(begin - held, 0)
            chosen = low + ring.below(key, jnp.maximum(end - low + 1, 1), self.batch_size)
        return ring.row_at(shape, lane, _slot(shape, index, lane, chosen), env)

    def get(self, form: Form, store: Any, drawn: Drawn) -> Fetched:
        return layout.get(form, store, drawn, True)

    def assemble(self, form: Form, fetched: Fetched) -> Transition:
        """Transitions [B, ...], with another goal, and the reward and end that follow from it, where one is put in."""
        both = layout.unpack(form, fetched.words, fetched.wide)
        own, put_in = jax.tree.map(lambda x: x[0], both), fetched.exists[1]

        def one(data: Transition, goal: Array, put_in: Array) -> Transition:
            reward, there = form.reward_fn(data.next_obs[ACHIEVED], goal)
            obs, following = ({**obs, DESIRED: jnp.where(put_in, goal, obs[DESIRED])} for obs in (data.obs, data.next_obs))
            return data._replace(obs=obs, next_obs=following, reward=jnp.where(put_in, reward, data.reward),
                                 alive=jnp.where(put_in, 1.0 - there.astype(jnp.float32), data.alive), last=data.last | (put_in & there))

        return jax.vmap(one)(own, both.next_obs[ACHIEVED][1], put_in)


def _slot(shape: ring.Shape, index: ring.Index, lane: Array, time: Array) -> Array:
    """Where a step of a lane stands, counted from its beginning."""
    return (index.cursor[lane] - (index.count[lane] * shape.steps - time)) % shape.slots
