"""An experiment by its names, so that another process can make the same one: what a driver tells and what a worker does with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from shoal import envs, registry
from shoal.errors import ConfigError
from shoal.given import over_epochs
from shoal.plan import Plan
from shoal.runtime.cut import on_device
from shoal.runtime.told import plan_of
from shoal.runtime.wire import tagged
from shoal.types import HostEnv

def describe(plan: Plan) -> dict[str, Any]:
    """A plan as data; refused where it holds something that has no name."""
    for kind, name in (("env", plan.env), ("algorithm", plan.algo)):
        if name.startswith("object:"):
            what = name.removeprefix("object:")
            raise ConfigError(f"runtime = {plan.runtime!r}: {kind} {what} was given as an object, which other processes cannot make; "
                              f"register it (shoal.register) and give its name, or use runtime 'local'")
    fields = {name: tagged(getattr(plan, name)) for name in plan.__dataclass_fields__}
    # a plugin that registers a name may not be where its class is defined: both are imported
    homes = [found for kind, name in _used(plan) for found in (registry.provider(kind, name), registry.home(kind, name))]
    modules = dict.fromkeys([*plan.plugins, *(module for module in homes if module and module != "__main__")])
    return {"plan": fields, "plugins": list(modules), "script": _script(plan)}


def _used(plan: Plan) -> tuple[tuple[str, str], ...]:
    """The names of a plan that may be a user's own."""
    return ("algo", plan.algo), ("env", plan.env), ("net", str(plan.algorithm.get("net", "")))


def _script(plan: Plan) -> str:
    """The user's own script, where something the plan names was registered in it."""
    if not any(registry.home(kind, name) == "__main__" for kind, name in _used(plan)):
        return ""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if not path or not os.path.isfile(path):
        raise ConfigError(f"runtime = {plan.runtime!r}: other processes cannot find what was registered in a notebook or at a prompt; "
                          "put it into a module and name that with plugins=(...), or use runtime 'local'")
    return os.path.abspath(path)


def rebuild(told: dict[str, Any]) -> tuple[Any, Any, Callable[[], HostEnv] | None]:
    """Algorithm, compiled environment or None, and what makes one that lives in Python: those that ``describe`` described."""
    plan = plan_of(told)
    agent = registry.find("algo", plan.algo)(**plan.algorithm)
    agent = over_epochs(plan, registry.find("team", plan.team)(agent) if plan.team else agent)

    def make() -> Any:
        return envs.from_plan(plan, plan.env)

    env = make()
    if isinstance(env, HostEnv):
        env.close()
        return on_device(agent), None, make
    return on_device(agent), env, None
