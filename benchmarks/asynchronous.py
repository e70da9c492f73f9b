"""Scores of runs whose workers do not wait for each other: what they learn depends on the machine, so it is held over seeds and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import stats, table
from benchmarks.training import text, train

NAME = "asynchronous"
ENV, THRESHOLD = "CartPole-v1", 475.0
SEEDS = {2: 5, 1: 2, 4: 2}  # by number of workers
COLUMNS = ("plan", "env", "workers", "steps", "mean", "95 % interval", "seeds", "mean age", "dropped", "threshold", "met", "commit", "date")
KEYS = ("plan", "env", "workers")
WORDS = """## Asynchronous runs

Workers that wait for nobody, through Gymnasium: what is learned depends on who was faster, so no two runs are alike. *A3C*: workers push
gradients to a parameter server. *IMPALA* and *PPO*: one learner, corrected by V-trace for the age of the policies that made the data.
*Ape-X*: a pool of prioritised buffers, filled by lanes that explore differently. The mean age is how many updates old those policies were;
what was older than the bound was dropped.
"""


class Plan(NamedTuple):
    algo: str
    preset: str


PLANS = {"A3C": Plan("a2c", "a3c"), "IMPALA": Plan("impala", "async"), "PPO": Plan("ppo", "async"), "Ape-X": Plan("dqn", "apex")}


def row(name: str, workers: int, results: list[dict[str, Any]]) -> dict[str, str]:
    """A row of the page from the results of all seeds."""
    scores = [result["eval_return"] for result in results]
    interval = stats.t_interval(scores)
    ages = [(int(age), count) for result in results for age, count in result["staleness"].items()]
    mean_age = sum(age * count for age, count in ages) / max(1, sum(count for _, count in ages))
    return {"plan": name, "env": ENV, "workers": str(workers), "steps": f"{results[0]['steps']:,}", "mean": text(interval.mean),
            "95 % interval": f"{text(interval.low)} … {text(interval.high)}", "seeds": ", ".join(map(text, scores)),
            "mean age": f"{mean_age:.1f}", "dropped": str(sum(result["ledger"]["dropped"] for result in results)),
            "threshold": f"≥ {text(THRESHOLD)}", "met": "yes" if interval.mean >= THRESHOLD else "no",
            "commit": table.commit(), "date": table.today()}


def study(page: Path, start: str, num_seeds: int, first_seed: int) -> bool:
    """Train, print as it goes, and write the page; whether every threshold was met."""
    good = True
    for name, plan in PLANS.items():
        for workers, seeds in SEEDS.items():
            results: list[dict[str, Any]] = []
            given = list(range(first_seed, first_seed + (num_seeds or seeds)))
            for result in train(ENV, "auto", 0, given, plan.algo, preset=plan.preset, workers=str(workers), runtime="processes"):
                results.append(result)
                print(f"{name} {ENV} {workers} workers seed {result['seed']}: {result['eval_return']:.1f} after {result['steps']:,} steps, "
                      f"{result['wall_s']:.1f} s", flush=True)
            new = row(name, workers, results)
            table.update(page, start, [new], COLUMNS, KEYS, WORDS)
            good &= new["met"] == "yes"
            print(f"{name} {ENV} {workers} workers: mean {new['mean']}, threshold {new['threshold']}: {new['met']}", flush=True)
    return good
