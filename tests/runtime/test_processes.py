"""Workers give the bits of one process, for any number of them, at lag 0 and 1, killed or not, and after a resume elsewhere."""

from __future__ import annotations

import pytest
from small_agents import small

import shoal

SAME = ("params_sha256", "steps", "episodes", "updates", "mean_return", "eval_return")


def assert_same_run(one, other):
    for name in SAME:
        assert repr(one.result[name]) == repr(other.result[name]), name  # nan is nan
    assert one.metrics == other.metrics


def assert_closes(ledger):
    assert ledger["produced"] == sum(ledger[name] for name in ("learned", "buffered", "in_flight", "dropped", "lost"))


@pytest.mark.parametrize(("env", "workers", "lag"), [("cartpole", 2, 0), ("CartPole-v1", 3, 1)])
def test_bits_of_one_process(run, env, workers, lag):
    one, many = run(env, lag=lag), run(env, workers=workers, lag=lag)
    assert_same_run(one, many)
    assert (one.result["workers"], many.result["workers"]) == (1, workers)
    for done in (one, many):
        assert_closes(done.ledger)
        assert done.ledger["learned"] == 5 * 4 and done.ledger["lost"] == done.ledger["redone"] == 0


@pytest.mark.slow
def test_replay_and_actions_of_numbers(run):
    short = {"steps": 256, "max_episode_steps": 20}
    assert_same_run(run("Pendulum-v1", small("ddpg"), **short), run("Pendulum-v1", small("ddpg"), workers=2, **short))


CELLS = [(algo, env, lag) for algo in ("ppo", "a2c", "dqn", "qr_dqn", "sac")
         for env in (("pendulum", "Pendulum-v1") if algo == "sac" else ("cartpole", "CartPole-v1"))
         for lag in ((0, 1) if algo in ("ppo", "dqn") else (0,))]


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "env", "lag"), CELLS)
def test_every_number_of_workers(run, algo, env, lag):
    one = run(env, small(algo), lag=lag)
    for workers in (1, 2, 3, 4):
        assert_same_run(one, run(env, small(algo), workers=workers, lag=lag))


def test_a_killed_workers_chunks_are_made_again(run, monkeypatch):
    """Each life dies as it sends its third chunk: half of a version's chunks have come by then."""
    calm = run("CartPole-v1")
    monkeypatch.setenv("SHOAL_FAULT", "worker:send:3+:kill")
    shot = run("CartPole-v1", workers=2)
    assert_same_run(calm, shot)
    assert shot.ledger["restarts"] >= 6 and shot.ledger["redone"] >= shot.ledger["restarts"]
    assert_closes(shot.ledger)
    assert len([line for line in shot.said if "killed by SIGKILL; started again" in line]) == shot.ledger["restarts"]


def test_resumed_by_others(run, tmp_path):
    """Begun by three workers, gone on with in this process, ended by two."""
    calm = run("CartPole-v1", lag=1)
    out = tmp_path / "moved"
    run("CartPole-v1", workers=3, lag=1, steps=128, out=out)
    for workers, steps in ((0, 384), (2, 640)):
        last = run("CartPole-v1", workers=workers, lag=1, steps=steps, out=out)
    for name in ("params_sha256", "steps", "episodes", "updates"):
        assert calm.result[name] == last.result[name], name


@pytest.mark.slow
def test_a_team_and_memory_travel(run):
    team = shoal.team.independent(small())
    assert_same_run(run("rendezvous", team, steps=256), run("rendezvous", team, workers=2, steps=256))
    recurrent = shoal.RecurrentPPO(num_steps=8, hidden=(8,), memory_size=4, num_minibatches=2)
    assert_same_run(run("CartPole-v1", recurrent, steps=256), run("CartPole-v1", recurrent, workers=2, steps=256))
