"""What the user calls: train, resume, evaluate and load; and the same for the command line, in plain data."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shoal import config, given, registry, store
from shoal.errors import ConfigError
from shoal.plan import Plan
from shoal.runtime import device as devices


def _agent(plan: Plan) -> Any:
    """The algorithm that a plan names, in its team."""
    if plan.algo.startswith("object:") or plan.env.startswith("object:"):
        which = plan.algo if plan.algo.startswith("object:") else plan.env
        raise ConfigError(f"{which.removeprefix('object:')} was given as an object without a name; register it to resume or load its run")
    agent = registry.find("algo", plan.algo)(**plan.algorithm)
    return registry.find("team", plan.team)(agent) if plan.team else agent


def _loop(plan: Plan, out: Path | str | None, quiet: bool, resume: bool = False) -> Any:
    devices.prepare(plan.device, plan.threads)
    from shoal.main_loop import MainLoop

    settings = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}
    for name in ("algo", "env", "team", "runtime", "algorithm"):
        del settings[name]
    registry.load_plugins(plan.plugins)
    return MainLoop(plan.env, _agent(plan), runtime=plan.runtime, out=out, quiet=quiet, resume=resume, **settings)


def _open(folder: str | Path, plugins: tuple[str, ...] = (), more_steps: int = 0) -> Plan:
    """The plan of an existing run, extended where asked. The run's file names its plugins; only the caller imports them."""
    raw = store.read_config(Path(folder))
    registry.load_plugins(plugins)
    config.check_plugins(raw.get("plugins", ()), {*plugins, *sys.modules}, str(folder))
    plan = config.plan_from_dict(raw, str(Path(folder) / store.CONFIG))
    if more_steps:
        point, _ = store.newest(Path(folder))
        plan = dataclasses.replace(plan, steps=point.step + more_steps, episodes=0, minutes=0.0)
    return plan


# --- Python ----------------------------------------------------------------------------------------------------------


class Run:
    """A finished or stopped run: its result, and what to do with it."""

    def __init__(self, loop: Any, result: dict[str, Any]):
        self._loop, self.result, self.folder = loop, result, Path(result["run_dir"])

    def __repr__(self) -> str:
        r = self.result
        return f"Run({r['algo']} on {r['env']}, {r['steps']} steps, score {r['eval_return']:.1f}, {r['run_dir']})"

    def evaluate(self, episodes: int = 100, *, sampled: bool = False) -> dict[str, float]:
        """Score the policy over ``episodes`` episodes on evaluation seeds."""
        return _summary(self._loop.engine.evaluate(episodes, greedy=not sampled), self._loop.plan.target_return)

    def policy(self) -> Any:
        """What acts: parameters, or of a table the best action of every row."""
        return self._loop.engine.policy()

    def save(self, folder: str | Path) -> Path:
        """Copy config and newest checkpoint to ``folder``, for ``shoal.load`` and ``shoal resume``."""
        return store.copy_run(self.folder, Path(folder))

    def act(self, obs: Any) -> Any:
        """The greedy action for one observation, in the environment's own units."""
        return load(self.folder).act(obs)


def train(agent: Any, env: Any, *, steps: int = 0, episodes: int = 0, minutes: float = 0.0, team: str = "", device: str = "auto",
          threads: int = 1, **settings: Any) -> Run:
    """Train ``agent`` in ``env`` until the budget is spent: ``shoal.train(shoal.PPO(), "CartPole-v1", steps=200_000)``.

    ``env`` is a name, a compiled environment, or a vector made by ``gymnasium.make_vec``; that one is evaluated on, too, and running
    episodes are given up for it. All fields of the plan are keywords (``seed``, ``num_envs``, ``eval_every`` …), besides ``out``,
    ``replay``, ``callbacks`` and ``quiet``.
    """
    registry.load_plugins(tuple(settings.get("plugins", ())))
    if isinstance(agent, str):
        agent = registry.find("algo", agent)
    if isinstance(agent, type):
        agent = agent()
    if not hasattr(agent, "runs_on") and not (hasattr(agent, "update") and hasattr(agent, "act")):
        raise ConfigError(f"agent = {agent!r}: expected an algorithm such as shoal.PPO(), or the name of one")
    devices.prepare(device, threads)
    from shoal.main_loop import MainLoop

    if team:
        agent = registry.find("team", team)(agent)
    if not (steps or episodes or minutes):
        steps = config.DEFAULT_STEPS
    loop = MainLoop(env, agent, device=device, threads=threads, **settings)
    loop.plan = dataclasses.replace(loop.plan, steps=steps, episodes=episodes, minutes=minutes)
    _check_fields(loop.plan)
    return Run(loop, _run(loop))


