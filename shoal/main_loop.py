"""The main loop: budget, evaluation, callbacks, checkpoints, signals and metrics; once, for every engine."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal import envs, flow, given, registry, store
from shoal.callbacks import Callback, Callbacks
from shoal.checkpoint import MANIFEST, Checkpoint, check_record, consuming, naming
from shoal.envs import gym_vector
from shoal.errors import ConfigError, ShoalError, StoreError
from shoal.monitor.curve import write_curve
from shoal.monitor.progress import Progress
from shoal.monitor.sinks import CsvSink, JsonlSink, last_step
from shoal.monitor.window import Window
from shoal.plan import Plan, cadence, check, check_horizon, decided, free_folder, log_interval
from shoal.runtime.device import Compilations, describe, prepare
from shoal.signals import Signals
from shoal.types import Algorithm, Env, HostEnv, Iteration, Limits

_NEVER = 2**31 - 1
METRICS, TIMING = "metrics.jsonl", "timing.jsonl"


class MainLoop:
    """Trains ``agent`` in ``env``; every field of the plan is a keyword. ``run`` does it.

    ``env`` is a name, an environment, or a vector made by ``gymnasium.make_vec``; ``agent`` an algorithm, or a team of one; ``replay`` a
    ``Replay`` or ``ReplayPool``, for settings of its buffer in place of its own.
    """

    def __init__(self, env: str | Env | HostEnv, agent: Algorithm, *, replay: Any = None, runtime: Any = "local",
                 out: str | Path | None = None, callbacks: tuple[Callback, ...] = (), quiet: bool = True,
                 resume: bool = False, **settings: Any):
        """``resume`` continues the run that ``out`` holds; without it, ``out`` must be absent or empty."""
        registry.load_plugins(tuple(settings.get("plugins", ())))
        env, settings = gym_vector.adopt(env, settings)
        agent = given.with_replay(agent, replay)
        self.plan = given.describe(env, agent, runtime, settings)
        self._resuming = resume
        self._out = Path(out) if out is not None else None
        self.callbacks, self.quiet = Callbacks(callbacks), quiet
        self._env_given, self.agent = env, agent
        self.runtime = registry.find("runtime", runtime)() if isinstance(runtime, str) else runtime
        self.step = self.iteration = self.episodes = self.updates = 0
        self.mean_return = self.eval_return = math.nan
        self.best, self.best_step, self.misses, self.evaluated_at = -math.inf, -1, 0, -1
        self._used_s, self._steps_again = 0.0, 0  # of earlier runs of this folder: wall time; steps made that were lost with them
        self._window, self._signals = Window(), Signals()  # which are heard from ``run`` on
        self._engine: Any = None

    # --- set-up ---

    def _make_env(self) -> Any:
        return envs.from_plan(self.plan, self._env_given)

    def _prepare(self) -> None:
        """Make the engine, which compiles nothing yet: whatever cannot work is refused here, before a folder exists."""
        prepare(self.plan.device, self.plan.threads)
        self._compilations = Compilations()
        self.plan, self.agent = given.with_horizon(self.plan, self.agent)
        env = self._make_env()
        try:
            given.check_team(self.plan, env.spec)
            make_fn = given.maker(self.runtime, self.agent, env)
            self._engine = make_fn(given.over_epochs(self.plan, self.agent), env, self._make_env, plan=self.plan,
                                   stream_episodes=self.callbacks.want_episodes)
        finally:
            if isinstance(env, HostEnv):
                env.close()
        self.spec = env.spec

    def _init(self) -> None:
        """The run at its beginning."""
        self._engine.init(self.plan.seed)
        self._per_iteration = self._engine.steps_per_iteration

    def open_for_acting(self, seed: int) -> Any:
        """The engine with the newest checkpoint's learner; environments stand at their start."""
        point, _ = store.newest(self.folder, self._check)
        self.plan = dataclasses.replace(self.plan, seed=seed)
        self._prepare()
        self._init()
        if not point.meta.get("fresh"):
            with naming(self.folder / store.CHECKPOINTS / f"step-{point.step}"):
                self._engine.load_policy(point.tensors)
        return self._engine

    # --- the loop ---

    def run(self, *, steps: int = 0, episodes: int = 0, minutes: float = 0.0, inexact: bool = False) -> dict[str, Any]:
        """Train until the budget is spent; the arguments replace the plan's. Returns the result as plain data."""
        if steps or episodes or minutes:
            self.plan = dataclasses.replace(self.plan, steps=steps, episodes=episodes, minutes=minutes)
        check(self.plan)
        first = self._engine is None
        if first:
            self._prepare()
            check_horizon(self.plan)
        self._out = self._out or free_folder(self.plan)
        if first and not self._resuming:
            store.create_run(self.folder, config_of(self.plan))
        with ExitStack() as stack:
            stack.enter_context(store.lock(self.folder))
            self._signals = stack.enter_context(Signals())
            self._progress = Progress(self.plan.steps or None, quiet=self.quiet)
            stack.callback(self._progress.stop)
            with _memory_errors(self.plan):
                return self._run(stack, first, inexact)

    def _run(self, stack: ExitStack, first: bool, inexact: bool) -> dict[str, Any]:
        stack.callback(self._engine.rest)
        self._begun = time.perf_counter()
        if first:
            self._engine.settle(self.folder, self._progress.warn, lambda: bool(self._signals.received), self.plan.trace)
            self._init()
            self._resume(inexact)
        self._metrics, self._timing = JsonlSink(self.folder / METRICS), JsonlSink(self.folder / TIMING, mend=True)
        self._csv = CsvSink(self.folder / "metrics.csv", self.folder / METRICS)
        stack.callback(self._close_files)
        self._log_every = log_interval(self.plan, self._per_iteration)
        self._save_steps, self._save_s = cadence(self.plan.checkpoint_every)
        self._saved_at, self._saved_time = self.step, time.perf_counter()
        self._calls: list[tuple[int, float]] = []
        self._progress.start(f"{self.plan.algo} on {self.plan.env}", self.step, self._elapsed())
        self.callbacks.start(self)
        reason = self._reached() or self._asked()
        while not reason:
            reason = self._turn()
        return self._finish(reason)

    def _turn(self) -> str:
        """One call of the engine and all that follows from it; why to stop, or nothing."""
        self.callbacks.iteration_start(self)
        self._looked_at = self.step
        before = self._compilations.seconds
        report = self._engine.run(self._limits())
        self._calls.append((self._taken(report),
                            report.run_s - max(0.0, self._compilations.seconds - before - report.compile_s)))
        for iteration in report.iterations:
            self._account(iteration)
        reason = self._reached() or self._evaluate_if_due()
        reason = self._signals.name if self._signals.received else reason or self._asked()
        if reason or self._due_to_save():
            self._save(final=bool(reason))
        self._report(report)
        return reason or self._asked()  # the checkpoint's callback may have asked, too

    def _asked(self) -> str:
        return "callback" if self.callbacks.asked_to_stop else ""

    def _limits(self) -> Limits:
        """How far the engine may go before the main loop must look: the next boundary that is known."""
        left = _NEVER * self._per_iteration
        if self.plan.steps:
            left = min(left, self.plan.steps - self.step)
        for every in (self.plan.eval_every, self._save_steps):
            if every:
                left = min(left, every - self.step % every)
        iterations = max(1, -(-left // self._per_iteration))
        if self.callbacks.want_iterations:
            iterations = 1
        if self.plan.minutes and self._calls and self._calls[-1][1] > 0:
            steps, seconds = self._calls[-1]
            remaining = self.plan.minutes * 60 - self._elapsed()
            iterations = max(1, min(iterations, int(remaining * steps / seconds / self._per_iteration)))
        episodes = self.plan.episodes - self.episodes if self.plan.episodes else _NEVER
        target = self.plan.target_return if not self.plan.eval_every else math.inf
        return Limits(iterations, episodes, target, self.plan.steps - self.step if self.plan.steps else 2**62)

    def _taken(self, report: Any) -> int:
        """Environment steps of a call."""
        return sum(self._per_iteration if iteration.steps is None else iteration.steps for iteration in report.iterations)

    def _account(self, iteration: Iteration) -> None:
        before = self.step
        self.step += self._per_iteration if iteration.steps is None else iteration.steps
        self.iteration += 1
        self.updates += 1 if iteration.steps is None else iteration.steps
        self.episodes += iteration.episodes
        self.mean_return = iteration.mean_return
        self._window.add(iteration.metrics, iteration.episodes, iteration.return_sum, iteration.length_sum, iteration.mean_return)
        self.callbacks.iteration_end(self, iteration)
        if self.step // self._log_every > before // self._log_every:
            self._row = self._window.row(self.step, self.iteration, self.updates, self.episodes)
            self._metrics.put(self._row)
            self._try(self._metrics.flush)

    def _reached(self) -> str:
        """The part of the budget that is spent, or nothing."""
        plan = self.plan
        if plan.steps and self.step >= plan.steps:
            return "steps"
        if plan.episodes and self.episodes >= plan.episodes:
            return "episodes"
        if plan.minutes and self._elapsed() >= plan.minutes * 60:
            return "minutes"
        if not plan.eval_every and self.episodes >= flow.RECENT and self.mean_return >= plan.target_return:
            return "target"
        # so that a run which its score had ended does not go on when it is resumed
        return self._scored() if plan.eval_every and self.evaluated_at == self.step else ""

    def _elapsed(self) -> float:
        return self._used_s + time.perf_counter() - self._begun

    # --- evaluation ---

    def _evaluate_if_due(self) -> str:
        every = self.plan.eval_every
        if not every or self.step // every == self._looked_at // every:
            return ""
        self._evaluate()
        return self._scored()

    def _scored(self) -> str:
        """Whether the newest evaluation ends the run."""
        if self.eval_return >= self.plan.target_return:
            return "target"
        return "patience" if self.plan.patience and self.misses >= self.plan.patience else ""

    def _evaluate(self) -> None:
        """Score the policy as it is now, log it, and keep it if it is the best so far."""
        scores = self._engine.evaluate(self.plan.eval_episodes)
        self.scores = scores
        returns = flow.team_return(np.asarray(scores.returns, np.float64), 1)
        self.eval_return, self.evaluated_at = float(returns.mean()), self.step
        self._metrics.put({"step": self.step, "iteration": self.iteration, "eval_return": self.eval_return,
                           "eval_std": float(returns.std()), "eval_length": float(np.mean(scores.lengths))})
        self._progress.note(f"evaluation at {self.step}: {self.eval_return:.1f}")
        if self.eval_return > self.best:
            self.best, self.best_step, self.misses = self.eval_return, self.step, 0
            self._try(lambda: store.save_best(self.folder, self.step, *self._cut(), self._engine.attach))
        else:
            self.misses += 1
        self.callbacks.evaluation(self, scores)

    # --- checkpoints ---

    def _due_to_save(self) -> bool:
        by_steps = self._save_steps and self.step // self._save_steps > self._saved_at // self._save_steps
        return bool(by_steps) or time.perf_counter() - self._saved_time >= self._save_s

    def _cut(self) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, int]]:
        self._metrics.flush(sync=True)
        meta = {"counters": {name: getattr(self, name) for name in _COUNTERS}, "mean_return": repr(self.mean_return),
                "best": repr(self.best), "eval_return": repr(self.eval_return), "window": self._window.state(),
                "used_s": self._elapsed(), "steps_again": self._steps_again, "device": describe(),
                "algo": self.plan.algo, "env": self.plan.env, "threads": self.plan.threads, "plan": decided(self.plan)}
        return self._engine.cut(), meta, {METRICS: self._metrics.length()}

    def _save(self, final: bool = False) -> None:
        """Write a checkpoint. A full or failing disk does not stop training, only the end of it."""
        self._saved_at, self._saved_time = self.step, time.perf_counter()
        path = self._try(lambda: store.save(self.folder, self.step, *self._cut(), self._engine.attach), final)
        if path is not None:
            self._try(self._csv.flush)
            self._try(lambda: store.prune(self.folder, self.plan.keep))
            self.callbacks.checkpoint(self, path)

    def _try(self, action: Any, final: bool = False) -> Any:
        try:
            return action()
        except StoreError as error:
            if final:
                raise
            self._progress.warn(f"could not save: {error}; training goes on and will try again")
            return None

    def _resume(self, inexact: bool) -> None:
        """Continue from the newest checkpoint that loads; checkpoint 0 is the beginning."""
        point, skipped = store.newest(self.folder, self._check)
        for line in skipped:
            self._progress.warn(line)
        if not point.meta.get("fresh"):
            self._restore(point, inexact)
        reached = last_step(self.folder / METRICS, point.lengths.get(METRICS, 0))
        self._steps_again = int(point.meta.get("steps_again", 0)) + max(0, reached - point.step)
        store.truncate(self.folder, {METRICS: 0} | point.lengths)

    def _check(self, path: Path, point: Checkpoint) -> None:
        check_record(path, point, _COUNTERS, decided(self.plan))
        if not point.meta.get("fresh"):
            with naming(path / MANIFEST):
                Window().load(point.meta["window"])

    def _restore(self, point: Checkpoint, inexact: bool) -> None:
        meta = point.meta
        with consuming(point.tensors), self._signals.leaving():
            notes = self._engine.load(point.tensors, inexact)
        for note in notes:
            self._progress.warn(note)
        for name in _COUNTERS:
            setattr(self, name, int(meta["counters"][name]))
        self.mean_return, self.best, self._used_s = float(meta["mean_return"]), float(meta["best"]), float(meta["used_s"])
        self.eval_return = float(meta["eval_return"])
        self._window.load(meta["window"])
        now = describe()
        differs = [f"{name} {was} → {now[name]}" for name, was in meta["device"].items() if now.get(name) != was]
        if differs:
            self._progress.warn(f"resumed with {', '.join(differs)}: it goes on, but not to the same bits")

    # --- reporting ---

    def _report(self, report: Any) -> None:
        seconds = max(report.run_s, 1e-9)
        self._timing.put({"step": self.step, "wall_s": self._elapsed(), "iterations": len(report.iterations),
                          "steps_per_s": self._taken(report) / seconds,
                          "compilations": self._compilations.count} | self._engine.timing())
        self._try(self._timing.flush)
        self._progress.update(self.step, getattr(self, "_row", {}) | {"mean_return": self.mean_return}, self._elapsed())

    def _rate(self) -> float:
        """Steps per second after warm-up: without the first call, if there was another."""
        calls = self._calls[1:] or self._calls
        return sum(steps for steps, _ in calls) / max(sum(s for _, s in calls), 1e-9) if calls else 0.0

    def _finish(self, reason: str) -> dict[str, Any]:
        signalled = self._signals.received
        if not signalled and self.evaluated_at != self.step:
            self._evaluate()
            self._save(final=True)  # again, now with the score
        self.callbacks.stop(self, reason)
        self._progress.stop()
        write_curve(self.folder, title=f"{self.plan.algo} on {self.plan.env}")
        return {
            "algo": self.plan.algo, "env": self.plan.env, "runtime": self.runtime.name, "path": self._engine.path,
            "workers": self._engine.workers, "seed": self.plan.seed, "steps": self.step, "episodes": self.episodes,
            "updates": self.updates, "ledger": self._engine.ledger(), "steps_again": self._steps_again,
            "staleness": self._engine.staleness(), "wall_s": self._elapsed(), "compile_s": self._compilations.seconds,
            "steps_per_s": self._rate(), "mean_return": self.mean_return, "eval_return": self.eval_return,
            "params_sha256": store.sha256(self._engine.learner()), "run_dir": str(self.folder), "stopped_by": reason,
            "exit_code": 128 + signalled if signalled else 0,
        }

    def _close_files(self) -> None:
        for sink in (self._metrics, self._timing, self._csv):
            sink.close()

    @property
    def folder(self) -> Path:
        """The run folder; chosen when the run starts, if it was not given."""
        if self._out is None:
            raise ConfigError("the run has no folder yet; give out=, or run it first")
        return self._out

    @property
    def engine(self) -> Any:
        return self._engine

    def close(self) -> None:
        """Let go of environments."""
        if self._engine is not None:
            self._engine.close()


_COUNTERS = ("step", "iteration", "episodes", "updates", "best_step", "misses", "evaluated_at")


@contextmanager
def _memory_errors(plan: Plan) -> Iterator[None]:
    """What does not fit is said in one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ShoalError(f"out of memory with num_envs = {plan.num_envs}; try fewer environments, shorter chunks (num_steps) or "
                         "smaller networks") from error


def config_of(plan: Plan) -> dict[str, Any]:
    """The plan as it is written to config.toml."""
    return {"shoal_version": shoal.__version__} | dataclasses.asdict(plan)
