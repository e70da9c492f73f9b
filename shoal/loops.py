"""The data path, written once: the same functions run scanned inside one compiled program or apart, through ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shoal import flow, lane, rng
from shoal.ops import serial
from shoal.ops.finite import all_finite
from shoal.specs import EnvSpec
from shoal.types import Algorithm, Array, Batch, Chunk, ChunkSink, ChunkSource, Env, Episodes, Half, Key, LaneState, Memory, Metrics
from shoal.types import Params, ParamSink, ParamSource, Role, Scores, Transition, Tree

HALVES = ("update_policy", "update_values")  # what an algorithm of ``Halves`` has


class Desk(NamedTuple):
    """What the learning side keeps between two iterations."""

    learner: Tree
    buffer: Tree
    credit: Array  # [] int32: environment steps, times updates, that no update was due for yet


def clear_desk(algorithm: Algorithm, spec: EnvSpec, root: Key, num_lanes: int, lane_envs: int) -> Desk:
    """A learner that has learned nothing, and an empty buffer."""
    learner = algorithm.init(spec, rng.key(root, rng.Stream.INIT))
    buffer = algorithm.buffer(spec).init(spec, num_lanes * lane_envs, num_lanes, algorithm.num_steps)
    return Desk(learner, buffer, jnp.zeros((), jnp.int32))


def at_most_one(algorithm: Algorithm, spec: EnvSpec, rows: int) -> bool:
    """Whether never more than one update is due after ``rows`` steps."""
    updates, every = algorithm.buffer(spec).pace(rows)
    return rows * updates <= every


def only_draws(algorithm: Algorithm, spec: EnvSpec, held: Tree) -> bool:
    """Whether neither a draw nor what was learned from it changes a buffer that holds ``held``."""
    buffer, same = algorithm.buffer(spec), list[bool]()

    def turn(held: Tree) -> None:
        after, sample = buffer.sample(held, rng.root(0))
        after = buffer.update(after, sample.ticket, sample.weight)
        same.extend(a is b for a, b in zip(jax.tree.leaves(held), jax.tree.leaves(after), strict=True))

    jax.eval_shape(turn, held)
    return held != () and all(same)


def study(algorithm: Algorithm, spec: EnvSpec, desk: Desk, data: Transition, memory: Memory, behaviour: Params, root: Key,
          iteration: Array, lane: Array | None = None, *, learn_fn: Callable[..., Any] | None = None) -> tuple[Desk, Metrics]:
    """Put an iteration's chunks [T, B, ...] into the buffer and do all updates that are due: one, or as many as the buffer's pace says.

    They are every lane's, or those of ``lane``. ``learn_fn``: ``learn``, or ``propose`` where at most one is due and the caller keeps the
    learner it had if none was (``gradient_steps``), or if it is refused: then the one that comes back is nothing.
    """
    learn_fn = learn_fn or learn
    buffer, rows = algorithm.buffer(spec), algorithm.num_steps * data.last.shape[1]
    held, (updates, every) = buffer.add(desk.buffer, lane, data), buffer.pace(rows)
    learn_key, draw_key = (rng.key(root, stream, iteration) for stream in (rng.Stream.LEARN, rng.Stream.SAMPLE))

    def one(learner: Tree, held: Tree, learn_key: Key, draw_key: Key) -> tuple[Tree, Tree, Metrics]:
        held, sample = buffer.sample(held, draw_key)
        # from memory: learning is compiled as if the draw came from elsewhere, as it does where rows do not lie on the device
        drawn, weight = serial.settled((sample.batch, sample.weight)) if desk.buffer != () else (sample.batch, sample.weight)
        learner, metrics, priorities = learn_fn(algorithm, learner, Batch(drawn, memory, behaviour, every / updates, weight), learn_key)
        return learner, held if priorities is None else buffer.update(held, sample.ticket, serial.settled(priorities)), metrics

    if (updates, every) == (1, rows) and desk.buffer == ():  # held for this one update only
        learner, held, metrics = one(desk.learner, held, learn_key, draw_key)
        return Desk(learner, held, desk.credit), metrics
    due, credit = flow.due(desk.credit, rows, updates, every, buffer.ready(held))

    def step(i: Array, loop: Any) -> Any:
        learner, held, sums = loop
        learner, held, metrics = one(learner, held, *(rng.fold_in(key, i) for key in (learn_key, draw_key)))
        return learner, held, sums + jnp.stack([metrics[name] for name in names])

    names = sorted(jax.eval_shape(one, desk.learner, held, learn_key, draw_key)[2])
    start = desk.learner, held, jnp.zeros(len(names))
    if rows * updates <= every:  # one at most
        def none(start: Any) -> Any:  # a learner that is passed through is copied, whether or not an update is due
            return start if learn_fn is learn else (jax.tree.map(jnp.zeros_like, start[0]), *start[1:])

        learner, held, sums = jax.lax.cond(due > 0, lambda start: step(jnp.zeros((), jnp.int32), start), none, start)
    else:
        learner, held, sums = jax.lax.fori_loop(0, due, step, start)
    means = jnp.where(due > 0, sums / due, jnp.nan)
    metrics = {name: means[i] for i, name in enumerate(names)}
    metrics |= {"refused": sums[names.index("refused")], "gradient_steps": due.astype(jnp.float32)}
    return Desk(learner, held, credit), metrics | buffer.metrics(held)


def study_apart(algorithm: Algorithm, buffer: Any, desk: Desk, data: Transition, behaviour: Params, root: Key, iteration: Array,
                learn_fn: Callable[..., Any], names: tuple[str, ...], lane: Any = None) -> tuple[Desk, Metrics]:
    """``study`` where rows do not lie on the device: the same draws and updates, one call each. ``learn_fn``: ``learn``, compiled."""
    rows = algorithm.num_steps * data.last.shape[1]
    held, (updates, every) = buffer.add(desk.buffer, lane, data), buffer.pace(rows)
    due, credit = flow.due(desk.credit, rows, updates, every, buffer.ready(held))
    learner: Tree = desk.learner
    sums: Metrics = dict.fromkeys(names, np.float32(0))
    learn_key, draw_key = (rng.key(root, stream, iteration) for stream in (rng.Stream.LEARN, rng.Stream.SAMPLE))
    for i in range(int(due)):
        held, sample = buffer.sample(held, rng.fold_in(draw_key, i))
        batch = Batch(sample.batch, (), behaviour, every / updates, sample.weight)
        learner, metrics, priorities = learn_fn(algorithm, learner, batch, rng.fold_in(learn_key, i))
        held = held if priorities is None else buffer.update(held, sample.ticket, priorities, strict=False)
        sums = {name: sums[name] + np.asarray(metrics[name]) for name in names}
    means = {name: x / np.float32(due) if due else np.float32("nan") for name, x in sums.items()}
    means |= {"refused": sums["refused"], "gradient_steps": np.float32(due)}
    return Desk(learner, held, credit), means | buffer.metrics(held)


def fetch(algorithm: Algorithm, spec: EnvSpec, desk: Desk, data: Transition, root: Key, iteration: Array, lane: Array | None = None
          ) -> tuple[Desk, tuple[Tree, Array, Key], Metrics]:
    """``study`` up to the update, where one at most is due and the buffer is told nothing of it: put chunks in, and draw.

    Answers data, weight and key of that update; data are all zeros if none is due, as ``gradient_steps`` says.
    """
    buffer, rows = algorithm.buffer(spec), algorithm.num_steps * data.last.shape[1]
    held, (updates, every) = buffer.add(desk.buffer, lane, data), buffer.pace(rows)
    due, credit = flow.due(desk.credit, rows, updates, every, buffer.ready(held))
    draw_key = rng.fold_in(rng.key(root, rng.Stream.SAMPLE, iteration), 0)

    def draw(held: Tree) -> tuple[Tree, Array]:
        sample = buffer.sample(held, draw_key)[1]
        return sample.batch, sample.weight

    drawn = jax.lax.cond(due > 0, draw, lambda held: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(draw, held)), held)
    learn_key = rng.fold_in(rng.key(root, rng.Stream.LEARN, serial.held(iteration, drawn[1])), 0)
    return Desk(desk.learner, held, credit), (*drawn, learn_key), {"gradient_steps": due.astype(jnp.float32)} | buffer.metrics(held)


def has_halves(algorithm: Any) -> bool:
    """Whether an update of it comes as ``Halves``."""
    return all(hasattr(algorithm, name) for name in HALVES)


def propose_half(name: str, algorithm: Any, state: Tree, batch: Batch, key: Key) -> Half:
    """One half of an update, and whether it is to be ``refused``; data that hold what is not a finite number are, by both."""
    half: Half = getattr(algorithm, name)(state, batch, key)
    return half._replace(metrics=half.metrics | {"refused": _refused((half.fields, half.priorities, batch.data, batch.weight))})


def joined(first: Metrics, second: Metrics) -> Metrics:
    """The metrics of an update from those of its halves."""
    return first | second | {"refused": 1.0 - (1.0 - first["refused"]) * (1.0 - second["refused"])}


def propose(algorithm: Algorithm, state: Tree, batch: Batch, key: Key) -> tuple[Tree, Metrics, Array | None]:
    """One update, and whether it is to be ``refused``: it would leave what is not a finite number in the state or among priorities.

    Whoever calls chooses. That costs nothing where it is a choice between two names, and a pass over all weights inside a program.
    """
    updated = algorithm.update(state, batch, key)
    return updated.state, updated.metrics | {"refused": _refused((updated.state, updated.priorities))}, updated.priorities


def _refused(what: Tree) -> Array:
    return 1.0 - all_finite(what).astype(jnp.float32)


def learn(algorithm: Algorithm, state: Tree, batch: Batch, key: Key) -> tuple[Tree, Metrics, Array | None]:
    """One update, refused whole if it would leave anything that is not a finite number in the state or among priorities.

    Of two halves each is refused by itself, as they do not wait for each other; but data that are wrong are refused by both.
    """
    if not has_halves(algorithm):
        new, metrics, priorities = propose(algorithm, state, batch, key)
        return serial.chosen(metrics["refused"] == 0, new, state), metrics, priorities
    fields: dict[str, Tree] = {}
    halves = [propose_half(name, algorithm, state, batch, key) for name in HALVES]
    for half in halves:
        before = {name: getattr(state, name) for name in half.fields}
        fields |= serial.chosen(half.metrics["refused"] == 0, half.fields, before)
    return state._replace(**fields), joined(*(half.metrics for half in halves)), halves[1].priorities


# --- fused: environment and learner in one program -------------------------------------------------------------------


class Carry(NamedTuple):
    """Everything a run is, between two iterations."""

    desk: Desk
    lanes: LaneState  # [B, ...], in lane order
    tally: flow.Tally
    iteration: Array  # [] int32


class Bounds(NamedTuple):
    """Limits of a call, as data."""

    iterations: Array  # [] int32
    episodes: Array  # [] int32
    target: Array  # [] float32


class Record(NamedTuple):
    """What happened, per iteration; the first ``done`` rows count."""

    done: Array  # [] int32
    metrics: Metrics  # name → [capacity] float32
    counts: flow.Count  # [capacity]
    episodes: Episodes | None  # [capacity, T, B] where asked for


def begin(algorithm: Algorithm, env: Env, root: Key, num_lanes: int, lane_envs: int) -> Carry:
    """A run before its first iteration."""
    lanes = jax.vmap(lambda i: lane.start(algorithm, env, root, i, lane_envs))(jnp.arange(num_lanes))
    lanes = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), lanes)
    desk = clear_desk(algorithm, env.spec, root, num_lanes, lane_envs)
    return Carry(desk, lanes, flow.init_tally(), jnp.zeros((), jnp.int32))


def iterate(algorithm: Algorithm, env: Env, root: Key, carry: Carry, role: Role, num_lanes: int
            ) -> tuple[Carry, Metrics, flow.Count, Episodes]:
    """Collect one chunk from every lane and learn from it."""
    size = carry.lanes.lengths.shape[0] // num_lanes
    draws = jax.vmap(lambda i: lane.draw(algorithm, env, root, i, carry.iteration, size))(jnp.arange(num_lanes))
    params = algorithm.policy(carry.desk.learner)
    memory = carry.lanes.memory
    lanes, data, episodes = lane.rollout(algorithm, env, params, carry.lanes, lane.side_by_side(draws), role)
    desk, metrics = study(algorithm, env.spec, carry.desk, data, memory, params, root, carry.iteration)
    tally, count = flow.count(carry.tally, episodes)
    return Carry(desk, lanes, tally, carry.iteration + 1), metrics, count, episodes


def fuse(num_lanes: int, capacity: int, stream_episodes: bool) -> Callable[..., tuple[Carry, Record]]:
    """A function that runs up to ``capacity`` iterations in one call: ``(algorithm, env, root, carry, role, bounds)``.

    How many is data, and every stopping rule is checked at every iteration, so how iterations are grouped into calls changes nothing.
    """

    def run(algorithm: Algorithm, env: Env, root: Key, carry: Carry, role: Role, bounds: Bounds) -> tuple[Carry, Record]:
        def one(carry: Carry) -> tuple[Carry, Metrics, flow.Count, Episodes]:
            return iterate(algorithm, env, root, carry, role, num_lanes)

        def ongoing(loop: Any) -> Array:
            done, carry, _, episodes, mean = loop
            reached = (carry.tally.filled >= flow.RECENT) & (mean >= bounds.target)
            return (done < jnp.minimum(bounds.iterations, capacity)) & (episodes < bounds.episodes) & ~reached

        def step(loop: Any) -> Any:
            done, carry, kept, total, _ = loop
            carry, metrics, count, episodes = one(carry)
            floats = jnp.stack([metrics[name] for name in names] + [count.return_sum, count.mean_return])
            row = floats, jnp.stack([count.episodes, count.length_sum]), episodes if stream_episodes else None
            kept = jax.tree.map(lambda rows, new: rows.at[done].set(new), kept, row)
            return done + 1, carry, kept, total + count.episodes, count.mean_return

        _, metrics, _, ended = jax.eval_shape(one, carry)
        names = sorted(metrics)
        kept = (jnp.zeros((capacity, len(names) + 2)), jnp.zeros((capacity, 2), jnp.int32),
                jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), ended) if stream_episodes else None)
        zero = jnp.zeros((), jnp.int32)
        done, carry, (floats, ints, episodes), *_ = jax.lax.while_loop(ongoing, step, (zero, carry, kept, zero, jnp.full((), -jnp.inf)))
        values = {name: floats[:, i] for i, name in enumerate(names)}
        return carry, Record(done, values, flow.Count(ints[:, 0], ints[:, 1], floats[:, -2], floats[:, -1]), episodes)

    return run


# --- ported: actors and a learner, joined by ports -------------------------------------------------------------------


class Actor(Protocol):
    """A lane as its driver sees it."""

    lane: int

    def make(self, params: Params, version: int, seq: int) -> Chunk: ...


def run_actor(actor: Actor, source: ParamSource, sink: ChunkSink, *, first: int, count: int, lag: int, deadline_s: float) -> None:
    """Make chunks ``first .. first + count`` of one lane, each with the version that its place calls for."""
    for seq in range(first, first + count):
        version, params = source.latest(flow.version_for(seq, lag), deadline_s)
        sink.put(actor.make(params, version, seq), deadline_s)


class Learner(Protocol):
    """The learning side: takes all lanes' chunks of an iteration and answers the next policy."""

    def update(self, chunks: list[Chunk], iteration: int) -> Params: ...


