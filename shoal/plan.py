"""The plan of a run: everything that decides it, as plain data. One record, from which flags, TOML keys,
``MainLoop`` arguments and ``config.toml`` all follow. No JAX here."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError
from shoal.toml import dumps_toml, loads_toml


@dataclass(frozen=True, kw_only=True)
class Plan:
    algo: str = "ppo"
    """Algorithm, by registered name."""
    env: str = "cartpole"
    """Environment: a built-in or registered name, or a Gymnasium id."""
    steps: int = 0
    """Stop at the first iteration boundary at or after this many environment steps (0: no such limit)."""
    episodes: int = 0
    """Stop at the first iteration boundary at or after this many finished episodes (0: no such limit)."""
    minutes: float = 0.0
    """Stop at the first iteration boundary at or after this many minutes (0: no such limit)."""
    target_return: float = math.inf
    """Stop once this is reached: by an evaluation if --eval-every is set, else by the mean of the last 100 training episodes."""
    patience: int = 0
    """Stop after this many evaluations in a row without a new best (0: never)."""
    seed: int = 0
    """Every random draw of the run follows from this."""
    num_envs: int = 8
    """Environments that run side by side."""
    lane_envs: int = 0
    """Environments per lane, the unit that is acted by one call (0: min(8, num_envs))."""
    path: str = "auto"
    """auto, fused (environment and learner compiled into one program) or ported (lanes, chunks and ports)."""
    runtime: str = "local"
    """Where it runs; see `shoal list runtimes`."""
    workers: str = "auto"
    """Worker processes: a number, or auto for as many as help here: a step that takes less than 50 µs is best taken in this process."""
    mode: str = "sync"
    """sync: workers and learner in step, the same bits for any number of workers; async: none waits for another, an update a chunk."""
    topology: str = "learner"
    """learner: workers send what they saw, one learns; server (async): workers learn, and push gradients or how far they moved."""
    max_staleness: int = 32
    """Asynchronous runs drop a chunk whose policy is more than this many updates old."""
    lag: int = 0
    """0: learn from what the newest policy did; 1: from what the one before did, while the newest acts: both sides work at once."""
    train_interval: int = 1
    """Learn after this many epochs of num_steps: from all of them, none passed over; at lag 1 while the next ones are collected."""
    step_timeout_s: float = 60.0
    """A worker that gives no sign of life for so long, in one step or reset of its environment, is ended and started again."""
    trace: bool = False
    """Write a timeline of every process; `shoal trace DIR` says where the time went and makes a file that trace viewers open."""
    max_restarts: int = 0
    """Stop the run after this many restarts of workers (0: no such limit)."""
    device: str = "auto"
    """auto, cpu or gpu."""
    threads: int = 1
    """Threads XLA may use on the CPU for one call; changes speed, never a bit. Small networks and SAC, which makes two calls at once, are
    fastest with 1."""
    max_episode_steps: int = 0
    """Truncate episodes after this many steps (0: the environment's own limit)."""
    sticky_actions: float = 0.0
    """Probability that the environment is given its previous action again instead of the new one. Applied first."""
    frame_stack: int = 1
    """Show the last this many observations together (1: only the current one). Applied after --max-episode-steps."""
    flatten_obs: bool = False
    """Show observations as one vector, choices one-hot. Applied after --frame-stack; bounded actions are rescaled last."""
    eval_every: int = 0
    """Evaluate every this many steps (0: only at the end)."""
    eval_episodes: int = 100
    """Greedy episodes per evaluation."""
    checkpoint_every: str = "60s"
    """Save every so often: a time such as 30s or 5m, or a number of steps; 0: only at the end."""
    keep: int = 3
    """Checkpoints to keep besides the best one."""
    log_every: int = 0
    """Write a row of metrics every this many steps (0: chosen from the budget)."""
    team: str = ""
    """independent or shared: how the agents of a multi-agent environment learn (empty: a single agent)."""
    preset: str = "auto"
    """auto (used where one exists), none, or the environment name of a preset."""
    plugins: tuple[str, ...] = ()
    """Modules of yours to import first, so that their registered names are known."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Arguments for the environment."""
    algorithm: dict[str, Any] = field(default_factory=dict)
    """Fields of the algorithm."""

    @property
    def lane_size(self) -> int:
        return self.lane_envs or min(8, self.num_envs)


_CHOICES = {"mode": ("sync", "async"), "topology": ("learner", "server"),
            "path": ("auto", "fused", "ported"), "device": ("auto", "cpu", "gpu"),
            "team": ("", "independent", "shared")}
_AT_LEAST = {"steps": 0, "episodes": 0, "minutes": 0, "patience": 0, "seed": 0, "num_envs": 1, "lane_envs": 0, "threads": 1,
             "max_episode_steps": 0, "sticky_actions": 0, "frame_stack": 1, "eval_every": 0, "eval_episodes": 1, "keep": 1,
             "log_every": 0, "lag": 0, "train_interval": 1, "step_timeout_s": 0.01, "max_restarts": 0,
             "max_staleness": 0}

_AT_MOST = {"threads": 1024, "num_envs": 2**24, "lane_envs": 2**24, "sticky_actions": 1, "frame_stack": 1024, "lag": 1,
            "train_interval": 2**20, "max_staleness": 10_000, "step_timeout_s": 86400}


NO_HORIZON = (0.0, math.inf)


def cadence(text: str) -> tuple[int, float]:
    """``"60s"`` → (0 steps, 60 seconds), ``"5000"`` → (5000, inf), ``"0"`` → (0, inf): never."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        if text and text[-1] in units:
            seconds = float(text[:-1]) * units[text[-1]]
            if not (seconds > 0 and math.isfinite(seconds)):
                raise ValueError
            return 0, seconds
        steps = int(text)
        if steps < 0:
            raise ValueError
        return steps, math.inf
    except ValueError:
        raise ConfigError(f"checkpoint_every = {text!r}: expected a time such as 30s or 5m, or a number of steps") from None


def check(plan: Plan) -> None:
    """Refuse a plan that cannot run, with one line that says why and what would."""
    types = {"int": int, "float": (int, float), "str": str, "bool": bool, "tuple[str, ...]": tuple, "dict[str, Any]": dict}
    for item in dataclasses.fields(plan):
        value, kind = getattr(plan, item.name), str(item.type)
        if not isinstance(value, types[kind]) or (isinstance(value, bool) and kind != "bool"):  # type: ignore[arg-type]
            raise ConfigError(f"{item.name} = {value!r}: expected {kind.split('[')[0]}")
        if item.name in _AT_LEAST and not value >= _AT_LEAST[item.name]:
            raise ConfigError(f"{item.name} = {value!r}: expected a number of at least {_AT_LEAST[item.name]}")
        if item.name in _AT_MOST and value > _AT_MOST[item.name]:
            raise ConfigError(f"{item.name} = {value!r}: expected a number of at most {_AT_MOST[item.name]}")
        if item.name in _CHOICES and value not in _CHOICES[item.name]:
            raise ConfigError(f"{item.name} = {value!r}: expected one of {', '.join(c for c in _CHOICES[item.name] if c)}")
    if plan.seed >= 2**64:
        raise ConfigError(f"seed = {plan.seed}: expected a number below 2**64")
    if math.isnan(plan.target_return) or not math.isfinite(plan.minutes):
        name = "minutes" if not math.isfinite(plan.minutes) else "target_return"
        raise ConfigError(f"{name} = {getattr(plan, name)}: expected a number")
    if plan.num_envs % plan.lane_size:
        down = plan.num_envs // plan.lane_size * plan.lane_size
        ways = " or ".join(f"--num-envs {n}" for n in (down, down + plan.lane_size) if n)
        raise ConfigError(f"num_envs = {plan.num_envs} is not a multiple of lane_envs = {plan.lane_size}; try {ways}")
    if not (plan.steps or plan.episodes or plan.minutes):
        raise ConfigError("no budget: give --steps, --episodes or --minutes")
    if plan.workers != "auto" and not (plan.workers.isascii() and plan.workers.isdecimal() and 0 < int(plan.workers) <= 1024):
        raise ConfigError(f"workers = {plan.workers!r}: expected auto, or a number from 1 to 1024")
    if plan.patience and not plan.eval_every:
        raise ConfigError(f"patience = {plan.patience} counts evaluations; give --eval-every too")
    cadence(plan.checkpoint_every)


def check_horizon(plan: Plan) -> None:
    """Refuse what changes over a horizon where there is none: it would stay as it starts for ever."""
    fields = plan.algorithm
    if fields.get("horizon", 1.0) not in NO_HORIZON:
        return
    # noisy layers explore by themselves, whatever epsilon's schedule says
    running = {key: value for key, value in fields.items()
               if key.endswith("_schedule") and value != "constant" and not (key == "epsilon_schedule" and fields.get("noisy"))}
    if fields.get("prioritised") and fields.get("priority_beta", 1.0) < 1.0:
        running["priority_beta"] = fields["priority_beta"]
    for key, value in running.items():
        raise ConfigError(f"{key} = {value!r} needs a horizon: give --steps or --horizon")


_MAY_CHANGE = ("steps", "episodes", "minutes", "target_return", "patience", "path", "runtime", "workers",
               "step_timeout_s", "trace", "max_restarts", "max_staleness", "device", "threads", "eval_every",
               "eval_episodes", "checkpoint_every", "keep", "log_every", "preset", "plugins", "algorithm", "env_options")


def decided(plan: Plan) -> dict[str, Any]:
    """What a run may not change half-way, as JSON: not its budget, which schedules may follow, nor where and how it is watched."""
    data = loads_toml(dumps_toml(dataclasses.asdict(plan)).encode())
    flat = {f"{table}.{key}": data[table][key] for table in ("algorithm", "env_options") for key in data[table] if key != "horizon"}
    flat |= {key: value for key, value in data.items() if key not in _MAY_CHANGE}
    return {key: repr(value) if isinstance(value, float) and not math.isfinite(value) else value for key, value in flat.items()}


def log_interval(plan: Plan, steps_per_iteration: int) -> int:
    """Steps between rows of metrics; from the budget where the plan leaves it open: about 500 rows."""
    return plan.log_every or max(steps_per_iteration, plan.steps // 500)


def free_folder(plan: Plan) -> Path:
    """Where a run goes that was not told where: a folder under ``runs/`` that does not exist yet; the run itself makes it."""
    safe = re.sub(r"[^\w.-]+", "-", f"{plan.algo}-{plan.env}-{plan.seed}")
    base = Path("runs") / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = base, 1
    while os.path.lexists(path):
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path
