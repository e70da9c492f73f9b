"""A thousand workers killed at random moments: in step nothing is lost and nothing changes; without waiting, all is accounted for."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import fault_page
import jax
import light_worker
import numpy as np
import pytest

from shoal.host_lane import HostRecord
from shoal.runtime import crew as crews
from shoal.runtime import stream, supervise
from shoal.runtime.hand import Hand
from shoal.runtime.lanes import World
from shoal.types import Episodes, Transition

LANES, WORKERS = 6, 3


def structure(with_after: bool) -> Any:
    data = Transition((), 0, (), (), (), (), (), ())
    after = HostRecord((), (), (), (), (), 0, (), 1, ()) if with_after else ()
    return jax.tree.structure((data, (), after, Episodes(0, (), ())))


class Sync(crews.Crew):
    def _shape(self) -> Any:
        return structure(True)


class Free(stream.Stream):
    def _shape(self) -> Any:
        return structure(False)


class Killer:
    """Kills one of a crew's workers now and then, as often as it was told to; what and when follow from its seed and the machine.

    Of other signals than SIGKILL, some are taken back after a moment.
    """

    def __init__(self, crew: Any, kills: int, seed: int = 1, number: int = signal.SIGKILL, pause_s: float = 0.06):
        self.crew, self.left, self.draw, self.stop = crew, kills, random.Random(seed), False
        self.number, self.pause_s, self.taken_back, self.stopped = number, pause_s, 0, set()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while self.left and not self.stop:
            time.sleep(self.draw.uniform(0.0, self.pause_s))
            hand = self.draw.choice(self.crew.hands)
            running = hand.process
            if running is None or running.pid in self.stopped or running.poll() is not None:
                continue
            if hand.ready or self.draw.random() < 0.2:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(running.pid, self.number)
                    self.left -= 1
                    if self.number == signal.SIGSTOP and self.draw.random() < 0.3:
                        time.sleep(self.draw.uniform(0.0, 0.2))
                        os.kill(running.pid, signal.SIGCONT)
                        self.taken_back += 1
                    else:
                        self.stopped.add(running.pid)


@pytest.fixture
def light(monkeypatch):
    monkeypatch.setattr(Hand, "module", "light_worker")
    monkeypatch.setattr(supervise, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(supervise, "IN_A_ROW", 50)
    monkeypatch.setattr(crews, "to_tensors", lambda record, prefix: {f"{prefix}.obs": record.obs})


def crew_of(kind: type, lag: int, timeout_s: float = 20.0) -> tuple[Any, SimpleNamespace]:
    world = World(None, SimpleNamespace(name="light"), None, None, None, 0, LANES, light_worker.ENVS, "state", None)
    shelf = SimpleNamespace(versions={0: [np.asarray([7], np.int64)]})
    crew = kind(world, shelf, lag, told={}, workers=WORKERS, step_timeout_s=timeout_s, max_restarts=0, logs=None, warn_fn=lambda text: None,
                stop_fn=bool)
    return crew, shelf


@pytest.mark.parametrize(("kills", "lag"), [
    (20, 0), pytest.param(1000, 0, marks=pytest.mark.slow), pytest.param(1000, 1, marks=pytest.mark.slow)])
def test_in_step_nothing_is_lost_and_nothing_changes(light, kills, lag):
    crew, _ = crew_of(Sync, lag)
    seq = run_in_step(crew, Killer(crew, kills), lag)
    assert crew.ledger(seq)["restarts"] >= 0.9 * kills  # the last may not have been noticed yet
    restarts = crew.ledger(seq)["restarts"]
    crew.close()
    if kills >= 1000:
        fault_page.write("F2", "SIGKILL at random moments", f"actor (light), in step, lag {lag}", "R, 0 lost",
                         f"0 lost, all chunks as expected, {restarts} restarts", kills)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_signals_at_random_moments(light, monkeypatch, number, seed):
    """Those that are stopped are ended after a deadline of 1 s, unless they go on before."""
    crew, _ = crew_of(Sync, seed % 2, 1.0 if number == signal.SIGSTOP else 20.0)
    monkeypatch.setattr(crews, "_START_S", 4.0)
    kills = 10 if number == signal.SIGSTOP else 50
    killer = Killer(crew, kills, seed, number, pause_s=0.3)
    seq = run_in_step(crew, killer, seed % 2)
    restarts = crew.ledger(seq)["restarts"]
    assert kills - killer.taken_back - 3 <= restarts <= kills, f"Killer(crew, {kills}, {seed}, {number.name}): {restarts} restarts"
    crew.close()
    fault_page.write("F1", f"{number.name} at random moments", f"actor (light), seed {seed}, lag {seed % 2}", "R",
                     f"0 lost, all chunks as expected, {restarts} restarts, {killer.taken_back} went on in time", kills)


def run_in_step(crew: Any, killer: Killer, lag: int) -> int:
    """Learn in step until the killer is done; every chunk is the one it should be. How many iterations that took."""
    numbers, weights, seq = [light_worker.start_of(lane) for lane in range(LANES)], {0: 7}, 0
    crew.ask(0, 1.0)
    killer.thread.start()
    while killer.left or seq < 20:
        taken = sorted((crew.take(5.0) for _ in range(LANES)), key=lambda chunk: chunk.lane)
        assert [chunk.lane for chunk in taken] == list(range(LANES)) and {chunk.seq for chunk in taken} == {seq}
        weight = weights[max(0, seq - lag)]
        for lane, chunk in enumerate(taken):
            expected = light_worker.mixed(numbers[lane], weight, seq)
            np.testing.assert_array_equal(chunk.data.action, expected)
            numbers[lane] = expected[-1]
        weights[seq + 1] = int(sum(int(x.sum()) for x in numbers) % 1_000_003)
        if lag:
            crew.ask(seq + 1, 1.0)
        crew.publish(seq + 1, [np.asarray([weights[seq + 1]], np.int64)], 1.0)
        seq += 1
        ledger = crew.ledger(seq)
        assert ledger["lost"] == 0 and ledger["learned"] == seq * LANES
        assert ledger["produced"] == ledger["learned"] + ledger["in_flight"]
        if not lag:
            crew.ask(seq, 1.0)
    killer.stop = True
    return seq


@pytest.mark.parametrize("kills", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_without_waiting_all_is_accounted_for(light, kills):
    crew, _ = crew_of(Free, 0)
    killer, seen, version = Killer(crew, kills), set(), 0
    chunk = crew.take(5.0)
    killer.thread.start()
    while killer.left or version < 200:
        assert (chunk.lane, chunk.life, chunk.seq) not in seen  # none is learned from twice
        seen.add((chunk.lane, chunk.life, chunk.seq))
        version += 1
        crew.publish(version, [np.asarray([version], np.int64)], 1.0)
        crew.used(chunk, version - 1)
        ledger = crew.ledger(version)
        assert ledger["produced"] == ledger["learned"] + ledger["in_flight"] + ledger["lost"] + ledger["dropped"], ledger
        assert ledger["lost"] <= ledger["restarts"], ledger  # one at most, between being counted and being sent
        chunk = crew.take(5.0)
    killer.stop = True
    assert crew.ledger(version)["restarts"] >= 0.9 * kills
    crew.drop(chunk)
    crew.rest()
    ledger = crew.ledger(version)
    assert ledger["in_flight"] == 0 and ledger["produced"] == ledger["learned"] + ledger["lost"] + ledger["dropped"]
    if kills >= 1000:
        fault_page.write("F2", "SIGKILL at random moments", "actor (light), without waiting", "D: ≤ 1 chunk lost a kill, counted",
                         f"0 unaccounted of {ledger['produced']} chunks, {ledger['lost']} lost in {ledger['restarts']} kills", kills)
