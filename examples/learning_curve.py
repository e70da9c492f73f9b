"""Several seeds in one picture: this made docs/learning_curve.svg.

    python examples/learning_curve.py --seeds 5 --steps 100000 --picture docs/learning_curve.svg
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from shoal.cli import main as shoal_main
from shoal.monitor.curve import Series, svg_curve
from shoal.monitor.sinks import read_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--picture", type=Path, default=Path("learning_curve.svg"))
    args = parser.parse_args()

    curves = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            out = f"{folder}/{seed}"
            if shoal_main(["train", "ppo", "cartpole", "--seed", str(seed), "--steps", str(args.steps), "--out", out, "--quiet"]):
                raise SystemExit(f"seed {seed} failed")
            # the rows of an evaluation have no mean_return; training rows fall on the same steps for every seed
            rows = read_rows(f"{out}/metrics.jsonl")
            curves.append({row["step"]: row["mean_return"] for row in rows if row.get("mean_return") is not None})

    steps = sorted(set.intersection(*map(set, curves)))
    columns = [[curve[step] for curve in curves] for step in steps]
    mean = [sum(column) / len(column) for column in columns]
    label = f"mean of {args.seeds} seeds, lowest to highest"
    line = Series(label, steps, mean, [min(column) for column in columns], [max(column) for column in columns])
    args.picture.write_text(svg_curve([line], "PPO on CartPole: return of the last 100 training episodes"), encoding="utf-8")
    print(f"{args.picture}: {len(steps)} points, mean return at the end {mean[-1]:.1f}")


if __name__ == "__main__":
    main()
