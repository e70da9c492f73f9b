"""Runs that learn from memory and cannot go on, or begin: one typed error that names the field, and a folder that resumes afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import store
from shoal.algos.dqn import DQN
from shoal.errors import ConfigError, DivergedError, EnvError, StoreError
from shoal.types import pytree

SMALL = {"num_steps": 4, "capacity": 400, "start_size": 100, "batch_size": 32, "update_every": 4, "hidden": (8,)}


def agent(**fields) -> DQN:
    return DQN(**(SMALL | fields))


@pytest.mark.parametrize(("who", "field"), [
    (agent(), "epsilon_schedule = 'linear'"), (agent(noisy=True, prioritised=True), r"priority_beta = 0\.4"),
    (shoal.PPO(learning_rate_schedule="linear"), "learning_rate_schedule = 'linear'"),
    (shoal.SAC(prioritised=True), r"priority_beta = 0\.4"), (shoal.LinearQ(basis="plain"), "epsilon_schedule = 'linear'")])
def test_a_schedule_without_a_horizon_is_refused_before_a_folder_exists(run, tmp_path, who, field):
    env = "pendulum" if isinstance(who, shoal.SAC) else "cartpole"
    for budget in ({"episodes": 5}, {"minutes": 1.0}):
        with pytest.raises(ConfigError, match=f"{field} needs a horizon: give --steps or --horizon"):
            run(env, who, out=tmp_path / "a", **budget)
        with pytest.raises(ConfigError, match=f"{field} needs a horizon"):
            shoal.train(who, env, out=tmp_path / "b", **budget)
    assert not list(tmp_path.iterdir())


def test_what_does_not_change_needs_no_horizon(run):
    done = run("cartpole", agent(epsilon_schedule="constant", epsilon_start=0.25), episodes=30, log_every=16)
    assert done.result["episodes"] >= 30 and done.loop.agent.horizon == float("inf")
    assert {row["exploration"] for row in done.rows() if row["gradient_steps"]} == {0.25}


@pytest.mark.parametrize(("fields", "why"), [
    ({"batch_size": 401}, "batch_size = 401: larger than the buffer, which holds 400"),
    ({"start_size": 401}, "start = 401: an algorithm's start_size, more than the buffer ever holds, 400"),
    ({"n_step": 98}, "n_step = 98: with a chunk of 4 that is 101 steps; capacity = 400 keeps 100 of each"),
    ({"capacity": 10**9, "memory_limit": 0.5}, r"capacity = 1000000000: .* MiB of memory for .* rows, more than the 512\.0 MiB there are")])
def test_sizes_that_do_not_fit_together(run, tmp_path, fields, why):
    with pytest.raises(ConfigError, match=why):
        run("cartpole", agent(**fields), steps=64, out=tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytree
class Broken(DQN):
    """Its priorities are no numbers."""

    def update(self, state, batch, key):
        done = super().update(state, batch, key)
        return done._replace(priorities=done.priorities * np.nan)


@pytest.mark.parametrize("where", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_priorities_that_are_no_numbers_stop_a_run_and_say_so(run, where):
    who = Broken(**SMALL, prioritised=True, store=where)
    with pytest.raises(DivergedError, match="10 updates in a row were refused, the last at iteration 15: the new parameters or priorities"):
        run("cartpole", who, steps=1024)


class Odd(gymnasium.Env):
    """Answers as its spaces say, until its third step."""

    observation_space = gymnasium.spaces.Box(0, 255, (3,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, answer):
        self.answer, self.t = answer, 0

    def reset(self, seed=None, options=None):
        self.t = 0
        return np.zeros(3, np.uint8), {}

    def step(self, action):
        self.t += 1
        return self.answer if self.t == 3 else np.full(3, self.t, np.uint8), 0.0, False, False, {}


@pytest.mark.parametrize(("answer", "why"), [
    (np.zeros(1, np.uint8), r"observation from step has shape \(1,\), its space says \(3,\)"),  # NumPy would stretch it
    (np.full(3, 0.5), "observation from step has dtype float64, its space says uint8"),  # and round this
    (np.full(3, 256), "observation from step has dtype int64, its space says uint8")])  # and begin again at 0
def test_an_environment_that_answers_otherwise_than_its_spaces_say(run, answer, why):
    gymnasium.register("Odd-v0", lambda: Odd(answer))
    try:
        with pytest.raises(EnvError, match=f"Odd-v0: {why}"):
            run("Odd-v0", agent(), steps=64, max_episode_steps=50)
    finally:
        del gymnasium.registry["Odd-v0"]


def test_what_only_is_of_another_type_is_taken(run):
    gymnasium.register("Odd-v0", lambda: Odd(np.full(3, 255)))
    try:
        assert run("Odd-v0", agent(start_size=400), steps=64, max_episode_steps=8).result["steps"] == 64
    finally:
        del gymnasium.registry["Odd-v0"]


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.getuid() or shutil.which("mount") is None or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)  # files may still be mapped


class Filler(shoal.Callback):
    """Takes what is left of a disk, but for a little, at step 1,536: rows have gone round once at 2,000, and then need another file."""

    def __init__(self, folder):
        self.file = folder / "filler"

    def on_iteration_end(self, loop, iteration, result):
        if loop.step == 1536:
            self.file.write_bytes(bytes(shutil.disk_usage(self.file.parent).free - 65_536))


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_the_newest_checkpoint_goes_on_once_there_is_room(run, small_disk):
    settings = {"steps": 2560, "path": "ported", "checkpoint_every": "512", "eval_every": 2560, "log_every": 512, "keep": 1}
    who, filler = agent(store="mapped", capacity=2_000), Filler(small_disk)
    with pytest.raises(StoreError, match=r"replay: no room for another 0\.1 MiB of replay: No space left on device"):
        run("cartpole", who, out=small_disk / "run", callbacks=(filler,), **settings)
    assert [path.name for path in store.found(small_disk / "run")][0] == "step-1024"  # the one of 1,536 found no room
    filler.file.unlink()
    calm, again = run("cartpole", who, **settings), run("cartpole", who, out=small_disk / "run", **settings)
    assert again.sha == calm.sha
    assert (again.folder / "metrics.jsonl").read_bytes() == (calm.folder / "metrics.jsonl").read_bytes()
