"""Timelines: what is written is read back, adds up, and opens in a trace viewer; a real run's names every process."""

from __future__ import annotations

import json
import os
import time

import pytest

from shoal import cli
from shoal.errors import MissingError
from shoal.monitor import timeline
from shoal.runtime.trace import FOLDER, OFF, Trace


def test_spans_are_read_back_in_order_and_add_up(tmp_path):
    folder = tmp_path / FOLDER
    driver, worker = Trace(folder), Trace(folder, "worker", 1, life=2)
    with driver.span("wait"), worker.span("chunk", lane=3, seq=7):
        time.sleep(0.02)
    with driver.span("update", iteration=0):
        time.sleep(0.01)
    for trace in (driver, worker):
        trace.close()
    with (folder / f"worker-1-{os.getpid()}.jsonl").open("a") as file:
        file.write('{"name": "chu')  # a process was killed as it wrote
    spans = timeline.read(tmp_path)
    assert [(s.who, s.name, s.life) for s in spans] == [("driver 0", "wait", 1), ("worker 1", "chunk", 2), ("driver 0", "update", 1)]
    assert spans[1].about == {"lane": 3, "seq": 7} and spans[1].took >= 20_000_000
    found = {(s.who, s.name): s for s in timeline.shares(spans)}
    for who in ("driver 0", "worker 1"):
        assert sum(s.share for key, s in found.items() if key[0] == who) == pytest.approx(1.0)
    assert found["worker 1", "idle"].share > 0.2 and found["driver 0", "wait"].times == 1
    assert len(timeline.lines(list(found.values()))) == 6
    events = json.loads(timeline.draw(tmp_path, spans).read_text())["traceEvents"]
    assert [e["ph"] for e in events] == ["M", "M", "X", "X", "X"]
    assert events[2]["ts"] == 0 and all(e["dur"] > 0 for e in events[2:]) and {e["pid"] for e in events} == {0, 1}


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with OFF.span("update"):
        pass
    OFF.flush()
    assert not list(tmp_path.iterdir())
    with pytest.raises(MissingError, match="has no timeline; train with --trace"):
        timeline.read(tmp_path)


def test_a_run_over_workers_is_on_one_timeline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--num-envs", "4", "--lane-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--hidden", "8", "--eval-episodes", "4"]
    code = cli.main(["train", "ppo", "CartPole-v1", "--runtime", "processes", "--workers", "2", "--trace", "--steps", "320", *flags,
                     "--preset", "none", "--out", "run", "--quiet"])
    assert code == 0
    capsys.readouterr()
    assert cli.main(["trace", "run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {(s["who"], s["name"]): s for s in told["shares"]}
    for worker in ("worker 0", "worker 1"):
        assert rows[worker, "chunk"]["times"] == 5 and rows[worker, "start"]["seconds"] > 0
    assert rows["driver 0", "update"]["times"] == 5 == rows["driver 0", "publish"]["times"] and rows["driver 0", "wait"]["times"] >= 5
    assert (tmp_path / told["path"]).is_file()
    assert cli.main(["trace", "run"]) == 0
    assert "worker 1" in capsys.readouterr().out
    assert cli.main(["trace", "."]) == 2