def run_learner(learner: Learner, source: ChunkSource, sink: ParamSink, *, num_lanes: int, first: int, count: int, deadline_s: float
                ) -> None:
    """Consume iterations ``first .. first + count``; after iteration i publish version i + 1."""
    for iteration in range(first, first + count):
        chunks = sorted((source.take(deadline_s) for _ in range(num_lanes)), key=lambda chunk: chunk.lane)
        sink.publish(iteration + 1, learner.update(chunks, iteration), deadline_s)


# --- evaluation ------------------------------------------------------------------------------------------------------


def run_evaluator(algorithm: Algorithm, env: Env, params: Params, root: Key, greedy: Array, episodes: int, max_steps: int) -> Scores:
    """``episodes`` episodes side by side, each to its end or ``max_steps``; keys of their own."""
    spec: EnvSpec = env.spec
    keys = jax.vmap(lambda i: rng.key(root, rng.Stream.EVAL_ENV, i))(jnp.arange(episodes))
    state, obs = jax.vmap(env.reset)(keys)
    role = Role(jnp.zeros(episodes), jnp.broadcast_to(greedy, (episodes,)))
    agents = spec.agent_shape
    start = (state, obs, algorithm.memory(spec, episodes), jnp.ones((episodes, *agents), bool), jnp.zeros((episodes, *agents)),
             jnp.zeros(episodes, jnp.int32), jnp.full(episodes, jnp.nan), jnp.zeros((), jnp.int32))

    def ongoing(loop: Any) -> Array:
        return loop[3].any() & (loop[-1] < max_steps)

    def step(loop: Any) -> Any:
        state, obs, memory, present, returns, lengths, success, t = loop
        noise = algorithm.draw(spec, rng.key(root, rng.Stream.EVAL_ACT, t), (1, episodes))
        acted = algorithm.act(params, memory, obs, role, jax.tree.map(lambda x: x[0], noise))
        state, answer = jax.vmap(env.step)(state, acted.action, jax.vmap(lambda k: jax.random.fold_in(k, t))(keys))
        running = present.reshape(episodes, -1).any(1)
        returns = returns + jnp.where(present, answer.reward, 0.0)
        if "success" in spec.info:
            success = jnp.where(running, answer.info["success"].astype(jnp.float32), success)
        present = present & ~(answer.terminated | answer.truncated)
        return state, answer.obs, acted.memory, present, returns, lengths + running, success, t + 1

    loop = jax.lax.while_loop(ongoing, step, start)
    return Scores(loop[4], loop[5], loop[6])
