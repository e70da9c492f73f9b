"""Scores: every preset trained over several seeds, compiled and through Gymnasium, against thresholds and published scores.

``python -m benchmarks.verify [TASK …] [--seeds 5] [--path fused|ported|both]`` fills ``docs/scores.md``; the tasks are ``TASKS``, and
what is measured in a way of its own, ``STUDIES``. A score is the mean return of 100 greedy episodes of the final policy, in the
environment's own reward; no checkpoint is chosen.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import asynchronous, cheetah, cliffwalk, stats, table, verify_tables
from benchmarks.training import COLUMNS, KEYS, number, text, train

PAGE = table.ROOT / "docs" / "scores.md"
FIRST_SEED = 100  # presets are tuned on the seeds below, and held to seeds they have not seen
ROBUST = 10  # seeds from which on the middle half of them counts
AGREEMENT = ("task", "fused", "ported", "intervals overlap")
START = """# Scores

Written by `make verify`. A score is the mean return of 100 greedy evaluation episodes of the final policy, on evaluation seeds of
their own, in the environment's own reward; no checkpoint is chosen. Each row is one preset over several training seeds: their
mean, Student's 95 % interval, and every seed's score; presets were tuned on other seeds. Of ten seeds and more it is the interquartile
mean, and the interval in which that lies when seeds are drawn anew from those there are.
*Fused* trains the compiled environment, *ported* the Gymnasium one of the same name, or the compiled one again where Gymnasium
has none; what only Gymnasium has is not fused. A commit with a plus had changes of its own on top. A threshold with ≤ is for what should
fail without the setting named: the task is met where both rows are.
"""


class Task(NamedTuple):
    compiled: str  # empty where the environment is only in Gymnasium
    host: str  # empty where one path takes long enough, and Gymnasium has none of its own
    steps: int
    threshold: float
    anchor: str
    algo: str = "ppo"
    options: tuple[tuple[str, Any], ...] = ()  # of the environment
    num_seeds: int = 5  # at least; of ten or more the interquartile mean counts
    without: tuple[tuple[str, Any], ...] = ()  # settings with which it should fail, in a row of its own
    failure: float = math.nan  # what it then scores at most

    def envs(self) -> dict[str, str]:
        """The environment of each path that there is."""
        return {path: env for path, env in (("fused", self.compiled), ("ported", self.host)) if env}

    def label(self, path: str) -> str:
        """The environment as a row names it."""
        return _named(self.envs()[path], self.options)


def _named(name: str, options: tuple[tuple[str, Any], ...]) -> str:
    return f"{name} ({', '.join(f'{key}={value}' for key, value in options)})" if options else name


TASKS = {
    "cartpole": Task("cartpole", "CartPole-v1", 100_000, 475.0, "SB3 500 at 100k"),
    "acrobot": Task("acrobot", "Acrobot-v1", 500_000, -90.0, "SB3 −73.5 at 1M"),
    "pendulum": Task("pendulum", "Pendulum-v1", 200_000, -250.0, "SB3 −172 at 100k"),
    "a2c": Task("cartpole", "CartPole-v1", 500_000, 475.0, "SB3 500 at 500k", "a2c"),
    "impala": Task("cartpole", "CartPole-v1", 500_000, 475.0, "–", "impala"),
    "reinforce": Task("cartpole", "CartPole-v1", 500_000, 450.0, "–", "reinforce"),
    "mountain_car_continuous": Task("mountain_car_continuous", "MountainCarContinuous-v0", 100_000, 90.0, "SB3 SAC 94.7 at 50k"),
    "lunar_lander": Task("", "LunarLander-v3", 1_000_000, 200.0, "SB3 242 at 1M"),
    "dqn_cartpole": Task("cartpole", "CartPole-v1", 50_000, 475.0, "SB3 500 at 50k", "dqn", num_seeds=10),
    "dqn_acrobot": Task("acrobot", "Acrobot-v1", 100_000, -90.0, "SB3 −76.6 at 100k", "dqn", num_seeds=10),
    "dqn_mountain_car": Task("mountain_car", "MountainCar-v0", 120_000, -115.0, "SB3 −100.8 at 120k", "dqn", num_seeds=10),
    "qr_dqn_cartpole": Task("cartpole", "CartPole-v1", 50_000, 475.0, "SB3 500 at 50k", "qr_dqn", num_seeds=10),
    "linear_q_cartpole": Task("cartpole", "CartPole-v1", 100_000, 475.0, "–", "linear_q", num_seeds=10),
    "linear_q_mountain_car": Task("mountain_car", "MountainCar-v0", 120_000, -115.0, "–", "linear_q", num_seeds=10),
    "ddpg_pendulum": Task("pendulum", "Pendulum-v1", 20_000, -180.0, "SB3 −152.1 at 20k", "ddpg"),
    "sac_pendulum": Task("pendulum", "Pendulum-v1", 20_000, -180.0, "SB3 −157 at 20k", "sac"),
    "td3_pendulum": Task("pendulum", "Pendulum-v1", 20_000, -180.0, "SB3 −152 at 20k", "td3"),
    "sac_mountain_car": Task("mountain_car_continuous", "MountainCarContinuous-v0", 50_000, 90.0, "SB3 94.7 at 50k", "sac"),
    "bit_flip": Task("bit_flip", "", 100_000, -10.0, "best −9.0, never there −20.0", "dqn", (("bits", 20),),
                     without=(("hindsight", "none"),), failure=-19.0),
    "memory": Task("cartpole", "cartpole", 500_000, 450.0, "–", "recurrent_ppo", (("velocities", False),)),
}


STUDIES = {study.NAME: study.study for study in (cliffwalk, cheetah, asynchronous, verify_tables)}


def row(algo: str, env: str, path: str, task: Task, results: list[dict[str, Any]], failing: bool = False) -> dict[str, str]:
    """A row of the page from the results of all seeds, ``failing`` of those that should."""
    scores = [result["eval_return"] for result in results]
    if len(scores) >= ROBUST:
        mean, low, high = stats.iqm_interval(scores)
    else:
        mean, low, high = (interval := stats.t_interval(scores)).mean, interval.low, interval.high
    met, bound = (mean <= task.failure, f"≤ {text(task.failure)}") if failing else (mean >= task.threshold, f"≥ {text(task.threshold)}")
    return {
        "algorithm": algo, "env": env, "path": path, "steps": f"{results[0]['steps']:,}", "mean": text(mean),
        "95 % interval": f"{text(low)} … {text(high)}", "seeds": ", ".join(map(text, scores)), "threshold": bound,
        "met": "yes" if met else "no", "anchor": task.anchor, "commit": table.commit(), "date": table.today(),
    }


def agreement(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Whether the two paths of each task agree, from the rows of the page."""
    found = {(r["algorithm"], r["env"], r["path"]): r["95 % interval"] for r in rows}
    out = []
    for name, task in TASKS.items():
        texts = tuple(found.get((task.algo, task.label(path), path)) for path in task.envs())
        if None in texts or len(texts) < 2:  # nothing to compare with
            continue
        bounds = [[number(part) for part in str(interval).split(" … ")] for interval in texts]
        overlap = bounds[0][0] <= bounds[1][1] and bounds[1][0] <= bounds[0][1]
        out.append({"task": name, "fused": str(texts[0]), "ported": str(texts[1]),
                    "intervals overlap": "yes" if overlap else "no"})
    return out


