"""Workers give the bits of one process, for any number of them, at lag 0 and 1, killed or not, and after a resume elsewhere."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress

import pytest
from drivers import workers_of
from small_agents import small

import shoal
from shoal.callbacks import Callback
from shoal.monitor.sinks import read_rows

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
    timing = read_rows(many.folder / "timing.jsonl")
    assert all(0 < row["learner_busy"] <= 1 and row["policy_lag"] == lag for row in timing)
    shares = [[row[f"worker{i}_busy"] for i in range(workers)] for row in timing]  # a chunk may be counted a row later than it came
    assert all(max(of_one) > 0 for of_one in zip(*shares, strict=True))
    assert all(row["efficiency"] == pytest.approx(sum(of_all) / workers, abs=1e-3) for row, of_all in zip(timing, shares, strict=True))


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


OTHERS = {"reinforce": "CartPole-v1", "impala": "CartPole-v1", "linear_q": "CartPole-v1", "td3": "Pendulum-v1", "ddpg": "Pendulum-v1"}


@pytest.mark.slow
@pytest.mark.parametrize("algo", OTHERS)
def test_every_other_algorithm(run, algo):
    fields = {"basis": "plain", "num_steps": 4, "start_size": 64, "batch_size": 16, "capacity": 2000}
    agent = shoal.LinearQ(**fields) if algo == "linear_q" else shoal.IMPALA(num_steps=16, hidden=(8,)) if algo == "impala" else small(algo)
    one = run(OTHERS[algo], agent)
    for workers, runtime in ((1, shoal.Processes), (2, shoal.Processes), (4, shoal.Processes), (2, shoal.Threads)):
        assert_same_run(one, run(OTHERS[algo], agent, workers=workers, runtime=runtime))


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_learning_by_epochs_passes_none_over(run, workers):
    """Three epochs of 16 steps are learned from at a time, while the next three are collected: 48 steps, by another name."""
    whole = run("CartPole-v1", small(num_steps=48), lag=1, steps=1536)
    parts = run("CartPole-v1", small(), workers=workers, lag=1, steps=1536, train_interval=3)
    assert_same_run(whole, parts)
    assert parts.ledger["learned"] == 4 * 4  # of four lanes, of 384 steps each


def test_a_killed_workers_chunks_are_made_again(run, monkeypatch):
    """Each life dies as it sends its third chunk: half of a version's chunks have come by then."""
    calm = run("CartPole-v1")
    monkeypatch.setenv("SHOAL_FAULT", "worker:send:3+:kill")
    shot = run("CartPole-v1", workers=2)
    assert_same_run(calm, shot)
    assert shot.ledger["restarts"] >= 6 and shot.ledger["redone"] >= shot.ledger["restarts"]
    assert_closes(shot.ledger)
    assert len([line for line in shot.said if "killed by SIGKILL; started again" in line]) == shot.ledger["restarts"]


class Killer(Callback):
    """Kills a worker, each once, a moment after every other iteration and while the run goes on, until so many are dead."""

    def __init__(self, kills: int):
        self.draw, self.kills, self.dead = random.Random(11), kills, set()

    def on_iteration_end(self, loop, iteration, result):
        if iteration % 2 == 0 and len(self.dead) < self.kills:
            threading.Timer(self.draw.uniform(0.0, 0.02), self._kill).start()

    def _kill(self):
        alive = sorted(set(workers_of(os.getpid())) - self.dead)
        if alive and len(self.dead) < self.kills:
            worker = self.draw.choice(alive)
            self.dead.add(worker)
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "env", "lag"), [("ppo", "CartPole-v1", 0), ("ppo", "CartPole-v1", 1), ("dqn", "CartPole-v1", 1),
                                                  ("sac", "Pendulum-v1", 0)])
def test_twenty_kills_change_nothing(run, algo, env, lag):
    steps = 8 * small(algo).num_steps * 100
    calm, killer = run(env, small(algo), lag=lag, steps=steps), Killer(28)
    shot = run(env, small(algo), workers=2, lag=lag, steps=steps, callbacks=(killer,))
    assert_same_run(calm, shot)
    # a kill while a worker starts, or when nothing more is wanted of it, may not be noticed
    assert shot.ledger["restarts"] >= 20 and shot.ledger["lost"] == 0, len(killer.dead)
    assert_closes(shot.ledger)


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
