"""The arithmetic behind the tables of make verify and make bench, and the tables themselves."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import bench, cheetah, contest, gpu, stats, table, verify
from benchmarks.workers import protocol


def test_t_interval_matches_hand_computed_numbers():
    # mean 3, standard deviation sqrt(2.5), t(0.975, 4) = 2.776445
    interval = stats.t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.mean == 3.0
    assert interval.half == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5), rel=1e-6)
    assert (interval.low, interval.high) == pytest.approx((1.036757, 4.963243), rel=1e-6)


def test_interval_of_equal_values_has_no_width_and_of_one_is_unknown():
    assert stats.t_interval([500.0] * 5) == stats.Interval(500.0, 0.0)
    assert stats.t_interval([500.0]).half == math.inf


@pytest.mark.parametrize(("a", "b", "overlap"), [((0, 1), (2, 1), True), ((0, 1), (2.1, 1), False), ((5, 0), (5, 0), True)])
def test_overlap(a, b, overlap):
    assert stats.Interval(*a).overlaps(stats.Interval(*b)) is overlap
    assert stats.Interval(*b).overlaps(stats.Interval(*a)) is overlap


def test_ratio_is_of_pairs_not_of_medians():
    # the machine halves its speed after the first pair: every ratio is 4, the medians' is not
    assert stats.ratio([(80.0, 20.0), (40.0, 10.0), (44.0, 11.0)]) == stats.Ratio(4.0, 4.0, 4.0, 3)
    assert stats.ratio([(10.0, 10.0), (30.0, 10.0), (20.0, 10.0), (50.0, 10.0)]) == stats.Ratio(2.5, 1.0, 5.0, 4)


def test_steal_is_a_share_of_the_time_that_was_wanted():
    before = stats.parse_ticks("cpu  100 0 50 1000 10 0 0 5 7 0")
    after = stats.parse_ticks("cpu  180 0 60 1100 15 0 0 15 9 0")
    assert before == stats.Ticks(155, 5) and after == stats.Ticks(255, 15)
    assert stats.steal_share(before, after) == pytest.approx(0.1)
    assert stats.steal_share(after, after) == 0.0


def test_table_keeps_what_was_not_measured_now(tmp_path):
    page, columns = tmp_path / "page.md", ("work", "rate", "met")
    table.update(page, "# Title\n\nWords.\n", [{"work": "a", "rate": "1", "met": "no"}, {"work": "b", "rate": "2", "met": "yes"}],
                 columns, ("work",))
    rows = table.update(page, "unused", [{"work": "a", "rate": "3", "met": "yes"}, {"work": "c", "rate": "4", "met": "no"}],
                        columns, ("work",))
    assert [tuple(row.values()) for row in rows] == [("a", "3", "yes"), ("b", "2", "yes"), ("c", "4", "no")]
    assert page.read_text() == ("# Title\n\nWords.\n\n| work | rate | met |\n|---|---|---|\n| a | 3 | yes |\n| b | 2 | yes |\n"
                                "| c | 4 | no |\n")


def test_two_tables_on_one_page_and_words_between_them_stay_apart(tmp_path):
    page = tmp_path / "page.md"
    table.update(page, "# T\n", [{"a": "1", "b": "2"}], ("a", "b"), ("a",))
    page.write_text(page.read_text() + "\nA note by hand.\n")
    table.update(page, "# T\n", [{"c": "x|y"}], ("c",), ("c",))
    table.update(page, "# T\n", [{"a": "5", "b": "6"}], ("a", "b"), ("a",))
    text = page.read_text()
    assert table.read(text, ("a", "b")) == [{"a": "1", "b": "2"}, {"a": "5", "b": "6"}]
    assert table.read(text, ("c",)) == [{"c": "x/y"}]
    assert text.index("| 5 | 6 |") < text.index("A note by hand.") < text.index("| c |")
    assert table.read(text, ("a", "z")) == []
    for value in ("1", "2"):  # words come once, with the first rows of a table
        table.update(page, "# T\n", [{"d": value}], ("d",), ("d",), "## Section\n\nWords.\n")
    assert page.read_text().endswith("\n\n## Section\n\nWords.\n\n| d |\n|---|\n| 1 |\n| 2 |\n")


def _results(*scores):
    return [{"eval_return": score, "steps": 100_352} for score in scores]


def test_verify_row_and_agreement_of_paths():
    task = verify.TASKS["acrobot"]
    fused = verify.row("ppo", "acrobot", "fused", task, _results(-80.0, -84.0, -82.0, -81.0, -83.0))
    # standard deviation sqrt(2.5): half a width of 1.9632
    assert (fused["mean"], fused["95 % interval"], fused["met"]) == ("−82.0", "−84.0 … −80.0", "yes")
    assert (fused["seeds"], fused["steps"], fused["threshold"]) == ("−80.0, −84.0, −82.0, −81.0, −83.0", "100,352", "≥ −90.0")
    near = verify.row("ppo", "Acrobot-v1", "ported", task, _results(-84.0, -85.0, -86.0))
    far = verify.row("ppo", "Acrobot-v1", "ported", task, _results(-99.0, -99.5, -99.0))
    assert far["met"] == "no"
    assert verify.agreement([fused]) == []
    assert [line["intervals overlap"] for line in verify.agreement([fused, near])] == ["yes"]
    assert [line["intervals overlap"] for line in verify.agreement([fused, far])] == ["no"]


def test_verify_of_a_task_that_only_gymnasium_has():
    task = verify.TASKS["lunar_lander"]
    assert task.envs() == {"ported": "LunarLander-v3"} and task.label("ported") == "LunarLander-v3"
    only = verify.row("ppo", "LunarLander-v3", "ported", task, _results(210.0, 230.0))
    assert only["met"] == "yes" and verify.agreement([only]) == []


def test_verify_of_what_should_fail_without_a_setting():
    task = verify.TASKS["bit_flip"]
    solved = verify.row("dqn", task.label("fused"), "fused", task, _results(-9.0, -9.2, -8.9))
    alone = verify.row("dqn (hindsight=none)", task.label("fused"), "fused", task, _results(-20.0, -19.8, -20.0), failing=True)
    lucky = verify.row("dqn (hindsight=none)", task.label("fused"), "fused", task, _results(-9.0, -20.0, -20.0), failing=True)
    assert solved["env"] == alone["env"] == "bit_flip (bits=20)"
    assert [(r["threshold"], r["met"]) for r in (solved, alone, lucky)] == [("≥ −10.0", "yes"), ("≤ −19.0", "yes"), ("≤ −19.0", "no")]
    assert verify.row("dqn", "bit_flip", "fused", task, _results(-20.0, -20.0))["met"] == "no"


def test_no_worse_than_a_peer_is_its_mean_less_its_standard_error():
    assert cheetah.bound([3000.0, 5000.0]) == pytest.approx(3000.0)  # of two seeds, the poorer
    assert cheetah.bound([1.0, 2.0, 3.0]) == pytest.approx(2.0 - 1.0 / math.sqrt(3))
    assert cheetah.bound([7.0]) == 7.0
    for ours, met in (([2000.0, 4000.0], "yes"), ([0.0, 5990.0], "no")):  # a wide spread of our own does not help
        assert cheetah.row("ported", _results(*ours), 3000.0, "–")["met"] == met
    peer = cheetah.row("SB3", _results(3000.0, 5000.0), None, "SB3 1.0")
    assert (peer["mean"], peer["threshold"], peer["met"], peer["anchor"]) == ("4000.0", "–", "–", "SB3 1.0")
    assert tuple(peer) == cheetah.COLUMNS == verify.COLUMNS


def test_verify_goes_on_past_a_missing_package_but_is_not_content(tmp_path, monkeypatch, capsys):
    absent = verify.Task("", "ShoalAbsent-v0", 100, 0.0, "–")  # an id that no package here registers
    monkeypatch.setattr(verify, "TASKS", {"absent": absent})
    assert not verify.verify(["absent", "absent"], ["fused", "ported"], 1, tmp_path / "scores.md")
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and all(line.startswith("ppo ShoalAbsent-v0 ported: NOT run: unknown env") for line in said)
    assert not (tmp_path / "scores.md").exists()
    with pytest.raises(SystemExit):
        verify.main(["absent", "--path", "fused"])
    assert "absent has no fused path" in capsys.readouterr().err


class _Spoken:
    """What a row reads of a worker: its name and what it said of itself."""

    def __init__(self, name):
        self.name, self.about = name, {"warm_s": 1.25, "versions": f"{name} 1.0"}


def _rounds(*pairs, steal=0.01):
    return [{"shoal": {"rate": a, "steal": steal}, "peer": {"rate": b, "steal": 0.0}} for a, b in pairs]


def test_bench_row_is_met_by_the_median_over_enough_pairs():
    work = contest.Work("w", 8, 128, 1.3)
    shoal, peer = _Spoken("shoal"), _Spoken("peer")
    kept = _rounds((130, 100), (140, 100), (120, 100), (135, 100), (200, 100))
    found = contest.row(work, shoal, peer, kept, True)
    assert (found["ratio"], found["range"], found["pairs"], found["met"]) == ("1.35", "1.20 … 2.00", "5", "yes")
    assert (found["steps/s"], found["peer steps/s"], found["steal"]) == ("135", "100", "1.0%")
    assert found["ready after s (shoal / peer)"] == "1.2 / 1.2"
    assert tuple(found) == contest.COLUMNS
    assert contest.row(work, shoal, peer, kept[:4], True)["met"] == "no"  # too few pairs to claim anything
    assert contest.row(work, shoal, peer, _rounds(*[(129, 100)] * 5), True)["met"] == "no"
    unclaimed = contest.row(work, shoal, peer, kept, False)
    assert (unclaimed["target"], unclaimed["met"]) == ("–", "–")
    with pytest.raises(RuntimeError, match="too busy"):
        contest.row(work, shoal, peer, [], True)


class _Scripted(_Spoken):
    def __init__(self, name, steals):
        super().__init__(name)
        self._steals = iter(steals)

    def sample(self):
        return {"rate": 1.0, "steal": next(self._steals)}


def test_rounds_with_steal_are_dropped_and_repeated_within_bounds():
    workers = [_Scripted("a", [0.0, 0.06, 0.05, 0.0]), _Scripted("b", [0.0, 0.0, 0.0, 0.2])]
    kept, dropped = contest.rounds(workers, wanted=2, extra=3)
    assert (len(kept), len(dropped)) == (2, 1)
    assert [got["a"]["steal"] for got in kept] == [0.0, 0.05]
    kept, dropped = contest.rounds([_Scripted("a", [0.5] * 10)], wanted=2, extra=3)
    assert (len(kept), len(dropped)) == (0, 4)


def test_compilations_after_the_first_call():
    assert bench.compilations('{"compilations": 7, "step": 1}\n{"compilations": 7}\n{"compilations": 9}\n') == [7, 7, 9]
    with pytest.raises(RuntimeError, match="first call"):
        bench.compilations('{"compilations": 7}\n')


def test_calibration_fills_a_sample_with_whole_iterations():
    asked = []

    def sample(steps):
        asked.append(steps)
        return {"seconds": steps / 1000}

    assert protocol.calibrate(sample, 128, 3.0) == 2944  # 23 iterations: 3 s at 1,000 steps a second, to the nearest whole one
    assert asked == [128, 256, 512, 1024, 2048]
    assert protocol.calibrate(lambda steps: {"seconds": 50.0}, 128, 3.0) == 128


def test_gpu_lines_fold_into_the_page(tmp_path):
    line = json.dumps({"num_envs": 2048, "num_steps": 32, "steps_per_s": 25.6e6, "samples": [24e6, 25.6e6, 26e6],
                       "compile_s": 12.34, "ready_s": 14.0, "device": "H200", "jax": "0.10.2"})
    slow = json.dumps(json.loads(line) | {"num_envs": 65_536, "steps_per_s": 70e6})
    rows = gpu.table(["a warning", line, slow], tmp_path / "speed.md")
    assert [(r["steps/s"], r["ratio"], r["target"], r["met"]) for r in rows] == [("25.6 M", "1.60", "≥ 1.5", "yes"),
                                                                                ("70.0 M", "0.89", "≥ 1", "no")]
    assert rows[0]["range"] == "24.0 M … 26.0 M"
    assert (tmp_path / "speed.md").read_text().startswith("# Speed")
