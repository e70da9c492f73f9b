"""Sample Factory's APPO as its users run it: rollout workers, inference and learner in processes that never wait for each other.

It trains for as long as it is let, so all of it is stopped between samples (SIGSTOP, SIGCONT). Its environments count their own steps,
in memory that this process reads too. With ``--path train`` this is Sample Factory's own main process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.workers import protocol

_COUNTS, _ENV = "SHOAL_BENCH_COUNTS", "SHOAL_BENCH_ENV"  # a file of one number for each environment; which environment it is
_ITEM = 8  # bytes of a number
_WARM = 8  # batches of the learner; more than all buffers hold, so that it is at work
_START_S, _SAMPLE_S, _LOOK_S = 300.0, 240.0, 0.001


def counters(path: str | Path) -> Any:
    """The numbers of a file, shared with whoever else looks at it."""
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("q")


def _make(name: str, settings: Any, place: Any, render_mode: str | None = None) -> Any:
    """An environment that counts its steps; one without a place is only looked at."""
    import gymnasium

    import benchmarks.workers.burning  # noqa: F401 - registers it, in whatever process this is

    env = gymnasium.make(os.environ[_ENV], render_mode=render_mode)
    if place is None or "env_id" not in place:
        return env
    counts, index, step = counters(os.environ[_COUNTS]), int(place["env_id"]), env.step

    class Counted(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            counts[index] += 1
            return step(action)

    return Counted(env)


def _train(given: Any, folder: str) -> None:
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    size = given.num_envs * given.num_steps
    settings = {
        "env": "counted", "experiment": "bench", "train_dir": folder, "device": "cpu", "seed": 0, "serial_mode": False, "async_rl": True,
        "num_workers": given.workers, "num_envs_per_worker": given.num_envs // given.workers, "worker_num_splits": 2,
        "rollout": given.num_steps, "recurrence": 1, "use_rnn": False, "batch_size": size // given.num_minibatches,
        "num_batches_per_epoch": given.num_minibatches, "num_epochs": given.num_epochs, "gamma": 0.99, "gae_lambda": 0.95,
        "ppo_clip_ratio": 0.2, "exploration_loss_coeff": 0.01, "value_loss_coeff": 0.5, "max_grad_norm": 0.5, "learning_rate": 2.5e-4,
        "nonlinearity": "tanh", "actor_critic_share_weights": False, "normalize_input": False,
        "normalize_returns": False, "reward_scale": 0.1, "train_for_env_steps": 10**12,
        "save_every_sec": 10**6, "save_best_every_sec": 10**6, "experiment_summaries_interval": 10**6, "use_env_info_cache": False,
    }
    register_env("counted", _make)
    argv = [*(f"--{name}={value}" for name, value in settings.items()), "--encoder_mlp_layers", "64", "64"]
    parser, _ = parse_sf_args(argv)
    run_rl(parse_full_cfg(parser, argv))


class Training:
    """The whole of Sample Factory, as one group of processes that goes on and stands still."""

    def __init__(self, command: list[str], folder: str, name: str, num_envs: int):
        path = Path(folder) / "counts"
        path.write_bytes(bytes(_ITEM * num_envs))
        self._counts = counters(path)
        env = os.environ | {_COUNTS: str(path), _ENV: name, "PYTHONPATH": os.getcwd()}
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, process_group=0)

    def run(self, steps: int, deadline_s: float = _SAMPLE_S) -> int:
        """Let it go on until its environments have made so many steps together; how many they were."""
        os.killpg(self._process.pid, signal.SIGCONT)
        first, until = sum(self._counts), time.monotonic() + deadline_s
        while (done := sum(self._counts) - first) < steps:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"Sample Factory made {done} of {steps} steps in {deadline_s:g} s; exit code {self._process.poll()}")
            time.sleep(_LOOK_S)
        return done

    def pause(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def close(self) -> None:
        """It does not stop by itself."""
        with contextlib.suppress(ProcessLookupError):  # it ended all the same
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def main() -> None:
    given = protocol.settings()
    if given.path == "train":
        return _train(given, os.path.dirname(os.environ[_COUNTS]))
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "benchmarks.workers.sample_factory_worker", *sys.argv[1:], "--path", "train"]
        training = Training(command, folder, given.env or "CartPole-v1", given.num_envs)
        try:
            size = given.num_envs * given.num_steps
            training.run(size, _START_S)
            warm_s = time.perf_counter() - begun
            training.run(_WARM * size)

            def sample(steps: int) -> dict[str, Any]:
                begun = time.perf_counter()
                done = training.run(steps)
                seconds = time.perf_counter() - begun
                return {"rate": done / seconds, "steps": done, "seconds": seconds}

            def apart() -> dict[str, Any]:
                found = sample(steps)
                training.pause()
                return found

            steps = protocol.calibrate(sample, size, given.seconds)
            training.pause()
            protocol.serve({"versions": protocol.versions("sample-factory", "torch", "gymnasium"), "warm_s": warm_s}, apart)
        finally:
            training.close()


if __name__ == "__main__":
    main()
