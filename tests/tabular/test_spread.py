"""Tables over worker processes: the same bits however many there are and whoever dies; the lock-free mode, counted; nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import drivers
import pytest

import shoal
from shoal.errors import ConfigError

LEDGER = ("learned", "buffered", "in_flight", "dropped", "lost")


def train(folder: Path, agent=None, env="FrozenLake-v1", steps=40_003, **settings):
    agent = agent or shoal.QLearning(sync_every=500)
    return shoal.train(agent, env, steps=steps, seed=3, out=folder, eval_episodes=5, lane_envs=1, **settings).result


def assert_closes(ledger: dict[str, int]) -> None:
    assert ledger["produced"] == sum(ledger[name] for name in LEDGER)


def test_any_number_of_workers_gives_the_same_bits(tmp_path):
    runs = [train(tmp_path / "here")] + [
        train(tmp_path / str(n), runtime="processes", workers=str(n)) for n in (1, 2, 4)]
    assert len({run["params_sha256"] for run in runs}) == 1
    assert {(run["steps"], run["episodes"]) for run in runs} == {(40_003, runs[0]["episodes"])}
    assert [run["workers"] for run in runs] == [1, 1, 2, 4]
    timing = [json.loads(line) for line in (tmp_path / "2" / "timing.jsonl").read_text().splitlines()]
    assert sum(row["worker0_steps"] + row["worker1_steps"] for row in timing) == 40_003
    assert sum(row["worker0_episodes"] + row["worker1_episodes"] for row in timing) == runs[0]["episodes"]
    assert all(0 <= row["efficiency"] <= 1.5 and row["worker0_steps_per_s"] >= 0 for row in timing)
    texts = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("here", "1", "2", "4")]
    assert len(set(texts)) == 1


def test_environments_in_python_too(tmp_path):
    agent = shoal.Sarsa(sync_every=200)
    runs = [train(tmp_path / str(n), agent, "Taxi-v4", 6_403, path="ported", num_envs=4, **more)
            for n, more in enumerate(({}, {"runtime": "processes", "workers": "2"}))]
    assert runs[0]["params_sha256"] == runs[1]["params_sha256"] and runs[0]["steps"] == 6_403


@pytest.mark.parametrize("strike", ["worker0:chunk:9:kill", "worker1:send:7:kill"])
def test_a_worker_that_dies_changes_no_bit(tmp_path, monkeypatch, strike):
    calm = train(tmp_path / "calm")
    monkeypatch.setenv("SHOAL_FAULT", strike)
    shot = train(tmp_path / "shot", runtime="processes", workers="2")
    assert shot["params_sha256"] == calm["params_sha256"] and shot["episodes"] == calm["episodes"]
    assert shot["ledger"]["restarts"] == 1 and shot["ledger"]["redone"] >= 1 and shot["ledger"]["lost"] == 0
    assert_closes(shot["ledger"])


def test_lock_free_takes_every_step_and_counts_what_a_dead_worker_leaves(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_FAULT", "worker1:chunk:9:kill")
    run = train(tmp_path / "free", runtime="processes", workers="2", mode="async")
    assert run["steps"] == 40_003 and run["ledger"]["restarts"] == 1 and run["ledger"]["lost"] >= 1
    assert_closes(run["ledger"])
    resumed = shoal.resume(tmp_path / "free", steps=8_000).result
    assert resumed["steps"] == 48_003


def test_more_workers_than_lanes(tmp_path):
    with pytest.raises(ConfigError, match=r"workers = 9, but num_envs makes 8 lanes of 1; try --workers 8 or --num-envs 9"):
        train(tmp_path / "run", runtime="processes", workers="9")


@pytest.mark.parametrize("end", ["success", "error", signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path, end):
    before, fault = drivers.shared_memory(), {"SHOAL_FAULT": "worker:chunk:1+:raise"} if end == "error" else {}
    steps = "40000" if end in ("success", "error") else "100000000000"
    process = drivers.start(tmp_path, "train", "q_learning", "FrozenLake-v1", "--preset", "none", "--steps", steps, "--runtime",
                            "processes", "--workers", "2", "--log-every", "80000", "--eval-episodes", "1", "--quiet", "--json",
                            "--out", "run", **fault)
    if isinstance(end, signal.Signals):
        drivers.wait_for(process, lambda: drivers.rows(tmp_path / "run") > 3)
        children = drivers.table_workers_of(process.pid)
        assert len(children) == 2
        process.send_signal(end)
    out, err = process.communicate(timeout=drivers.PATIENCE_S)
    assert process.returncode == {"success": 0, "error": 1, signal.SIGINT: 130, signal.SIGKILL: -9}[end], err
    if isinstance(end, signal.Signals):
        drivers.wait_until(lambda: not any(map(drivers.is_running, children)), 10.0)
    if end == "error":
        assert "injected" in err and "the same 3 times" in err
    drivers.nothing_more_than(before)


@pytest.mark.slow
def test_kill_the_run_and_resume_it_with_others(tmp_path):
    """SIGKILL of the driver; the resumed run ends with the bits of one never stopped."""
    steps = 4_000_000
    calm = train(tmp_path / "calm", shoal.QLearning(sync_every=1000), steps=steps)
    args = ["--preset", "none", "--sync-every", "1000", "--seed", "3", "--steps", str(steps), "--eval-episodes", "5", "--runtime",
            "processes", "--workers", "2", "--checkpoint-every", "400000", "--quiet", "--json"]
    process = drivers.start(tmp_path, "train", "q_learning", "FrozenLake-v1", *args, "--out", "run")
    for _ in range(4):
        seen = drivers.rows(tmp_path / "run")
        drivers.wait_for(process, lambda seen=seen: drivers.rows(tmp_path / "run") > seen + 20)
        process.kill()
        process.communicate()
        process = drivers.start(tmp_path, "resume", "run", "--quiet", "--json")
    out, err = process.communicate(timeout=drivers.PATIENCE_S)
    result = json.loads(out.splitlines()[-1])
    assert result["params_sha256"] == calm["params_sha256"], err
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "calm" / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_kill_a_lock_free_run_and_resume_it_with_the_loss_counted(tmp_path):
    steps = 12_000_000
    args = ["--preset", "none", "--sync-every", "1000", "--seed", "3", "--steps", str(steps), "--eval-episodes", "5", "--runtime",
            "processes", "--workers", "2", "--mode", "async", "--checkpoint-every", "3000000", "--log-every", "8000", "--quiet", "--json"]
    process = drivers.start(tmp_path, "train", "q_learning", "FrozenLake-v1", *args, "--out", "run")
    drivers.wait_for(process, lambda: drivers.rows(tmp_path / "run") > 500)
    process.kill()
    process.communicate()
    reached = max(json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    kept = max(int(path.name.split("-")[1]) for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    out, err = drivers.start(tmp_path, "resume", "run", "--quiet", "--json").communicate(timeout=drivers.PATIENCE_S)
    result = json.loads(out.splitlines()[-1])
    assert result["steps"] == steps and result["steps_again"] == reached - kept > 0, err
    assert_closes(result["ledger"])


def test_a_worker_of_a_model_imports_no_jax(tmp_path):
    """So that it starts at once."""
    code = "import sys, shoal.runtime.table_worker, shoal.tabular.lane; sys.exit('jax' in sys.modules)"
    assert subprocess.run(["python", "-c", code], env=os.environ | {"PYTHONPATH": str(Path(shoal.__file__).parents[1])}).returncode == 0
