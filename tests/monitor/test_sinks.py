"""Sinks: rows come back as they went in, and nothing is lost when a disk fills up or a column appears late."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import DamagedError, StoreError
from shoal.monitor.sinks import CsvSink, JsonlSink, read_rows, write_csv, write_text


def test_rows_come_back_exactly_and_in_order(tmp_path: Path) -> None:
    rows = [{"step": 10, "b": 0.1 + 0.2, "a": -1e-300, "note": "grün, \"x\"\n", "done": True, "none": None},
            {"step": 2**70, "a": 1 / 3}]
    sink = JsonlSink(tmp_path / "m.jsonl")
    for row in rows:
        sink.put(row)
    sink.close()
    back = read_rows(tmp_path / "m.jsonl")
    assert [list(row.items()) for row in back] == [list(row.items()) for row in rows]
    assert (tmp_path / "m.jsonl").read_bytes().count(b"\n") == 2


def test_what_json_cannot_say_becomes_null(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.put({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    sink.close()
    assert (tmp_path / "m.jsonl").read_text() == '{"a": null, "b": null, "c": null, "d": 1.0}\n'


def test_length_counts_only_what_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.put({"step": 1})
    assert sink.length() == 0 and path.stat().st_size == 0
    sink.flush()
    assert sink.length() == 0 and path.read_text() == '{"step": 1}\n'
    sink.flush(sync=True)
    assert sink.length() == 12
    sink.close()


def test_truncate_and_reopen_continues_like_a_run_never_stopped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    straight, first = JsonlSink(tmp_path / "straight.jsonl"), JsonlSink(path)
    for step in range(4):
        straight.put({"step": step, "loss": step / 7})
    straight.close()
    for step in range(2):
        first.put({"step": step, "loss": step / 7})
    first.flush(sync=True)
    kept = first.length()
    first.put({"step": 2, "loss": 2 / 7})
    first.close()
    os.truncate(path, kept)
    again = JsonlSink(path)
    assert again.length() == kept
    for step in range(2, 4):
        again.put({"step": step, "loss": step / 7})
    again.close()
    assert path.read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


def test_a_full_disk_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.put({"step": 1})
    sink.flush()
    write, calls = os.write, []

    def half_then_full(file: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return write(file, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    sink.put({"step": 2})
    monkeypatch.setattr(os, "write", half_then_full)
    with pytest.raises(StoreError, match="No space left"):
        sink.flush(sync=True)
    assert sink.length() == 0
    assert read_rows(tmp_path / "m.jsonl") == [{"step": 1}]
    monkeypatch.undo()
    sink.put({"step": 3})
    sink.flush(sync=True)
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    assert sink.length() == 36
    sink.close()
    sink.close()


@pytest.mark.parametrize("value", [[1], {"x": 1}, np.float32(1), object()])
def test_other_values_are_refused_by_name(tmp_path: Path, value: object) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    with pytest.raises(StoreError, match="loss"):
        sink.put({"loss": value})  # type: ignore[dict-item]
    sink.close()
    assert (tmp_path / "m.jsonl").read_bytes() == b""


def test_a_torn_end_is_refused_for_appending(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"st')
    with pytest.raises(DamagedError, match="middle of a row"):
        JsonlSink(tmp_path / "m.jsonl")
    with pytest.raises(StoreError, match="nowhere"):
        JsonlSink(tmp_path / "nowhere" / "m.jsonl")


@pytest.mark.parametrize("line", ["[1]", "{", "7", '{"a": [1]}', "[" * 100_000, "\udcff"])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "m.jsonl").write_bytes(b'{"step": 1}\n' + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DamagedError, match="m.jsonl: the line at byte 12"):
        read_rows(tmp_path / "m.jsonl")


ROWS = [{"step": 100, "loss": 0.5, "ok": True}, {"step": 200, "eval_return": 12.25},
        {"step": 300, "loss": None, "note": 'a, "b"'}]
TABLE = 'step,loss,ok,eval_return,note\n100,0.5,1,,\n200,,,12.25,\n300,,,,"a, ""b"""\n'


def test_write_csv_holds_every_column(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS) + '{"step": 4')
    write_csv(tmp_path / "m.jsonl", tmp_path / "m.csv")
    assert (tmp_path / "m.csv").read_text() == TABLE
    with open(tmp_path / "m.csv", newline="") as file:
        assert [row["note"] for row in csv.DictReader(file)] == ["", "", 'a, "b"']
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.csv", "m.jsonl"]


@pytest.mark.parametrize("flushes", range(8))
def test_csv_is_the_same_however_often_it_was_flushed(tmp_path: Path, flushes: int) -> None:
    source, table = JsonlSink(tmp_path / "m.jsonl"), CsvSink(tmp_path / "m.csv", tmp_path / "m.jsonl")
    for index, row in enumerate(ROWS):
        for sink in (source, table):
            sink.put(row)
        if flushes >> index & 1:
            for sink in (source, table):
                sink.flush()
    for sink in (source, table):
        sink.close()
    assert (tmp_path / "m.csv").read_text() == TABLE


def test_csv_appends_while_its_columns_last_and_heals_after_a_resume(tmp_path: Path) -> None:
    source, table = JsonlSink(tmp_path / "m.jsonl"), CsvSink(tmp_path / "m.csv", tmp_path / "m.jsonl")
    source.put({"step": 1, "loss": 0.1})
    source.flush()
    table.flush()
    before = (tmp_path / "m.csv").stat().st_ino
    source.put({"step": 2, "loss": 0.2})
    source.flush()
    table.flush()
    assert (tmp_path / "m.csv").stat().st_ino == before, "appended, not written again"
    assert (tmp_path / "m.csv").read_text() == "step,loss\n1,0.1\n2,0.2\n"
    source.close()
    os.truncate(tmp_path / "m.jsonl", 25)
    os.truncate(tmp_path / "m.csv", table.length())
    CsvSink(tmp_path / "m.csv", tmp_path / "m.jsonl").flush()
    assert (tmp_path / "m.csv").read_text() == "step,loss\n1,0.1\n"


def test_numpy_reads_the_table(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 1 / 3}, {"step": 2, "loss": None}, {"step": 3, "eval_return": 7.5}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_csv(tmp_path / "m.jsonl", tmp_path / "m.csv")
    table = np.genfromtxt(tmp_path / "m.csv", delimiter=",", names=True)
    np.testing.assert_array_equal(table["step"], [1, 2, 3])
    np.testing.assert_array_equal(table["loss"], [1 / 3, math.nan, math.nan])
    np.testing.assert_array_equal(table["eval_return"], [math.nan, math.nan, 7.5])


def test_a_replacement_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.svg"
    write_text(path, "old")

    def fail(source: str, target: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StoreError, match="Input/output"):
        write_text(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["x.svg"]
    with pytest.raises(StoreError, match="cannot be read"):
        write_csv(tmp_path / "none.jsonl", tmp_path / "none.csv")
