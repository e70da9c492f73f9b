"""Workers that do not wait: every chunk is accounted for, none is learned from twice or too late; runs go on after kills and resumes."""

from __future__ import annotations

import time

import pytest
from small_agents import small

import shoal
from shoal import store
from shoal.errors import ConfigError
from shoal.runtime.stream import ROOM

PER_ITERATION = 32  # 16 steps of a lane of 2
LANES = 4


def assert_closes(ledger):
    assert ledger["produced"] == sum(ledger[name] for name in ("learned", "buffered", "in_flight", "dropped", "lost")), ledger


@pytest.mark.slow
def test_a_run_of_its_own_pace(run):
    done = run("CartPole-v1", workers=2, mode="async", steps=3200)
    assert done.result["steps"] == 3200 and done.result["updates"] == 100 == done.ledger["learned"]
    assert_closes(done.ledger)
    assert done.ledger["in_flight"] <= ROOM * LANES and done.ledger["lost"] == done.ledger["dropped"] == 0


def test_a_killed_worker_costs_what_it_was_at(run, monkeypatch):
    monkeypatch.setenv("SHOAL_FAULT", "worker:send:9+:kill")
    shot = run("CartPole-v1", workers=2, mode="async", steps=1600)
    assert shot.result["updates"] == 50 == shot.ledger["learned"]
    assert shot.ledger["restarts"] >= 2 and shot.ledger["lost"] <= shot.ledger["restarts"] and shot.ledger["redone"] == 0
    assert_closes(shot.ledger)


class Late(shoal.Callback):
    """A learner so late that all the room workers have is full whenever it comes for more."""

    def on_iteration_start(self, loop, iteration):
        until = time.monotonic() + 60.0
        while iteration and loop.engine.ledger()["in_flight"] < ROOM * LANES:
            assert time.monotonic() < until, loop.engine.ledger()
            time.sleep(0.001)


def test_what_is_too_old_is_dropped_and_counted(run):
    """With nothing older than the newest policy allowed, each update makes all that waits too old."""
    done = run("CartPole-v1", workers=2, mode="async", steps=640, max_staleness=0, callbacks=(Late(),))
    # of what waits one at most is learned from, and the others go before there is anything new: so in every two iterations
    assert done.ledger["learned"] == 20 and done.ledger["dropped"] >= 9 * (ROOM * LANES - 1)
    assert_closes(done.ledger)


@pytest.mark.parametrize(("algo", "options"), [
    ("ppo", {}), *(pytest.param(algo, {"store": store}, marks=pytest.mark.slow)
                   for algo, store in (("dqn", "device"), ("dqn", "host"), ("dqn", "mapped"), ("sac", "device")))])
def test_a_resume_learns_nothing_twice(run, tmp_path, algo, options):
    env, out, each = ("Pendulum-v1" if algo == "sac" else "CartPole-v1"), tmp_path / "run", PER_ITERATION if algo == "ppo" else 8
    settings = {"mode": "async", "out": out, "max_episode_steps": 30}
    first = run(env, small(algo, **options), workers=2, steps=10 * each, **settings)
    point = store.newest(first.folder)[0]
    assert (point.step, int(point.tensors["iteration"]), int(point.tensors["lives"])) == (10 * each, 10, 1)
    again = run(env, small(algo, **options), workers=3, steps=25 * each, **settings)
    assert again.result["steps"] == 25 * each and again.result["updates"] == 25
    assert again.ledger["learned"] == 15  # by this one
    point = store.newest(first.folder)[0]
    assert int(point.tensors["iteration"]) == 25 and int(point.tensors["lives"]) == 2  # versions and lives only rise


@pytest.mark.parametrize(("settings", "told"), [
    ({"workers": 0, "mode": "async"}, "mode = 'async' needs workers that do not wait: use --runtime processes"),
    ({"workers": 2, "mode": "async", "lag": 1}, "lag = 1 is for --mode sync"),
    ({"workers": 2, "mode": "async", "agent": small(num_minibatches=4, num_steps=15)}, "30 rows do not divide into num_minibatches = 4"),
    ({"workers": 2, "mode": "sometimes"}, "mode = 'sometimes': expected one of sync, async"),
    ({"workers": 9}, "workers = 9, but num_envs makes 4 lanes of 2; try --workers 4 or --num-envs 18"),
    ({"workers": 2, "path": "fused"}, "path = 'fused' is one program in one process"),
])
def test_what_cannot_be_is_refused(run, settings, told, tmp_path):
    with pytest.raises(ConfigError, match=told):
        run("CartPole-v1", **settings)
    assert not list(tmp_path.iterdir())
