"""Runs that learn from memory and cannot go on, or begin: one typed error that names the field, and a folder that resumes afterwards."""

from __future__ import annotations

import pytest

import shoal
from shoal.algos.dqn import DQN
from shoal.errors import ConfigError

SMALL = {"num_steps": 4, "capacity": 400, "start_size": 100, "batch_size": 32, "update_every": 4, "hidden": (8,)}


def agent(**fields) -> DQN:
    return DQN(**(SMALL | fields))


@pytest.mark.parametrize(("who", "field"), [
    (agent(), "epsilon_schedule = 'linear'"), (agent(noisy=True, prioritised=True), r"priority_beta = 0\.4"),
    (shoal.PPO(learning_rate_schedule="linear"), "learning_rate_schedule = 'linear'"),
    (shoal.SAC(prioritised=True), r"priority_beta = 0\.4"), (shoal.LinearQ(), "epsilon_schedule = 'linear'")])
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
