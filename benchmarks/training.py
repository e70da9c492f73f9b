"""Runs as the command line makes them, one for each seed, and how their scores are written."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COLUMNS = ("algorithm", "env", "path", "steps", "mean", "95 % interval", "seeds", "threshold", "met", "anchor", "commit", "date")
KEYS = ("algorithm", "env", "path")


def _runtime() -> Any:
    """This process, with one engine for all seeds: another seed begins anew in the program that is compiled already."""
    from shoal.runtime.fused import Fused
    from shoal.runtime.local import Local

    class Reusing(Local):
        def __init__(self) -> None:
            self._kept: Any = None

        def engine(self, *args: Any, **settings: Any) -> Any:
            if self._kept is None:
                made = super().engine(*args, **settings)
                if not isinstance(made, Fused):
                    return made
                self._kept = made
            return self._kept

    return Reusing()


def train(env: str, path: str, steps: int, seeds: list[int], algo: str = "ppo", **overrides: Any) -> Iterator[dict[str, Any]]:
    """The results of ``shoal train ALGO ENV --path … --steps … --seed …`` for each seed in turn; 0 steps: as the preset says."""
    import shoal
    from shoal import config, registry

    runtime = overrides.get("runtime") or _runtime()
    budget = {"steps": steps} if steps else {}
    for seed in seeds:
        plan, _ = config.resolve({"algo": algo, "env": env, "path": path, "seed": seed, **budget, **overrides})
        settings = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)
                    if f.name not in ("algo", "env", "team", "runtime", "algorithm")}
        with tempfile.TemporaryDirectory() as folder:
            agent = registry.find("algo", plan.algo)(**plan.algorithm)
            run = shoal.train(agent, plan.env, runtime=runtime, out=Path(folder) / "run", team=plan.team, **settings)
            if (why := run.result["stopped_by"]).startswith("SIG"):
                raise SystemExit(f"{algo} {env} seed {seed}: {why} after {run.result['steps']:,} steps; no row is written")
            yield run.result


def text(value: float) -> str:
    """A score as a table has it."""
    return f"{value:.1f}".replace("-", "−") if math.isfinite(value) else "unknown"


def number(text: str) -> float:
    """The inverse of ``text``; what is unknown has no bound."""
    return math.inf if text == "unknown" else float(text.replace("−", "-"))