def _run(loop: Any, inexact: bool = False) -> dict[str, Any]:
    """Run a loop. Under MPI every rank comes here: those other than 0 keep lanes until the end, and end then."""
    if loop.plan.runtime != "mpi":
        return loop.run(inexact=inexact)
    from shoal.runtime import mpi

    with mpi.ending_the_job(mpi.world()):
        if mpi.rank():
            mpi.serve(given.with_horizon(loop.plan, loop.agent)[0])
            raise SystemExit(0)
        try:
            return loop.run(inexact=inexact)
        finally:
            loop.close()


def _check_fields(plan: Plan) -> None:
    """The checks of the command line, for what has a name; an object checks itself."""
    if plan.algo.startswith("object:"):
        return
    named = not plan.env.startswith("object:")
    if plan.steps and plan.algorithm.get("horizon") == float("inf"):
        plan = dataclasses.replace(plan, algorithm=plan.algorithm | {"horizon": float(plan.steps)})
    config.plan_from_dict(config.plan_to_dict(plan) | ({} if named else {"env": Plan.env, "env_options": {}}))


def resume(folder: str | Path, *, steps: int = 0, inexact: bool = False, quiet: bool = True, plugins: tuple[str, ...] = ()) -> Run:
    """Continue the run in ``folder`` to its budget, or for ``steps`` more."""
    plan = _open(folder, plugins, steps)
    loop = _loop(plan, folder, quiet, resume=True)
    if steps and not follows(plan):
        from shoal.main_loop import config_of

        store.rewrite_config(Path(folder), config_of(loop.plan))
    return Run(loop, _run(loop, inexact))


def follows(plan: Plan) -> bool:
    """Whether another process of this job drives the run, and writes its folder."""
    if plan.runtime != "mpi":
        return False
    from shoal.runtime import mpi

    return mpi.rank() > 0


def evaluate(folder: str | Path, episodes: int = 100, *, sampled: bool = False, seed: int | None = None,
             plugins: tuple[str, ...] = ()) -> dict[str, float]:
    """Score the newest policy of a run."""
    if episodes < 1:
        raise ConfigError(f"episodes = {episodes}: expected a number of at least 1")
    plan = _open(folder, plugins)
    engine = _engine(plan, folder, seed)
    try:
        return _summary(engine.evaluate(episodes, greedy=not sampled), plan.target_return)
    finally:
        engine.close()


def load(folder: str | Path, *, plugins: tuple[str, ...] = ()) -> Policy:
    """The newest policy of a run, ready to act."""
    return Policy(folder, plugins)


