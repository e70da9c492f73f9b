"""Small runs, in this process and over workers; what they compile is shared."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from small_agents import small

import shoal
from shoal.main_loop import MainLoop
from shoal.monitor.progress import Progress


class Done(NamedTuple):
    result: dict[str, Any]
    folder: Path
    said: list[str]  # what was warned of

    @property
    def sha(self) -> str:
        return self.result["params_sha256"]

    @property
    def metrics(self) -> bytes:
        return (self.folder / "metrics.jsonl").read_bytes()

    @property
    def ledger(self) -> dict[str, int]:
        return self.result["ledger"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """``run(env, agent, workers, **settings)``: trains; without workers in this process, on the ported path."""
    said: list[str] = []
    warn = Progress.warn
    monkeypatch.setattr(Progress, "warn", lambda self, text: (said.append(text), warn(self, text))[1])

    def train(env: str = "troubled", agent: Any = None, workers: int = 0, runtime: Any = shoal.Processes, **settings: Any) -> Done:
        said.clear()
        given = {"num_envs": 8, "lane_envs": 2, "seed": 5, "eval_episodes": 4, "checkpoint_every": "0", "steps": 640, "path": "ported",
                 "plugins": ("troubled_worlds",), "out": tmp_path / f"run{len(os.listdir(tmp_path))}"} | settings
        where, resume = runtime(workers) if workers else "local", (Path(given["out"]) / "config.toml").exists()
        loop = MainLoop(env, agent or small(), runtime=where, resume=resume, **given)
        try:
            result = loop.run()
        finally:
            loop.close()
        return Done(result, Path(result["run_dir"]), list(said))

    return train
