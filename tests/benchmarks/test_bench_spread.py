"""The parts with several processes: who is compared with whom, what happens where a peer is missing, and the pieces that measure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks import contest, peers, spread
from benchmarks.workers import exchange_worker, sample_factory_worker, shoal_worker


class _Fake:
    """A contestant that answers at once."""

    rates = {"ours": 20.0, "peer": 10.0}

    def __init__(self, name, python, module, args, env=None):
        if module == "broken":
            raise RuntimeError(f"{name} ended:\nno such module")
        self.name, self.about, self.closed = name, {"warm_s": 1.0, "versions": "1.0"}, False

    def sample(self):
        return {"rate": self.rates[self.name], "steal": 0.0}

    def close(self):
        self.closed = True


@pytest.fixture
def written(monkeypatch):
    """What is recorded, instead of the page."""
    rows = []
    monkeypatch.setattr(contest, "Worker", _Fake)
    monkeypatch.setattr(contest, "record", lambda part, kept, dropped, found: rows.extend(found))
    monkeypatch.setattr(peers, "python", lambda home: sys.executable)
    return rows


_OURS, _PEER = contest.Entry("ours", "good", []), contest.Entry("peer", "good", [], "t1")


@pytest.mark.parametrize(("target", "met"), [(2.0, True), (2.1, False), (None, True)])
def test_a_part_is_met_when_every_target_is(written, target, met):
    assert contest.compete("part", contest.Work("w", 1, 1), [_OURS, _PEER], [contest.Pair("ours", "peer", target)]) is met
    assert [(row["shoal"], row["peer"], row["ratio"]) for row in written] == [("ours", "peer", "2.00")]


def test_a_peer_that_does_not_start_is_named_and_the_part_is_not_met(written, capsys):
    entries = [_OURS, _PEER, contest.Entry("absent", "broken", [], "t1")]
    pairs = [contest.Pair("ours", "peer", 1.0), contest.Pair("ours", "absent", 1.0)]
    assert not contest.compete("part", contest.Work("w", 1, 1), entries, pairs)
    assert "absent: NOT run: absent ended:" in capsys.readouterr().out
    assert [row["peer"] for row in written] == ["peer"]


def test_a_peer_that_cannot_be_installed_is_named_and_one_of_ours_that_breaks_is_an_error(written, monkeypatch, capsys):
    def refuse(home):
        raise subprocess.CalledProcessError(1, "pip install")

    with pytest.raises(RuntimeError, match="ours ended"):
        contest.compete("part", contest.Work("w", 1, 1), [_PEER, _OURS._replace(module="broken")], [])
    monkeypatch.setattr(peers, "python", refuse)
    assert not contest.compete("part", contest.Work("w", 1, 1), [_OURS, _PEER], [contest.Pair("ours", "peer", 1.0)])
    assert "peer: NOT run: Command 'pip install'" in capsys.readouterr().out and not written


def test_what_a_contestant_leaves_behind_is_ended_even_where_it_was_stopped():
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    left = int(leader.communicate(timeout=30)[0])
    os.kill(left, signal.SIGSTOP)
    contest.end_session(leader.pid)
    until = time.monotonic() + 10
    while _runs(left) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(left)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_parts_compare_with_the_peers_and_targets_that_were_set(monkeypatch):
    seen = {}

    def compete(part, work, entries, pairs):
        names = [entry.name for entry in entries]
        assert len(set(names)) == len(names) and {name for pair in pairs for name in pair[:2]} == set(names)
        assert all(entry.home in ("", *peers.INSTALLS) for entry in entries)
        seen[part] = work, {(pair.ours, pair.peer): pair.target for pair in pairs}
        return True

    monkeypatch.setattr(spread, "compete", compete)
    monkeypatch.setattr(spread, "_chosen_by_itself", lambda: True)
    parts = spread.bench_burning, spread.bench_spread, spread.bench_lag, spread.bench_stepping, spread.bench_exchange
    assert all(part(1.0) for part in parts)
    several = ("Stable-Baselines3, SubprocVecEnv", "RLlib, 2 env runners", "Sample Factory, 2 rollout workers")
    two = "2 workers, in step"
    assert seen["spread"][1] == {(two, peer): 1.0 for peer in several}
    assert seen["burning"][1] == {(two, "shoal, 1 worker"): 1.8} | seen["spread"][1]
    assert set(seen["lag"][1].values()) == {7.0}
    stepping = seen["stepping-64"][1]
    assert stepping["2 workers, lag 1", "Gymnasium, AsyncVectorEnv"] == 8.0
    assert stepping["2 workers, lag 1", "Gymnasium, SyncVectorEnv"] == 1.3
    assert stepping["2 workers, lag 1", "EnvPool, 2 threads"] is None
    assert set(seen["exchange-40"][1].values()) == {0.667} and set(peers.INSTALLS) == set(peers.PROBES)


def _samples(*rounds):
    return [{"a": {"spans_s": {"ask": 0.0, "wait": c, "update": u, "publish": 0.001}}, "b": {"rate": rate}} for c, u, rate in rounds]


def test_overlap_is_what_is_left_of_the_shorter_side():
    # 1,000 steps: 10 ms collecting, 9 ms learning; at lag 1 11, 10.5 and 19 ms
    kept = _samples(*((0.010, 0.008, 1000 / seconds) for seconds in (0.011, 0.019, 0.0105)))
    found = spread.overlap(1000, kept, "a", "b")
    assert (found.collect_s, found.learn_s, found.lagged_s) == pytest.approx((0.010, 0.009, 0.011))
    assert found.alike and found.rest == pytest.approx(1 / 9)
    assert not spread.Overlap(0.010, 0.008, 0.011).alike
    assert spread.Overlap(0.010, 0.010, 0.020).rest == pytest.approx(1.0)  # nothing overlaps


def test_the_stopwatch_adds_up_spans():
    watch = shoal_worker.Stopwatch()
    for _ in range(2):
        with watch.span("wait", seq=1):
            time.sleep(0.01)
    with watch.span("update"):
        pass
    assert 0.02 <= watch.spent["wait"] < 5 and watch.spent["update"] < watch.spent["wait"]


def test_the_number_of_workers_is_read_from_a_runs_timing():
    assert spread.num_workers('{"step": 1}\n{"worker0_busy": 0.5, "worker1_busy": 0.4, "imbalance": 1.1}\n') == 2
    assert spread.num_workers('{"step": 1, "run_s": 2}\n') == 0


def test_sample_factorys_environments_count_their_steps(tmp_path, monkeypatch):
    path = tmp_path / "counts"
    path.write_bytes(bytes(16))
    monkeypatch.setenv(sample_factory_worker._COUNTS, str(path))
    monkeypatch.setenv(sample_factory_worker._ENV, "CartPole-v1")
    looked_at, counted = (sample_factory_worker._make("counted", None, place) for place in (None, {"env_id": 1}))
    for env in (looked_at, counted):
        env.reset(seed=0)
        for _ in range(3):
            env.step(env.action_space.sample())
        env.close()
    assert list(sample_factory_worker.counters(path)) == [0, 3]


_STEPS = """
import os, time
from benchmarks.workers.sample_factory_worker import counters
counts = counters(os.environ["SHOAL_BENCH_COUNTS"])
while counts[0] < 2000:
    counts[0] += 1
    time.sleep(0.0005)
