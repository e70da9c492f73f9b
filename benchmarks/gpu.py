"""Fused PPO on a GPU: ``python -m benchmarks.gpu`` prints one line of JSON per setting.

Needs only shoal, jax, equinox, optax and numpy, so that it runs on a machine with nothing else. Where docs live,
``python -m benchmarks.gpu --fold FILE`` puts such lines into ``docs/speed.md`` next to PureJaxRL's figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import table as tables

COLUMNS = ("work on a GPU", "device", "steps/s", "range", "PureJaxRL steps/s", "ratio", "target", "met", "compile s", "jax",
           "commit", "date")
KEYS = ("work on a GPU", "device")
_FOREVER = 2**31 - 1


class Setting(NamedTuple):
    num_envs: int
    num_steps: int
    peer: float  # PureJaxRL's steps per second on an H200, same epochs, minibatches and networks; measured in an earlier run
    target: float


SETTINGS = (Setting(2_048, 32, 16.0e6, 1.5), Setting(65_536, 32, 78.4e6, 1.0))


def measure(num_envs: int, num_steps: int, seconds: float = 1.0, samples: int = 7) -> dict[str, Any]:
    """Steady training of compiled CartPole, 4 epochs of 4 minibatches, 64×64 tanh; each sample lasts at least ``seconds``."""
    import jax

    from shoal.algos.ppo import PPO
    from shoal.envs.cartpole import CartPole
    from shoal.envs.maps import TimeLimit
    from shoal.runtime.fused import Fused
    from shoal.types import Limits

    env = CartPole()
    agent = PPO(num_steps=num_steps, num_epochs=4, num_minibatches=4, learning_rate=2.5e-4, learning_rate_schedule="linear",
                horizon=1e12, hidden=(64, 64), activation="tanh")
    engine = Fused(agent, TimeLimit(env, env.spec.max_episode_steps), num_envs=num_envs, lane_envs=min(8, num_envs))
    limits = Limits(_FOREVER, _FOREVER, float("inf"))
    begun = time.perf_counter()
    engine.init(0)
    compile_s = engine.run(limits).compile_s
    ready_s = time.perf_counter() - begun
    for _ in range(3):  # the engine learns how many iterations fit into a call
        engine.run(limits)
    rates = []
    for _ in range(samples):
        count, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            count += len(engine.run(limits).iterations)
        rates.append(count * engine.steps_per_iteration / (time.perf_counter() - begun))
    return {"num_envs": num_envs, "num_steps": num_steps, "steps_per_s": statistics.median(rates), "samples": rates,
            "compile_s": compile_s, "ready_s": ready_s, "device": jax.devices()[0].device_kind, "jax": jax.__version__}


def rows(lines: Sequence[str]) -> list[dict[str, str]]:
    """Rows of the page from lines that ``measure`` printed; other lines are passed over."""
    peers = {(setting.num_envs, setting.num_steps): setting for setting in SETTINGS}
    out = []
    for line in lines:
        if not line.startswith('{"num_envs"'):
            continue
        found = json.loads(line)
        setting = peers[found["num_envs"], found["num_steps"]]
        ratio = found["steps_per_s"] / setting.peer
        out.append({
            "work on a GPU": f"PPO, compiled CartPole, {setting.num_envs:,} envs × {setting.num_steps} steps",
            "device": found["device"], "steps/s": _millions(found["steps_per_s"]),
            "range": f"{_millions(min(found['samples']))} … {_millions(max(found['samples']))}",
            "PureJaxRL steps/s": _millions(setting.peer), "ratio": f"{ratio:.2f}", "target": f"≥ {setting.target:g}",
            "met": "yes" if ratio >= setting.target else "no", "compile s": f"{found['compile_s']:.1f}", "jax": found["jax"],
            "commit": tables.commit(), "date": tables.today(),
        })
    return out


def table(lines: Sequence[str], page: Path | None = None) -> list[dict[str, str]]:
    """Fold printed lines into the page; all rows of its table."""
    from benchmarks import contest

    return tables.update(page or contest.PAGE, contest.START, rows(lines), COLUMNS, KEYS)


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.1f} M"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--fold", metavar="FILE", help="put the lines of a file into the page instead of measuring; - for stdin")
    parser.add_argument("--seconds", type=float, default=1.0, help="least length of a sample (default: 1)")
    parser.add_argument("--samples", type=int, default=7)
    given = parser.parse_args(argv)
    if given.fold:
        text = sys.stdin.read() if given.fold == "-" else Path(given.fold).read_text()
        for row in table(text.splitlines()):
            print(f"{row['work on a GPU']}: {row['steps/s']}, {row['ratio']}× PureJaxRL, target {row['target']}: {row['met']}")
        return 0
    for setting in SETTINGS:
        print(json.dumps(measure(setting.num_envs, setting.num_steps, given.seconds, given.samples)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