class Policy:
    """A trained policy: ``act(obs)`` answers in the environment's own units. ``reset()`` where an episode begins.

    The run's own maps of observations (--frame-stack, --flatten-obs) are applied here, to what the environment itself shows.
    """

    def __init__(self, folder: str | Path, plugins: tuple[str, ...] = ()):
        import jax

        from shoal import envs, lane
        from shoal.envs.stacking import Observer

        self.plan = _open(folder, plugins)
        engine = _engine(self.plan, folder, None)
        self._env = envs.from_plan(self.plan)
        self._observer, self.spec = Observer(self._env), self._env.spec
        self._table: Any = None
        if self.plan_is_table(engine):
            return
        self.spec, self._agent, self._params = engine.spec, engine.algorithm, engine.policy()
        self._memory = self._agent.memory(self.spec, 1)
        self._role = lane.role(0.0, 1, greedy=True)
        key = jax.random.key(0)
        self._noise = jax.tree.map(lambda x: x[0], self._agent.draw(self.spec, key, (1, 1)))  # greedy: not used
        self._call = jax.jit(lambda a, *rest: a.act(*rest))
        engine.close()

    def plan_is_table(self, engine: Any) -> bool:
        """Whether it is a table that acts; then that is all there is to it."""
        if getattr(engine.algorithm, "runs_on", "") == "tables":
            from shoal.table_api import Acting

            self._table = Acting(engine, self._env)
            engine.close()
        return self._table is not None

    def reset(self) -> None:
        """Forget the episode so far: the policy's memory and the observations it was shown."""
        self._observer.reset()
        if self._table is None:
            self._memory = self._agent.memory(self.spec, 1)

    def act(self, obs: Any) -> Any:
        """The greedy action for one observation (for a team: one row per agent)."""
        import jax

        from shoal.envs import maps

        if self._table is not None:
            return maps.native(self._env, self._table(self._observer(obs)))
        row = jax.tree.map(lambda x: np.asarray(x)[None], self._observer(obs), is_leaf=lambda x: isinstance(x, (list, tuple)))
        row = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, row)
        acted = self._call(self._agent, self._params, self._memory, row, self._role, self._noise)
        self._memory = acted.memory
        action = maps.native(self._env, np.asarray(acted.action)[0])
        return action.item() if isinstance(action, np.ndarray | np.generic) and action.ndim == 0 else action


def _engine(plan: Plan, folder: str | Path, seed: int | None) -> Any:
    """An engine with the newest checkpoint's learner, for acting only: its environments are not brought back."""
    loop = _loop(plan, folder, True, resume=True)
    return loop.open_for_acting(plan.seed if seed is None else seed)


def _summary(scores: Any, target: float) -> dict[str, float]:
    from shoal import flow

    returns = flow.team_return(np.asarray(scores.returns, np.float64), 1)
    success = np.asarray(scores.success, np.float64)
    rate = float(success.mean()) if not np.isnan(success).any() else (
        float((returns >= target).mean()) if np.isfinite(target) else float("nan"))
    return {"mean_return": float(returns.mean()), "std_return": float(returns.std()), "min_return": float(returns.min()),
            "max_return": float(returns.max()), "success_rate": rate, "episodes": len(returns)}


# --- command line ----------------------------------------------------------------------------------------------------


def _with_curve(run: Run) -> dict[str, Any]:
    from shoal.monitor.curve import text_curve
    from shoal.monitor.sinks import read_rows

    rows = [row for row in read_rows(run.folder / "metrics.jsonl") if row.get("mean_return") is not None]
    curve = text_curve([r["step"] for r in rows], [r["mean_return"] for r in rows], title="mean return of the last 100 episodes",
                       x_label="environment steps")
    return run.result | {"curve": curve, "picture": str(run.folder / "learning_curve.svg")}


def run_train(plan: Plan, out: str | None, quiet: bool, note: str) -> dict[str, Any]:
    """What ``shoal train`` does, once its input is known to be good."""
    loop = _loop(plan, out, quiet)
    return _with_curve(Run(loop, _run(loop)))


def run_resume(folder: str, more_steps: int, inexact: bool, quiet: bool) -> dict[str, Any]:
    return _with_curve(resume(folder, steps=more_steps, inexact=inexact, quiet=quiet))


def run_eval(folder: str, episodes: int, sampled: bool, seed: int | None) -> dict[str, Any]:
    return evaluate(folder, episodes, sampled=sampled, seed=seed)


def run_gap(folder: str) -> dict[str, Any]:
    """What ``shoal eval --gap`` says."""
    from shoal import envs, table_api

    plan = _open(folder)
    engine = _engine(plan, folder, None)
    try:
        policy = None if getattr(engine.algorithm, "runs_on", "") == "tables" else load(folder)
        return table_api.gap_of(plan, engine, lambda: envs.from_plan(plan), policy.act if policy else None)
    finally:
        engine.close()


