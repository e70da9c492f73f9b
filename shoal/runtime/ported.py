"""The ported engine: lanes, chunks and ports, in one thread; for compiled and host environments alike."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import faultpoint, flow, lane, loops, rng
from shoal.errors import DeadlineError, Interrupted
from shoal.host_act import acting
from shoal.loops import Scores
from shoal.ops import serial
from shoal.runtime.apart import Apart
from shoal.runtime.cut import ends, idle, on_device, packed, shared, unpacked, unshared, watch, with_idle
from shoal.runtime.halves import SideBySide, fetching
from shoal.runtime.lanes import World, beside, from_tensors, make_lanes, open_world, part, record_like, to_tensors, tried
from shoal.runtime.trace import FOLDER, OFF, Trace
from shoal.scoring import ENDLESS, evaluate_compiled, evaluate_host
from shoal.specs import EnvSpec
from shoal.tensors import filled, named
from shoal.types import Algorithm, Chunk, Env, Episodes, HostEnv, Iteration, Limits, Params, ParamSource, Report, Transition, Tree

_CALL_S = 0.05  # what a call should take: the main loop looks at signals, saves and writes between two
_LARGE = 2**17  # numbers that a learner keeps: a pass over more takes longer than handing over arrays that are not reused


class Shelf:
    """The last few parameter versions, by number."""

    def __init__(self, keep: int) -> None:
        self._keep, self.versions = keep, {}  # type: ignore[var-annotated]

    def publish(self, version: int, params: Params, deadline_s: float) -> None:
        self.versions[version] = params
        for old in [v for v in self.versions if v <= version - self._keep]:
            del self.versions[old]

    def latest(self, version: int, deadline_s: float) -> tuple[int, Params]:
        if version not in self.versions:
            raise DeadlineError(f"parameters of version {version} are not published")
        return version, self.versions[version]


class Here:
    """A crew of one: all lanes in this thread, one after the other."""

    workers, overlaps, can_evaluate = 1, False, False
    staleness: Any = {}  # none is counted

    def __init__(self, world: World, params: ParamSource, lag: int):
        world = tried(world)
        self._params, self._lag, self._size, self.mode = params, lag, world.lane_envs, world.mode
        self.lanes: list[Any] = make_lanes(world, range(world.num_lanes))
        self._like = record_like(world) if world.env is None else None
        self._made: deque[Chunk] = deque()

    def ask(self, seq: int, deadline_s: float) -> None:
        for actor in self.lanes:
            loops.run_actor(actor, self._params, self, first=seq, count=1, lag=self._lag, deadline_s=deadline_s)

    def put(self, chunk: Chunk, deadline_s: float) -> None:
        self._made.append(chunk)

    def take(self, deadline_s: float) -> Chunk:
        if not self._made:  # one thread fills and empties it: a mistake of order
            raise DeadlineError("no chunk to take: the actors of this iteration have not run")
        return self._made.popleft()

    def publish(self, version: int, params: Params, deadline_s: float) -> None:
        """Nothing: lanes read them where they are."""

    def tensors(self) -> dict[str, np.ndarray]:
        if self._like is None:
            return named(beside([x.state for x in self.lanes], 0), "lanes")
        return {name: x for actor in self.lanes for name, x in to_tensors(actor.record(), f"lane{actor.lane}").items()}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[tuple[int, str]]:
        if self._like is None:
            joined = filled(beside([x.state for x in self.lanes], 0), tensors, "lanes")
            for actor in self.lanes:
                actor.state = part(joined, actor.lane, self._size)
            return []
        notes = []
        for actor in self.lanes:
            record = from_tensors(self._like, tensors, f"lane{actor.lane}")
            notes += [(actor.lane, note) for note in actor.restore(record, inexact=inexact)]
        return notes

    def timing(self) -> dict[str, Any]:
        return {}

    def ledger(self, iterations: int) -> dict[str, int]:
        made = iterations * len(self.lanes)
        return {"produced": made, "learned": made} | dict.fromkeys(flow.LEDGER[2:], 0)

    def rest(self) -> bool:
        """Nothing: lanes take no time while they are not asked."""
        return False

    def close(self) -> None:
        for actor in self.lanes:
            actor.close()


class LearnerState(NamedTuple):
    desk: loops.Desk
    tally: flow.Tally


_clear = jax.jit(loops.clear_desk, static_argnums=(1, 3, 4))
_policy = jax.jit(lambda algorithm, learner: algorithm.policy(learner))
_copied = jax.jit(lambda algorithm, learner: jax.tree.map(jnp.copy, algorithm.policy(learner)))  # the learner is used up by its updates
_interrupt = jax.jit(lambda algorithm, held, index, spec: algorithm.buffer(spec).interrupt(held, index), static_argnums=3, donate_argnums=1)
_count = jax.jit(flow.count)
_draw_step = jax.jit(lambda algorithm, spec, key, size: algorithm.draw(spec, key, (size,)), static_argnums=(1, 3))


@lru_cache(maxsize=64)
def _learning(shape: Any, still: tuple[float | None, ...], state_shape: Any, policy_shape: Any, spec: EnvSpec, single: bool
              ) -> Callable[..., Any]:
    """One iteration's learning, compiled as a whole: learner, the rest of the state, next policy, metrics, count.

    All comes and goes as leaves, and numbers in two arrays: modules are taken apart by Python, and with small networks that takes
    longer than learning does. ``still``: see ``cut.idle``; a norm of all gradients, for one, would be waited for by the optimiser.
    ``single``: at most one update is due, which its caller accepts or refuses, as is quicker with many weights; so the learner before it
    is left as it is, and what the policy has in common with the one after it is that learner's own.
    """

    def learn(numbers: list[Any], learner: list[Any], rest: list[Any], data: Transition, memory: Tree, episodes: Episodes,
              behaviour: list[Any], root: Any, iteration: Any, lane: Any) -> Any:
        algorithm = jax.tree.unflatten(shape, with_idle(numbers, still))
        state = jax.tree.unflatten(state_shape, learner + rest)
        params = jax.tree.unflatten(policy_shape, behaviour)
        desk, metrics = loops.study(algorithm, spec, state.desk, data, memory, params, root, iteration, lane,
                                    learn_fn=loops.propose if single else loops.learn)
        learned = metrics["refused"]  # what follows waits for it, and leaf for leaf: see ops.serial
        tally, count = flow.count(state.tally, episodes._replace(ended=episodes.ended & serial.done(learned)))
        told, ints = packed(metrics, count)
        (floats,) = told.values()
        after = jax.tree.leaves(LearnerState(desk, tally))
        new, rest = after[:len(learner)], after[len(learner):]
        return new, rest, shared(algorithm.policy(desk.learner), new if single else [], floats), (told, ints)

    return jax.jit(learn, donate_argnums=2 if single else (1, 2))


class Ported:
    """Lanes, chunks and ports, for compiled and host environments alike. Who keeps the lanes, its crew, changes no bit."""

    path = "ported"

    def __init__(self, algorithm: Algorithm, env: Env | None, make_fn: Callable[[], HostEnv] | None, *, num_envs: int, lane_envs: int,
                 lag: int = 0, stream_episodes: bool = False, crew_fn: Callable[[World, ParamSource, int], Any] = Here):
        self.algorithm, self.env, self._make, self._lag = on_device(algorithm), env, make_fn, lag
        self.num_lanes, self._lane_envs = num_envs // lane_envs, lane_envs
        self.steps_per_iteration = algorithm.num_steps * num_envs
        self._stream, self._crew_fn, self._asked = stream_episodes, crew_fn, -1
        self._crew: Any = None
        self._params = Shelf(lag + 1)
        self._deadline_s, self._refused, self._iteration, self._warm = 60.0, 0, 0, False
        self._looked, self._busy_s = time.perf_counter(), 0.0  # since then, so long at learning
        self._apart: Apart | None = None
        self._tree: LearnerState | None = None  # put together when asked for
        self._leaves: list[Any] = []
        self._num_learner, self._single = 0, False
        self._halves: SideBySide | None = None
        self._open: tuple[dict[str, float], int] | None = None  # metrics and number of an iteration whose values still learn
        self._state_shape: Any = None
        self.scratch: Path | None = None  # a folder for a buffer in files
        self.logs: Path | None = None  # and one for what workers print
        self.trace = OFF
        self.warn_fn: Callable[[str], None] = warnings.warn  # hears of what went wrong and was mended
        self.stop_fn: Callable[[], bool] = bool  # a wait is given up where it says so

    # set-up

    def settle(self, folder: Path, warn_fn: Callable[[str], None], stop_fn: Callable[[], bool], trace: bool) -> None:
        """Be told of the run folder, whom to tell what went wrong and was mended, whom to ask whether the run is to stop, and whether to
        write a timeline."""
        self.scratch, self.logs, self.warn_fn, self.stop_fn = folder / "replay", folder / "logs", warn_fn, stop_fn
        self.trace = Trace(folder / FOLDER) if trace else OFF

    def init(self, seed: int) -> None:
        self.seed, self.root, self._refused, self._iteration, self._asked, self._open = seed, rng.root(seed), 0, 0, -1, None
        if self._halves is not None:
            self._halves.close()
        world = open_world(self.algorithm, self.env, self._make, seed=seed, num_lanes=self.num_lanes, lane_envs=self._lane_envs, policy=())
        self.spec, self._vector = world.spec, world.vector
        if self.algorithm.buffer(self.spec).apart:
            self._apart = Apart(self.algorithm, self.spec, self.num_lanes, self._lane_envs, self.scratch)
            desk = self._apart.clear(self.root)
        else:
            desk = _clear(self.algorithm, self.spec, self.root, self.num_lanes, self._lane_envs)
        self._state = LearnerState(desk, flow.init_tally())
        first, self._policy_shape = jax.tree.flatten(_copied(self.algorithm, desk.learner))
        self._params.versions = {0: first}
        self._numbers, shape = jax.tree.flatten(self.algorithm)
        if self._apart is None:
            large = sum(x.size for x in self._leaves[:self._num_learner]) >= _LARGE
            single = large and loops.at_most_one(self.algorithm, self.spec, self.steps_per_iteration)
            halves = loops.has_halves(self.algorithm)
            self._single = single and not halves  # of halves each is refused by itself
            still = idle(self.algorithm)
            self._learn = _learning(shape, still, self._state_shape, self._policy_shape, self.spec, self._single)
            if single and halves and jax.default_backend() == "cpu" and loops.only_draws(self.algorithm, self.spec, desk.buffer):
                still = idle(self.algorithm, l2=0.0)
                self._halves = SideBySide(shape, still, jax.tree.structure(desk.learner), self._policy_shape, self.spec,
                                          self.steps_per_iteration)
                self._fetch = fetching(shape, still, self._state_shape, self._num_learner, self.spec)
        self._acting = acting(self.algorithm, self.spec, self._lane_envs)
        self._crew = self._crew_fn(world._replace(policy=self._policy_shape), self._params, self._lag)

    @property
    def lanes(self) -> list[Any]:
        """The lanes, where they are in this process."""
        return self._crew.lanes

    # running

    def run(self, limits: Limits) -> Report:
        """As many iterations as take a moment; the first call, which compiles, makes one. Timing decides only how they are grouped."""
        begun, spent, episodes = time.perf_counter(), 0.0, 0
        done: list[Iteration] = []
        while not done or (self._warm and spent < _CALL_S and len(done) < limits.iterations and episodes < limits.episodes
                           and not done[-1].mean_return >= limits.target):
            try:
                done.append(self._iterate())
            except Interrupted:
                break
            episodes, spent = episodes + done[-1].episodes, time.perf_counter() - begun
        self._join()
        self._warm = True
        return Report(done, spent, 0.0)

    def _iterate(self) -> Iteration:
        """Every lane makes its chunk, the learner consumes them."""
        self._ask(self._iteration)
        loops.run_learner(self, self._crew, self, num_lanes=self.num_lanes, first=self._iteration, count=1, deadline_s=self._deadline_s)
        self._iteration += 1
        return self._last

    def _ask(self, seq: int) -> None:
        """Have chunk ``seq`` of every lane made, once."""
        if self._asked < seq:
            self._asked = seq
            faultpoint.at("driver", "ask")
            with self.trace.span("ask", seq=seq):  # where lanes are in this process, they are made here
                self._crew.ask(seq, self._deadline_s)

    def publish(self, version: int, params: Params, deadline_s: float) -> None:
        faultpoint.at("driver", "publish")
        self._params.publish(version, params, deadline_s)
        with self.trace.span("publish", version=version):
            self._crew.publish(version, params, deadline_s)

    def update(self, chunks: list[Chunk], iteration: int, lane: Any = None) -> Params:
        """What ``run_learner`` calls: learn from one chunk of every lane, while the next are made where they may be; or from one lane's."""
        if self._crew.overlaps:
            self._ask(iteration + 1)
        with self._at_work(iteration):
            return self._updated(chunks, iteration, lane)

    @contextmanager
    def _at_work(self, iteration: int) -> Iterator[None]:
        faultpoint.at("learner", "update")
        begun = time.perf_counter()
        with self.trace.span("update", iteration=iteration):
            yield
        self._busy_s += time.perf_counter() - begun

    def _updated(self, chunks: list[Chunk], iteration: int, lane: Any) -> Params:
        data, episodes = beside([c.data for c in chunks], 1), beside([c.episodes for c in chunks], 1)
        behaviour = self._params.versions[chunks[0].version]
        if self._halves is not None:
            return self._begun(self._halves, chunks, data, episodes, behaviour, iteration, lane)
        if self._apart is not None:
            desk, metrics = self._apart.study(self._state.desk, data, self._whole(behaviour), self.root, np.int32(iteration), lane)
            tally, count = _count(self._state.tally, episodes)
            self._state, policy = LearnerState(desk, tally), jax.tree.leaves(_copied(self.algorithm, desk.learner))
            values, told = {name: float(x) for name, x in jax.device_get(metrics).items()}, jax.device_get(count)
        else:
            memory = beside([c.memory for c in chunks], 0)
            learner, rest = self._leaves[:self._num_learner], self._leaves[self._num_learner:]
            new, rest, policy, answer = self._learn(self._numbers, learner, rest, data, memory, episodes, behaviour, self.root,
                                                    np.int32(iteration), lane)
            values, told = unpacked(answer)
            if self._single and (values["refused"] or not values.get("gradient_steps", 1)):
                new, policy = learner, self._params.versions[iteration]
            else:
                policy = unshared(policy, new)
            self._leaves, self._tree = new + rest, None
        self._note(values, told, episodes, iteration)
        return policy

    def _begun(self, halves: SideBySide, chunks: list[Chunk], data: Transition, episodes: Episodes, behaviour: list[Any], iteration: int,
               lane: Any) -> Params:
        """Learn in halves side by side; the values are waited for once they are needed, and by then metrics are all there."""
        rest, drawn, answer = self._fetch(self._numbers, self._leaves[self._num_learner:], data, episodes, self.root, np.int32(iteration),
                                          lane)
        self._leaves[self._num_learner:], self._tree = rest, None
        values, told = unpacked(answer)
        given, policy = (beside([c.memory for c in chunks], 0), behaviour, drawn), None
        if values["gradient_steps"]:
            halves.offer(self._numbers, self._leaves[:self._num_learner], *given)
        try:
            self._join()
        except BaseException:
            halves.forget()
            raise
        args = self._numbers, self._leaves[:self._num_learner], *given
        if values["gradient_steps"]:
            self._leaves[:self._num_learner], policy = halves.begin(*args)
            self._open = values, iteration
        else:
            values = dict(sorted((values | dict.fromkeys(halves.names(*args), math.nan) | {"refused": 0.0}).items()))
            self._refused = watch(self._refused, values, iteration)
        self._tell(values, told, episodes)
        return self._params.versions[iteration] if policy is None else unshared(policy, self._leaves)

    def _join(self) -> None:
        """Wait for values that still learn, if there are any."""
        if self._open is None:
            return
        assert self._halves is not None
        (values, iteration), self._open = self._open, None
        self._leaves[:self._num_learner], metrics = self._halves.end(self._leaves[:self._num_learner])
        self._tree = None
        values |= metrics
        values |= {name: values.pop(name) for name in sorted(values)}  # in the order of every other path
        self._refused = watch(self._refused, values, iteration)

    def _note(self, values: dict[str, float], told: flow.Count, episodes: Episodes, iteration: int) -> None:
        """What an update came to, for the main loop; too many that were refused stop the run."""
        self._refused = watch(self._refused, values, iteration)
        self._tell(values, told, episodes)

    def _tell(self, values: dict[str, float], told: flow.Count, episodes: Episodes) -> None:
        ended = ends(*(np.asarray(x) for x in episodes)) if self._stream else []
        self._last = Iteration(values, int(told.episodes), float(told.return_sum), int(told.length_sum), float(told.mean_return), ended)

    @property
    def _state(self) -> LearnerState:
        self._join()
        if self._tree is None:
            self._tree = jax.tree.unflatten(self._state_shape, self._leaves)
        return self._tree

    @_state.setter
    def _state(self, state: LearnerState) -> None:
        self._tree, (self._leaves, self._state_shape) = state, jax.tree.flatten(state)
        self._num_learner = len(jax.tree.leaves(state.desk.learner))  # they come first

    def _whole(self, leaves: list[Any]) -> Params:
        """A policy as its algorithm has it; on the shelf lie leaves."""
        return jax.tree.unflatten(self._policy_shape, leaves)

    # the cut

    def cut(self) -> dict[str, np.ndarray]:
        state = named(self._state, "run") if self._apart is None else self._apart.tensors(self._state)
        out = state | {"refused": np.asarray(self._refused), "iteration": np.asarray(self._iteration)}
        for version, params in self._params.versions.items():
            if version < self._iteration and self._lag:  # the policy that makes the next chunk is older than the learner
                out |= named(self._whole(params), f"version{version}")
        return out | self._crew.tensors()

    def load(self, tensors: dict[str, np.ndarray], inexact: bool = False) -> list[str]:
        self._state = filled(self._state, tensors, "run") if self._apart is None else self._apart.filled(self._state, tensors)
        self._refused, self._iteration = int(tensors["refused"]), int(tensors["iteration"])
        newest = _copied(self.algorithm, self._state.desk.learner)
        self._params.versions = {self._iteration: jax.tree.leaves(newest)}
        for version in range(max(0, self._iteration - self._lag), self._iteration):
            self._params.versions[version] = jax.tree.leaves(filled(newest, tensors, f"version{version}"))
        self._asked = self._iteration - 1
        notes = self._crew.load(tensors, inexact)
        for index in sorted({index for index, _ in notes}):
            self._interrupt(index)
        return [note for _, note in notes]

    def _interrupt(self, index: int) -> None:
        """Tell replay that a lane has started anew: no window may run from what it did into what it will do."""
        desk = self._state.desk
        if desk.buffer == ():
            return
        held = (_interrupt(self.algorithm, desk.buffer, np.int32(index), self.spec) if self._apart is None
                else self._apart.buffer.interrupt(desk.buffer, index))
        self._state = self._state._replace(desk=desk._replace(buffer=held))

    def attach(self, folder: Path) -> dict[str, str]:
        """Put what is in files into a checkpoint's folder, too."""
        return {} if self._apart is None else self._apart.attach(self._state, folder)

    def load_policy(self, tensors: dict[str, np.ndarray]) -> None:
        """Only the learner, for acting."""
        learner = filled(self._state.desk.learner, tensors, "run.desk.learner")
        self._state = self._state._replace(desk=self._state.desk._replace(learner=learner))
        self._params.versions = {self._iteration: jax.tree.leaves(_policy(self.algorithm, self._state.desk.learner))}

    def learner(self) -> dict[str, np.ndarray]:
        return named(self._state.desk.learner, "learner")

    def policy(self) -> Params:
        return self._whole(self._params.versions[self._iteration])

    def evaluate(self, episodes: int, greedy: bool = True) -> Scores:
        faultpoint.at("driver", "evaluate")
        with self.trace.span("evaluate", episodes=episodes):
            return self._evaluate(episodes, greedy)

    def _evaluate(self, episodes: int, greedy: bool) -> Scores:
        if self.env is not None:
            return evaluate_compiled(self.algorithm, self.env, self.policy(), self.root, episodes, greedy)
        if self._vector is not None:
            return self._evaluate_vector(episodes, greedy)
        assert self._make is not None
        if self._crew.can_evaluate:  # what an environment does to its process, it should not do to this one
            return self._crew.evaluate(self._iteration, episodes, greedy)
        return evaluate_host(self.algorithm, self._acting(self.policy()), self._make, self.seed, episodes, greedy, self._lane_envs)

    def _evaluate_vector(self, episodes: int, greedy: bool) -> Scores:
        def noise(first: int, t: int) -> Tree:
            return _draw_step(self.algorithm, self.spec, rng.key(self.root, rng.Stream.EVAL_ACT, first, t), self._lane_envs)

        limit = self.spec.max_episode_steps or ENDLESS
        role = lane.role(0.0, self._lane_envs, greedy)
        scores = self.lanes[0].evaluate(self._acting(self.policy()), noise, episodes, role, limit)
        self._interrupt(0)
        return scores

    @property
    def replay_mode(self) -> str:
        """How host environments are brought back."""
        return self._crew.mode

    @property
    def workers(self) -> int:
        return self._crew.workers

    def rest(self) -> None:
        """Nothing is to do for now: let go of what is not needed for that."""
        if self._crew is not None and self._crew.rest():  # it has forgotten what it was asked for
            self._asked = self._iteration - 1
        self.trace.flush()

    def staleness(self) -> dict[str, int]:
        """How many chunks were learned from a policy so many versions old; in step, all of them are of the lag's age."""
        return {str(age): count for age, count in sorted(self._crew.staleness.items())}

    def timing(self) -> dict[str, Any]:
        """How the learner, and workers where there are any, spent the last while."""
        now, busy = time.perf_counter(), self._busy_s
        spent, self._looked, self._busy_s = max(now - self._looked, 1e-9), now, 0.0
        return {"learner_busy": round(min(1.0, busy / spent), 4)} | self._crew.timing()

    def ledger(self) -> dict[str, int]:
        """What became of chunks."""
        return self._crew.ledger(self._iteration)

    def close(self) -> None:
        if self._halves is not None:
            self._halves.close()
        if self._crew is not None:
            self._crew.close()
