"""Lanes in threads: the bits of one after the other, also where a run is saved while the next chunks are being made."""

from __future__ import annotations

import pytest

import shoal
from shoal.errors import ConfigError, EnvError


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_bits_and_a_resume_of_another_runtime(run, tmp_path, lag):
    calm, out = run("CartPole-v1", lag=lag), tmp_path / "moved"
    threads = run("CartPole-v1", workers=3, runtime=shoal.Threads, lag=lag)
    assert (threads.sha, threads.metrics) == (calm.sha, calm.metrics) and threads.result["workers"] == 3
    run("CartPole-v1", workers=2, runtime=shoal.Threads, lag=lag, steps=256, out=out)  # saved while a chunk was in the making
    for workers, steps in ((0, 384), (4, 640)):
        moved = run("CartPole-v1", workers=workers, runtime=shoal.Threads, lag=lag, steps=steps, out=out)
    assert moved.sha == calm.sha and moved.result["episodes"] == calm.result["episodes"]


def test_errors_come_through_and_a_stuck_lane_is_named(run):
    with pytest.raises(EnvError, match="troubled: ValueError in step or reset: the pump is dry"):
        run(workers=2, runtime=shoal.Threads, env_options={"trouble": "raise"})
    with pytest.raises(EnvError, match=r"troubled: lane \d has not come back for 0.16 s, and a thread cannot be ended"):
        run(workers=2, runtime=shoal.Threads, env_options={"trouble": "nap"}, step_timeout_s=0.01)


@pytest.mark.parametrize(("settings", "told"), [
    ({"mode": "async"}, "runtime = 'threads' works in step"), ({"path": "fused"}, "path = 'fused' is one program"),
    ({"workers": 5}, "workers = 5, but num_envs makes 4 lanes of 2")])
def test_what_cannot_be_is_refused(run, settings, told):
    with pytest.raises(ConfigError, match=told):
        run("CartPole-v1", **({"workers": 2, "runtime": shoal.Threads} | settings))
