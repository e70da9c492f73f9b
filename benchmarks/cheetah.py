"""SAC on HalfCheetah-v5 after 50,000 steps, beside Stable-Baselines3's in the same run: the same settings, seeds and evaluation.

Eight seeds of each: single runs of either differ by a thousand, so that two seeds tell little. Both are scored by ten greedy episodes
that start alike. shoal is no worse where its mean is at least SB3's less the standard error of that. shoal's own spread gains it nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import peers, stats, table
from benchmarks.training import COLUMNS, KEYS, text, train

NAME = "half_cheetah"
ENV, PATH, STEPS, SEEDS, EPISODES = "HalfCheetah-v5", "ported", 50_000, 8, 10


def bound(theirs: list[float]) -> float:
    """The least mean that is no worse than that of ``theirs``: that, less its standard error, which for a single seed counts as 0."""
    error = statistics.stdev(theirs) / len(theirs) ** 0.5 if len(theirs) > 1 else 0.0
    return statistics.fmean(theirs) - error


def row(path: str, results: list[dict[str, Any]], least: float | None, anchor: str) -> dict[str, str]:
    """A row of the page from the results of all seeds, held to ``least`` where there is one."""
    scores = [result["eval_return"] for result in results]
    interval = stats.t_interval(scores)
    return {"algorithm": "sac", "env": ENV, "path": path, "steps": f"{results[0]['steps']:,}", "mean": text(interval.mean),
            "95 % interval": f"{text(interval.low)} … {text(interval.high)}", "seeds": ", ".join(map(text, scores)),
            "threshold": "–" if least is None else f"≥ {text(least)}",
            "met": "–" if least is None else "yes" if interval.mean >= least else "no", "anchor": anchor,
            "commit": table.commit(), "date": table.today()}


def peer(python: Path, seed: int, steps: int, start_size: int) -> dict[str, Any]:
    """SB3's result of one seed; its episodes start from the seeds that shoal's do."""
    from shoal import rng

    starts = [str(rng.host_seed(seed, rng.Stream.EVAL_ENV, episode)) for episode in range(EPISODES)]
    environ = os.environ | {"PYTHONPATH": str(table.ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo leaves a log where it runs
        done = subprocess.run(
            [str(python), "-m", "benchmarks.workers.sb3_sac", "--env", ENV, "--steps", str(steps), "--seed", str(seed),
             "--start-size", str(start_size), "--eval-seeds", *starts], cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"SB3 on {ENV}: exit {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _told(name: str, result: dict[str, Any]) -> dict[str, Any]:
    print(f"sac {ENV} {name} seed {result['seed']}: {result['eval_return']:.1f} after {result['steps']:,} steps, {result['wall_s']:.1f} s",
          flush=True)
    return result


def study(page: Path, start: str, num_seeds: int, first_seed: int, steps: int = STEPS) -> bool:
    """Train both, print as it goes, and write the page; whether shoal is no worse."""
    from shoal import config
    from shoal.errors import MissingError

    seeds = list(range(first_seed, first_seed + (num_seeds or SEEDS)))
    plan, _ = config.resolve({"algo": "sac", "env": ENV})
    start_size = plan.algorithm["start_size"]
    try:
        python = peers.python("t1")
        ours = [_told(PATH, result) for result in train(ENV, PATH, steps, seeds, "sac", eval_episodes=EPISODES)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # each keeps to one core, and scores do not depend on time
            theirs = [_told("SB3", result) for result in pool.map(lambda seed: peer(python, seed, steps, start_size), seeds)]
    except (MissingError, FileNotFoundError) as missing:
        print(f"sac {ENV}: NOT run: {missing}", flush=True)
        return False
    least = bound([result["eval_return"] for result in theirs])
    new = row(PATH, ours, least, "SB3 in the same run"), row("SB3", theirs, None, theirs[0]["versions"])
    table.update(page, start, new, COLUMNS, KEYS)
    print(f"sac {ENV}: mean {new[0]['mean']}, SB3's {new[1]['mean']}, threshold {new[0]['threshold']}: {new[0]['met']}", flush=True)
    return new[0]["met"] == "yes"