def gap_lines(found: dict[str, Any]) -> list[str]:
    from shoal.tabular import gap

    return gap.lines(found)


def run_play(name: str, folder: str, second: bool, ask_fn: Callable[[str], str], say_fn: Callable[[str], Any]) -> int:
    """What ``shoal play`` does."""
    from shoal import envs, table_api

    plan = _open(folder) if folder else None
    if plan is not None and (plan.env != name or registry.home_room("algo", plan.algo) != "tabular"):
        raise ConfigError(f"{folder}: a run of {plan.algo} on {plan.env}, not of a table on {name}")
    engine = _engine(plan, folder, None) if plan is not None else None
    return table_api.play_against(name, envs.make(name), engine, second, ask_fn, say_fn)


def run_render(folder: str, mode: str, sampled: bool, seed: int | None, max_frames: int, show_fn: Callable[[Any], None]
               ) -> dict[str, Any]:
    """Play one evaluation episode of a run: text goes to ``show_fn`` shot by shot, pictures into ``folder/render``."""
    plan = _open(folder)
    devices.prepare(plan.device, plan.threads)
    from shoal.envs import playback

    env = playback.open_env(plan, mode)  # refused before anything is compiled
    engine = _engine(plan, folder, seed)
    try:
        act_fn = _acting(engine, plan.seed if seed is None else seed, sampled)
        shots = playback.play(env, act_fn, mode=mode, seed=plan.seed if seed is None else seed, max_steps=max_frames - 1)
        if mode == "text":
            where = ""
            for shot in shots:
                show_fn(shot)
        else:
            where, shot = _write_pictures(Path(folder) / "render", mode, shots)
    finally:
        engine.close()
        if hasattr(env, "close"):
            env.close()
    return {"episode_return": shot.total, "length": shot.step, "frames": shot.step + 1, "over": shot.over, "path": where}


def _acting(engine: Any, seed: int, sampled: bool) -> Callable[[Any, int], Any]:
    """One environment's actions, in the engine's own units: greedy, or drawn as the evaluation draws them."""
    import jax

    from shoal import lane, rng

    if getattr(engine.algorithm, "runs_on", "") == "tables":
        from shoal import envs, table_api

        table = table_api.Acting(engine, envs.from_plan(engine.plan))
        return lambda obs, t: table(obs)
    agent, params, spec = engine.algorithm, engine.policy(), engine.spec
    role, memory, root = lane.role(0.0, 1, greedy=not sampled), agent.memory(spec, 1), rng.root(seed)

    @jax.jit
    def call(agent: Any, params: Any, memory: Any, obs: Any, key: Any) -> Any:
        noise = jax.tree.map(lambda x: x[0], agent.draw(spec, key, (1, 1)))
        return agent.act(params, memory, obs, role, noise)

    def act(obs: Any, t: int) -> Any:
        nonlocal memory
        row = jax.tree.map(lambda x: np.asarray(x)[None], obs)
        row = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, row)
        acted = call(agent, params, memory, row, rng.key(root, rng.Stream.EVAL_ACT, t))
        memory = acted.memory
        return np.asarray(acted.action)[0]

    return act


def _write_pictures(folder: Path, mode: str, shots: Any) -> tuple[str, Any]:
    """Every shot as a file of its own, or all in one; where, and the last shot."""
    from shoal.envs import picture, playback

    try:
        folder.mkdir(exist_ok=True)
        images = []
        if mode == "rgb":
            for old in folder.glob("frame-[0-9][0-9][0-9][0-9][0-9].png"):  # of an earlier, perhaps longer episode
                old.unlink()
        for shot in shots:
            if mode == "rgb":
                (folder / f"frame-{shot.step:05d}.png").write_bytes(picture.png(shot.picture))
            else:
                images.append(playback.thin(shot.picture))
        if mode == "gif":
            (folder / "episode.gif").write_bytes(picture.gif(images, playback.FRAME_S))
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be written to: {error.strerror}") from error
    return str(folder / "episode.gif" if mode == "gif" else folder), shot