def _measure(task: Task, path: str, seeds: list[int], failing: bool) -> dict[str, str]:
    """The row of a task on one path; a line for each seed."""
    results: list[dict[str, Any]] = []
    settings = task.without if failing else ()
    algo = _named(task.algo, settings)
    for result in train(task.envs()[path], path, task.steps, seeds, task.algo, env_options=dict(task.options), **dict(settings)):
        results.append(result)
        print(f"{algo} {task.label(path)} {path} seed {result['seed']}: {result['eval_return']:.1f} after {result['steps']:,} steps, "
              f"{result['wall_s']:.1f} s", flush=True)
    new = row(algo, task.label(path), path, task, results, failing)
    print(f"{algo} {task.label(path)} {path}: mean {new['mean']} ({new['95 % interval']}), threshold {new['threshold']}: {new['met']}",
          flush=True)
    return new


def verify(names: list[str], paths: list[str], num_seeds: int, page: Path) -> bool:
    """Train, print as it goes, and write the page; whether every threshold was met and all that can be compared overlaps."""
    from shoal.errors import MissingError

    good = True
    for name in names:
        if name in STUDIES:
            good &= STUDIES[name](page, START, num_seeds, FIRST_SEED)
            continue
        task = TASKS[name]
        seeds = list(range(FIRST_SEED, FIRST_SEED + (num_seeds or task.num_seeds)))
        sides = (False, True) if task.without else (False,)
        for path, failing in ((path, failing) for path in paths if path in task.envs() for failing in sides):
            try:
                new = _measure(task, path, seeds, failing)
            except MissingError as missing:
                print(f"{task.algo} {task.label(path)} {path}: NOT run: {missing}", flush=True)
                good = False
                continue
            rows = table.update(page, START, [new], COLUMNS, KEYS)
            table.update(page, START, agreement(rows), AGREEMENT, ("task",))
            good &= new["met"] == "yes"
    for line in agreement(table.read(page.read_text(), COLUMNS) if page.exists() else []):
        print(f"{line['task']}: fused {line['fused']}, ported {line['ported']}: overlap {line['intervals overlap']}", flush=True)
        good &= line["intervals overlap"] == "yes"
    return good


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=__doc__.splitlines()[0])
    known = [*TASKS, *STUDIES]
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"any of {', '.join(known)} (default: all)")
    parser.add_argument("--seeds", type=int, default=0, help=f"how many training seeds, from {FIRST_SEED} on (default: each task's own)")
    parser.add_argument("--path", choices=("fused", "ported", "both"), default="both")
    given = parser.parse_args(argv)
    for name in given.tasks:
        if name not in known:
            parser.error(f"unknown task {name!r}; choose from {', '.join(known)}")
    if given.seeds < 0:
        parser.error("--seeds: expected at least 1")
    begun = time.perf_counter()
    paths = ["fused", "ported"] if given.path == "both" else [given.path]
    for name in given.tasks:
        if given.path != "both" and given.path not in (TASKS[name].envs() if name in TASKS else ()):
            parser.error(f"{name} has no {given.path} path; leave --path out")
    good = verify(given.tasks or known, paths, given.seeds, PAGE)
    print(f"{'all met' if good else 'NOT all met'} in {(time.perf_counter() - begun) / 60:.1f} min; "
          f"see {os.path.relpath(PAGE, table.ROOT)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
