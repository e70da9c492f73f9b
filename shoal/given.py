"""What a user gave, and the plan that names it: objects become names and fields, what the plan decides goes into the agent."""

from __future__ import annotations

import dataclasses
from typing import Any

from shoal import registry
from shoal.errors import ConfigError, nearest
from shoal.plan import NO_HORIZON, Plan

TABLES = "tables"  # what learners in tables run on: see ``maker``


class Replay:
    """Settings of a replay buffer in place of the agent's own: ``replay=shoal.Replay(capacity=20_000, n_step=3)``."""

    def __init__(self, **settings: Any):
        self.settings = settings


class ReplayPool(Replay):
    """The same for a pool of ``shards`` buffers that are drawn from as one."""

    def __init__(self, shards: int = 4, **settings: Any):
        super().__init__(shards=shards, **settings)


def with_replay(agent: Any, replay: Any) -> Any:
    """The agent with what ``replay`` says of its buffer, so that a run's record is that of an agent made with it."""
    if replay is None:
        return agent
    if not isinstance(replay, Replay):
        raise ConfigError(f"replay = {replay!r}: expected shoal.Replay(...) or shoal.ReplayPool(...)")
    known = getattr(agent, "KEPT", ())
    if not known:
        raise ConfigError(f"replay: {type(agent).__name__} does not learn from a replay buffer; leave it out")
    for key in replay.settings:
        if key not in known:
            raise ConfigError(f"replay: unknown setting {key!r}{nearest(key, known)}")
    return dataclasses.replace(agent, **replay.settings)


def describe(env: Any, agent: Any, runtime: Any, settings: dict[str, Any]) -> Plan:
    """The plan that names what was given; objects without a registered name are marked and cannot be resumed by name."""
    team = registry.name_of("team", type(agent)) or ""
    inner = agent.agent if team else agent
    name = registry.name_of("algo", type(inner)) or f"object:{type(inner).__name__}"
    options = {f.name: getattr(inner, f.name) for f in dataclasses.fields(inner)} if dataclasses.is_dataclass(inner) else {}
    known = {f.name for f in dataclasses.fields(Plan)}
    for key in settings:
        if key not in known:
            raise ConfigError(f"unknown setting {key!r}{nearest(key, known)}")
    env_name = env if isinstance(env, str) else f"object:{type(env).__name__}"
    runtime, settings = (runtime, settings) if isinstance(runtime, str) else (runtime.name, {"workers": runtime.workers} | settings)
    settings = settings | {"algo": name, "env": env_name, "team": team, "runtime": runtime, "algorithm": options}
    return Plan(**(settings | lanes_of_tables(settings) if getattr(inner, "runs_on", "") == TABLES else settings))


def lanes_of_tables(values: dict[str, Any]) -> dict[str, int]:
    """How many environments share a table where the plan leaves it open: here all of them; elsewhere each has one, and they are merged."""
    num_envs = int(values.get("num_envs", Plan.num_envs))
    return {} if values.get("lane_envs") else {"lane_envs": num_envs if values.get("runtime", Plan.runtime) == "local" else 1}


def maker(runtime: Any, agent: Any, env: Any) -> Any:
    """What makes the engine of an agent on a runtime."""
    wanted = getattr(agent, "runs_on", "engine")
    if hasattr(env, "game") and wanted != TABLES:
        raise ConfigError(f"{env.spec.name} is played by two in turn, which tables can learn (q_learning, sarsa, ...); "
                          f"{type(agent).__name__} and other deep algorithms cannot yet")
    if not hasattr(runtime, wanted):
        raise ConfigError(f"runtime = {runtime.name!r} does not run {type(agent).__name__}; try --runtime local or processes")
    return getattr(runtime, wanted)


def with_horizon(plan: Plan, agent: Any) -> tuple[Plan, Any]:
    """Schedules that were given no horizon run over the budget."""
    if not plan.steps or getattr(agent.agent if plan.team else agent, "horizon", 1.0) not in NO_HORIZON:
        return plan, agent
    horizon = float(plan.steps)
    return dataclasses.replace(plan, algorithm=plan.algorithm | {"horizon": horizon}), _changed(plan, agent, horizon=horizon)


def over_epochs(plan: Plan, agent: Any) -> Any:
    """The agent as it learns: from ``train_interval`` epochs of ``num_steps`` at a time, as one chunk, so that none can be passed over."""
    if plan.train_interval == 1:
        return agent
    return _changed(plan, agent, num_steps=(agent.agent if plan.team else agent).num_steps * plan.train_interval)


def _changed(plan: Plan, agent: Any, **fields: Any) -> Any:
    if plan.team:
        return dataclasses.replace(agent, agent=dataclasses.replace(agent.agent, **fields))
    return dataclasses.replace(agent, **fields)


def check_team(plan: Plan, spec: Any) -> None:
    if spec.num_agents and not plan.team:
        raise ConfigError(f"env {plan.env!r} has {spec.num_agents} agents: give --team independent or --team shared")
    if plan.team and not spec.num_agents:
        raise ConfigError(f"team = {plan.team!r}: env {plan.env!r} has a single agent; leave --team out")
