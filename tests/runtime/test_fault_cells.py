"""The fault cells of worker processes: at every named point, what passes is mended, and what stays stops a run that can go on."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import fault_page
import pytest
from drivers import PATIENCE_S, rows, start, wait_for, workers_of
from small_agents import small

import shoal
from shoal.errors import EnvError, ShoalError, WorkerError
from shoal.runtime import crew, hand
from shoal.testing import faults

TIMEOUT_S = 6.0  # a busy machine may take a second or two for a step
SAID = {"raise": "injected at SHOAL_FAULT", "kill": "killed by SIGKILL", "exit": r"the environment called sys.exit\(7\)",
        "memory": "out of memory: ", "stop": "no sign of life for 6 s", "hang": "no sign of life for 6 s"}
TOLD = {"raise": "raises", "kill": "SIGKILL", "exit": "calls sys.exit", "memory": "out of memory", "stop": "SIGSTOP", "hang": "hangs"}
ONCE = [*(("worker0", "start", 1, action) for action in ("raise", "kill", "memory")),
        *(("worker0", "ready", 1, action) for action in ("raise", "kill")),
        *(("worker0", "chunk", 3, action) for action in ("raise", "kill", "memory", "stop", "hang")),
        *(("worker1", "send", 4, action) for action in ("raise", "kill", "stop")),
        *(("worker1", "evaluate", 1, action) for action in ("raise", "kill", "hang")),
        *(("env0", "step", 70, action) for action in ("raise", "kill", "exit", "memory", "stop", "hang")),
        *(("env1", "step", 326, action) for action in ("raise", "kill")),  # 320 train: those are of the evaluation
        *(("env0", "reset", 7, action) for action in ("raise", "kill", "exit", "memory", "stop", "hang"))]
PHASES = {"start": "starting", "ready": "started", "chunk": "before a chunk", "send": "while sending a chunk", "evaluate": "in evaluation",
          "step": "in step", "reset": "in reset"}


def where(role: str, point: str, nth: int) -> str:
    column = {"worker": "actor", "env": "env", "learner": "learner", "driver": "driver"}[role.rstrip("01")]
    phase = "in step, evaluation" if (point, nth) == ("step", 326) else PHASES.get(point, point)
    return f"{column}: {phase} (`{role}:{point}:{nth}`)"


@pytest.fixture
def calm(run):
    return run()


@pytest.mark.slow
@pytest.mark.parametrize(("role", "point", "nth", "action"), ONCE, ids=lambda x: str(x))
def test_what_happens_once_is_mended_to_the_same_bits(run, calm, monkeypatch, role, point, nth, action):
    replay = faults.line(role, point, nth, action)
    monkeypatch.setenv(*replay.split("=", 1))
    done = run(workers=2, step_timeout_s=TIMEOUT_S)
    assert (done.sha, done.metrics) == (calm.sha, calm.metrics), replay
    assert done.ledger["restarts"] == 1 and done.ledger["lost"] == 0, f"{replay}: {done.ledger} {done.said}"
    (line,) = [line for line in done.said if "started again" in line]
    assert re.search(SAID[action], line) and line.startswith(f"worker {role[-1]} (life 1, "), f"{replay}: {line}"
    fault_page.write("F1", f"{TOLD[action]} once", where(role, point, nth), "R", "same bits, 1 restart, 0 lost", 1)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["stop", "hang"])
def test_a_silent_start_is_begun_again(run, calm, monkeypatch, action):
    monkeypatch.setattr(crew, "_START_S", 15.0)
    replay = faults.line("worker0", "start", 1, action)
    monkeypatch.setenv(*replay.split("=", 1))
    done = run(workers=2, step_timeout_s=TIMEOUT_S)
    assert done.sha == calm.sha and done.ledger["restarts"] == 1, f"{replay}: {done.ledger}"
    (line,) = [line for line in done.said if "started again" in line]
    assert "no sign of life for 15 s, starting up" in line, line
    fault_page.write("F1", f"{TOLD[action]} once", where("worker0", "start", 1), "R", "same bits, 1 restart, 0 lost", 1)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["raise", "exit", "kill", "stop", "hang"])
@pytest.mark.parametrize("nth", [3, 5], ids=["evaluation", "end"])  # two copies are closed at the start, two after the evaluation
def test_what_happens_in_close_changes_nothing(run, calm, monkeypatch, action, nth):
    replay = faults.line("env", "close", nth, action)
    monkeypatch.setenv(*replay.split("=", 1))
    begun = time.monotonic()
    done = run(workers=2, step_timeout_s=TIMEOUT_S)
    assert (done.sha, done.metrics) == (calm.sha, calm.metrics) and workers_of(os.getpid()) == [], replay
    assert time.monotonic() - begun < 60, replay
    place = "after an evaluation" if nth == 3 else "at the end"
    fault_page.write("F1", f"{TOLD[action]} once", f"env: in close, {place} (`env:close:{nth}`)", "R", "same bits, no process left", 1)


ALWAYS = [("worker0", "start", "raise", WorkerError, "the same 3 times at chunk 0; Fault: injected at"),
          ("worker0", "chunk", "raise", WorkerError, "the same 3 times at chunk 2; Fault: injected at"),
          ("worker0", "chunk", "memory", WorkerError, "the same 3 times at chunk 2; out of memory"),
          ("worker0", "chunk", "kill", WorkerError, "10 failures in a row; killed by SIGKILL"),
          ("env0", "reset", "raise", EnvError, "the same 3 times at chunk 1; troubled: Fault in step or reset"),
          ("env0", "step", "hang", WorkerError, "the same 3 times at chunk 2; no sign of life for 6 s, lane 0, environment 0, at step 0")]


@pytest.mark.slow
@pytest.mark.parametrize(("role", "point", "action", "kind", "text"), ALWAYS, ids=lambda x: str(x) if isinstance(x, str) else "")
def test_what_happens_always_stops_a_run_that_can_go_on(run, calm, tmp_path, monkeypatch, role, point, action, kind, text):
    """From the third chunk on, every life fails where the first did: it makes no chunk more."""
    monkeypatch.setattr("shoal.runtime.supervise.FIRST_DELAY_S", 0.001)
    first = {"chunk": 5, "step": 140, "reset": 9}.get(point, 1)
    again = {"reset": 10}.get(point, 1)  # nine bring a life to where the one before it stood
    out = tmp_path / "stopped"
    monkeypatch.setattr(hand.Hand, "start", _striking(hand.Hand.start, role, point, first, again, action))
    with pytest.raises(kind, match=text) as caught:
        run(workers=2, step_timeout_s=TIMEOUT_S, checkpoint_every="64", out=out)
    assert f"worker {role[-1]} (life " in str(caught.value) and workers_of(os.getpid()) == []
    monkeypatch.undo()
    resumed = run(workers=2, out=out)
    assert resumed.sha == calm.sha and resumed.metrics == calm.metrics
    fault_page.write("F1", f"{TOLD[action]} always", where(role, point, first), "S", "stopped, named; resumed to the same bits", 1)


def _striking(start_fn, role, point, first, again, action):
    """Every life is told where to strike: later ones sooner, so that they get no further than the first."""

    def start(self, *args):
        nth = first if self.life == 0 else again
        os.environ["SHOAL_FAULT"] = faults.line(role, point, nth, action, forever=True).split("=", 1)[1]
        try:
            return start_fn(self, *args)
        finally:
            del os.environ["SHOAL_FAULT"]

    return start


@pytest.mark.parametrize(("role", "point", "action"), [
    ("learner", "update", "raise"), *(pytest.param(*cell, marks=pytest.mark.slow) for cell in (
        ("learner", "update", "memory"), ("driver", "publish", "raise"), ("driver", "ask", "raise"), ("driver", "evaluate", "raise"),
        ("driver", "start", "raise")))])
def test_a_learner_that_fails_stops_a_run_that_can_go_on(run, calm, tmp_path, role, point, action):
    nth, replay = {"start": 2, "evaluate": 1}.get(point, 4), ""
    faults.arm(role, point, nth, action)
    replay = faults.line(role, point, nth, action)
    try:
        with pytest.raises(ShoalError if action == "memory" else faults.Fault, match="out of memory" if action == "memory" else "injected"):
            run(workers=2, checkpoint_every="64", out=tmp_path / "stopped")
    finally:
        faults.disarm()
    assert workers_of(os.getpid()) == [], replay
    resumed = run(workers=2, out=tmp_path / "stopped")
    assert (resumed.sha, resumed.metrics) == (calm.sha, calm.metrics), replay
    column = {"learner": "learner", "publish": "parameters"}.get(role if role == "learner" else point, "driver")
    fault_page.write("F1", TOLD[action], f"{column}: {point} (`{role}:{point}:{nth}`)", "S", "stopped; resumed to the same bits", 1)


WRONG = {f"{bad} {what}": f"troubled: {what} is not finite at step 3 of environment 0" for bad in ("nan", "inf", "-inf")
         for what in ("reward", "observation")} | {
    "shape": r"troubled: observation from step has shape \(2,\), its space says \(3,\)",
    "dtype": "troubled: observation from step has dtype complex64, its space says float32",
    "words": "troubled: observation from step has dtype <U1, its space says float32",
    "reward shape": r"troubled: reward from step has shape \(2,\), expected \(\)",
    "words reward": "troubled: reward from step is 'three', not a number",
    "no reward": "troubled: reward is not finite at step 3 of environment 0",
    "agent observation": r"pair: observation from step has shape \(1, 3\), its space says \(2, 3\)",
    "agent reward": r"pair: reward from step has shape \(1,\), expected \(2,\)",
    "agent end": r"pair: terminated from step has shape \(3,\), expected \(2,\)"}


@pytest.mark.parametrize("trouble", [x if x in ("dtype", "reward shape") else pytest.param(x, marks=pytest.mark.slow) for x in WRONG])
def test_what_is_no_number_or_of_another_shape_stops_the_run_with_its_field(run, trouble):
    env, agent = ("pair", shoal.team.independent(small())) if trouble.startswith("agent") else ("troubled", small())
    with pytest.raises(EnvError, match=rf"worker \d \(life 1, .*{WRONG[trouble]}"):  # at once: trying again would repeat it
        run(env, agent, workers=2, env_options={"trouble": trouble})
    fault_page.write("F1", trouble, "env: what step answers", "S naming the field", "stopped at once, field named", 1)


@pytest.mark.slow
def test_a_worker_that_hears_nothing_leaves_and_is_started_again(run, calm, monkeypatch):
    """The driver is at something else for longer than workers wait."""
    monkeypatch.setattr(hand.Hand, "module", "impatient_worker")
    publish = shoal.runtime.ported.Ported.publish

    def slow(self, version, *args):
        if version == 3:
            time.sleep(4.0)
        publish(self, version, *args)

    monkeypatch.setattr("shoal.runtime.ported.Ported.publish", slow)
    done = run(workers=2)
    assert (done.sha, done.metrics) == (calm.sha, calm.metrics)
    assert done.ledger["restarts"] == 2 and done.ledger["lost"] == 0, done.ledger
    fault_page.write("F1", "silent for longer than workers wait", "driver", "children wait, then exit", "both left, then the same bits", 1)


ARGS = ["train", "ppo", "CartPole-v1", "--runtime", "processes", "--workers", "2", "--num-envs", "4", "--lane-envs", "2",
        "--num-steps", "16", "--num-minibatches", "2", "--num-epochs", "2", "--hidden", "8", "--seed", "3", "--preset", "none",
        "--eval-episodes", "4", "--log-every", "64", "--checkpoint-every", "0", "--json", "--steps", "64000", "--step-timeout-s", "8"]


@pytest.mark.slow
@pytest.mark.parametrize("lag", ["0", "1"])
def test_a_driver_that_is_stopped_for_half_a_minute_goes_on(tmp_path, lag):
    """The learner and the parameters are in it, so they are stopped, too: workers wait, and none of them is thought to hang."""
    results = []
    for name in ("stopped", "calm"):
        driver = start(tmp_path, *ARGS, "--lag", lag, "--out", name)
        if name == "stopped":
            wait_for(driver, lambda: rows(tmp_path / "stopped") >= 10)
            workers = workers_of(driver.pid)
            driver.send_signal(signal.SIGSTOP)
            time.sleep(30.0)
            assert workers_of(driver.pid) == workers
            driver.send_signal(signal.SIGCONT)
        out, err = driver.communicate(timeout=PATIENCE_S)
        assert driver.returncode == 0, err
        results.append(json.loads(out.splitlines()[-1]))
    stopped, calm = results
    assert stopped["params_sha256"] == calm["params_sha256"] and stopped["ledger"]["restarts"] == 0, stopped["ledger"]
    for column in ("learner", "parameters", "driver"):
        fault_page.write("F1", "SIGSTOP 30 s", f"{column} (one process), lag {lag}", "R: workers wait", "same bits, 0 restarts", 1)


ELSEWHERE = [
    ("SIGKILL", "driver: children", "children exit ≤ 5 s", "tests/runtime/test_process_ends.py",
     "test_a_stopped_driver_leaves_nothing_and_goes_on"),
    ("SIGKILL", "learner, parameters, driver (one process)", "resume continues", "tests/chaos/test_kill_chains.py",
     "test_ten_kills_with_workers"),
    ("ENOSPC, EIO", "learner: saving", "D: keep training, retry", "tests/main_loop/test_saving.py",
     "test_a_full_disk_stops_no_training_and_a_later_save_works"),
    ("ENOSPC that stays", "learner: saving", "S", "tests/main_loop/test_saving.py", "test_a_disk_that_stays_full_is_an_error_at_the_end"),
    ("ENOSPC, EIO anywhere in a save", "disk", "keep last good", "tests/store/test_store_crash.py", "test_an_error_anywhere"),
    ("SIGKILL anywhere in a save", "disk", "keep last good", "tests/store/test_store_crash.py", "test_a_kill_anywhere"),
    ("bit flip", "disk", "previous checkpoint used, reported", "tests/store/test_store_damage.py", "test_every_byte_counts"),
    ("truncation", "disk", "previous checkpoint used, reported", "tests/store/test_store_crash.py",
     "test_a_write_that_the_power_cut_shortened"),
    ("missing file", "disk", "previous checkpoint used, reported", "tests/store/test_store_damage.py",
     "test_a_file_that_is_not_what_it_was"),
    ("swapped files", "disk", "previous checkpoint used, reported", "tests/store/test_store_damage.py",
     "test_files_swapped_between_checkpoints"),
    ("checkpoint of another format", "disk", "S with the reason", "tests/store/test_store_damage.py",
     "test_another_format_is_a_reason_to_stop_not_damage")]


@pytest.mark.parametrize(("fault", "place", "expected", "file", "name"), ELSEWHERE, ids=[cell[-1][5:] for cell in ELSEWHERE])
def test_cells_that_other_tests_hold_are_held(fault, place, expected, file, name):
    fault_page.held("F1", fault, place, expected, file, name)
