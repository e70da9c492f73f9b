"""When a failed worker is started again, when the run stops instead, and what is said."""

from __future__ import annotations

import signal

import pytest

from shoal.errors import ConfigError, EnvError, WorkerError
from shoal.runtime import supervise
from shoal.runtime.workers import chosen
from shoal.runtime.supervise import Cause, Place, Restarts


def place(worker: int = 0, seq: int = 4) -> Place:
    return Place(worker, 1, 99, (0, 2), seq)


KILLED = Cause("killed", "killed by SIGKILL")
RAISED = Cause("EnvError", "the pump is dry", trace="Traceback: line 7")


def test_waits_double_and_begin_again_once_something_came():
    restarts = Restarts()
    assert [restarts.failed(place(), KILLED) for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.6]
    restarts.delivered(0)
    assert restarts.failed(place(), KILLED) == 0.1
    assert restarts.failed(place(worker=1), KILLED) == 0.1  # each has its own
    assert restarts.total == 7


def test_waits_have_an_end():
    restarts = Restarts()
    assert max(restarts.failed(place(), KILLED) for _ in range(supervise.IN_A_ROW - 1)) <= supervise.LONGEST_DELAY_S
    with pytest.raises(WorkerError, match=r"worker 0 \(life 1, pid 99, lanes 0, 2\): 10 failures in a row; killed by SIGKILL"):
        restarts.failed(place(), KILLED)


def test_the_same_traceback_at_the_same_chunk_is_poison():
    restarts = Restarts()
    for _ in range(2):
        restarts.failed(place(), RAISED)
    with pytest.raises(EnvError, match="the same 3 times at chunk 4; the pump is dry"):
        restarts.failed(place(), RAISED)


def test_a_traceback_now_and_then_is_not():
    restarts = Restarts()
    for seq in range(50):
        restarts.failed(place(seq=seq), RAISED)
        restarts.delivered(0)
    assert restarts.total == 50


def test_fatal_is_not_tried_again():
    with pytest.raises(ConfigError, match="lanes 0, 2.*no such field"):
        Restarts().failed(place(), Cause("ConfigError", "no such field", fatal=True))


def test_a_limit_is_a_limit():
    restarts = Restarts(limit=2)
    for _ in range(2):
        restarts.failed(place(), KILLED)
        restarts.delivered(0)
    with pytest.raises(WorkerError, match="3 restarts, more than max_restarts = 2"):
        restarts.failed(place(), KILLED)


@pytest.mark.parametrize(("status", "kills", "text"), [
    (-signal.SIGKILL, 0, "killed by SIGKILL; last words: so long"), (-signal.SIGKILL, 1, "killed by the kernel: out of memory"),
    (-signal.SIGSEGV, 1, "killed by SIGSEGV"), (3, 0, "exited with status 3; last words: so long")])
def test_an_end_without_a_word_is_named(status, kills, text):
    assert text in supervise.ended(status, kills, "so long").text


@pytest.mark.parametrize(("lanes", "cores", "fitting", "step_s", "workers"), [
    (8, 4, 99, 1e-3, 4), (2, 4, 99, 1e-3, 2), (8, 4, 3, 1e-3, 3), (8, 4, 99, 20e-6, 0), (1, 4, 99, 1.0, 0), (8, 1, 99, 1.0, 0)])
def test_auto_workers(lanes, cores, fitting, step_s, workers):
    assert chosen(lanes, cores, fitting, step_s) == workers