"""


def test_what_trains_without_end_stands_still_between_samples(tmp_path):
    training = sample_factory_worker.Training([sys.executable, "-c", _STEPS], str(tmp_path), "CartPole-v1", 2)
    try:
        assert training.run(5, 60.0) >= 5
        training.pause()
        time.sleep(0.1)
        stood = sum(training._counts)
        time.sleep(0.1)
        assert sum(training._counts) == stood
        assert training.run(5, 60.0) >= 5
        with pytest.raises(RuntimeError, match="exit code 0"):
            training.run(10_000, 60.0)  # it ends before
    finally:
        training.close()


@pytest.mark.parametrize("copies", [True, False])
def test_a_version_goes_to_a_worker_and_word_comes_back(copies):
    exchange, close = exchange_worker._shoal([np.full(3, i, np.float32) for i in range(8)], copies)
    try:
        for _ in range(3):
            exchange()  # raises where the worker has another version than was published
    finally:
        close()


def test_who_only_steps_draws_actions_and_learns_nothing(tmp_path):
    from benchmarks.workers.aimless import Aimless
    from shoal.main_loop import MainLoop

    loop = MainLoop("CartPole-v1", Aimless(num_steps=32), path="ported", num_envs=8, lane_envs=4, steps=512, out=tmp_path / "run",
                    plugins=("benchmarks.workers.aimless",), eval_episodes=1)
    try:
        result = loop.run()
    finally:
        loop.close()
    # drawn actions fall after some twenty steps, and lanes draw apart from each other
    assert result["steps"] == 512 and 10 <= result["episodes"] <= 50
