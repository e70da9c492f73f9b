"""metrics.jsonl holds nothing that depends on time; the table and the picture follow from it; nothing compiles twice."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ElementTree

import pytest

from shoal.monitor.sinks import read_rows

KINDS = pytest.mark.parametrize(("env", "path"), [("cartpole", "fused"), ("cartpole", "ported"), ("CartPole-v1", "auto")],
                                ids=["fused", "ported", "gymnasium"])


@KINDS
def test_what_the_files_hold(run, env, path):
    settings = {"path": path, "steps": 1280, "eval_every": 256, "checkpoint_every": "320"}
    done, twin = run(env, **settings), run(env, **settings)
    assert (done.folder / "metrics.jsonl").read_bytes() == (twin.folder / "metrics.jsonl").read_bytes()
    rows = read_rows(done.folder / "metrics.jsonl")
    names = {name for row in rows for name in row}
    assert not [name for name in names if name.endswith("_s") or "time" in name or "per_s" in name or "wall" in name]
    assert {"step", "iteration", "updates", "episodes", "mean_return", "policy_loss", "eval_return"} <= names
    assert [row["step"] for row in done.rows()] == list(range(64, 1281, 64))
    assert all(row["iteration"] * 64 == row["step"] and row["updates"] == row["iteration"] for row in done.rows())

    timing = read_rows(done.folder / "timing.jsonl")
    busy = set() if path == "fused" else {"learner_busy"}
    assert set(timing[0]) == {"step", "wall_s", "iterations", "steps_per_s", "compilations"} | busy
    assert sum(row["iterations"] for row in timing) == 20 and timing[-1]["step"] == 1280
    assert all(a["wall_s"] <= b["wall_s"] for a, b in zip(timing, timing[1:], strict=False))
    # warm after the first evaluation (at 256) and the first checkpoint (at 320)
    warm = [row["compilations"] for row in timing if row["step"] > 384]
    assert len(warm) > 3 and set(warm) == {warm[0]}

    with open(done.folder / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(rows)
    for cells, row in zip(table, rows, strict=True):
        assert {name: float(text) for name, text in cells.items() if text} == {k: v for k, v in row.items() if v is not None}

    picture = ElementTree.parse(done.folder / "learning_curve.svg").getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert any("evaluation" in (text or "") for text in picture.itertext())


def test_rows_are_means_over_their_window(run):
    fine, coarse = run(steps=640), run(steps=640, log_every=200)
    assert fine.sha == coarse.sha
    assert [row["step"] for row in coarse.rows()] == [256, 448, 640]  # 200, 400, 600
    first, window = coarse.rows()[0], fine.rows()[:4]
    for name in ("policy_loss", "entropy", "approximate_kl"):
        assert first[name] == sum(row[name] for row in window) / 4
    ended = [row["episodes"] - before for row, before in zip(window, [0, *(r["episodes"] for r in window)], strict=False)]
    total = sum((row["window_return"] or 0.0) * n for row, n in zip(window, ended, strict=True))
    assert first["window_return"] == pytest.approx(total / sum(ended))
    assert first["episodes"] == window[-1]["episodes"] and first["mean_return"] == window[-1]["mean_return"]


def test_the_final_evaluation_is_the_result(run):
    done = run("CartPole-v1", steps=320, eval_every=128)
    assert done.evaluations()[-1] == (320, done.result["eval_return"])
    assert done.result["mean_return"] == done.rows()[-1]["mean_return"]
    assert done.result["episodes"] == done.rows()[-1]["episodes"]
