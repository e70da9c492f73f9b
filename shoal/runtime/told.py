"""What a worker makes of the plan it is told: names are looked up, modules imported. No JAX here."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from shoal import registry
from shoal.plan import Plan
from shoal.runtime.wire import untagged

SCRIPT = "__shoal_script__"  # the name a user's script has in a worker: not __main__, so that its guard keeps it from running


def plan_of(told: dict[str, Any]) -> Plan:
    """The plan that ``place.describe`` described, with everything it names known here."""
    registry.load_plugins(tuple(told["plugins"]))
    if told["script"]:
        _import_script(told["script"])
    return Plan(**{name: untagged(value) for name, value in told["plan"].items()})


def _import_script(path: str) -> None:
    spec = importlib.util.spec_from_file_location(SCRIPT, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT] = module
    spec.loader.exec_module(module)


def in_worker() -> bool:
    """Whether this is a worker that is importing a user's script."""
    return SCRIPT in sys.modules
