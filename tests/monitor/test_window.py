"""Windows: exact means, and a resume in mid-window to the same bits."""

from __future__ import annotations

import json
import math
import random

import pytest

from shoal.errors import DamagedError, ShoalError
from shoal.monitor.window import Window


def test_row_has_the_means_in_the_promised_order() -> None:
    window = Window()
    window.add({"value_loss": 1.0, "entropy": 0.5}, 2, 30.0, 24, 15.0)
    window.add({"value_loss": 2.0, "entropy": 0.25}, 0, 0.0, 0, 15.0)
    window.add({"value_loss": 6.0, "entropy": 0.0}, 1, 60.0, 36, 30.0)
    row = window.row(step=300, iteration=3, updates=12, episodes_total=7)
    assert list(row.items()) == [("step", 300), ("iteration", 3), ("updates", 12), ("episodes", 7), ("mean_return", 30.0),
                                 ("window_return", 30.0), ("episode_length", 20.0), ("entropy", 0.25), ("value_loss", 3.0)]


def test_row_begins_anew_and_keeps_the_last_mean_return() -> None:
    window = Window()
    window.add({"loss": 4.0}, 1, 10.0, 5, 10.0)
    window.row(1, 1, 1, 1)
    window.add({"loss": 8.0}, 0, 0.0, 0, 10.0)
    row = window.row(2, 2, 2, 1)
    assert row["loss"] == 8.0 and row["mean_return"] == 10.0
    assert math.isnan(row["window_return"]) and math.isnan(row["episode_length"])


def test_a_metric_is_averaged_over_the_iterations_it_occurred_in() -> None:
    window = Window()
    window.add({}, 0, 0.0, 0, math.nan)
    window.add({"loss": 3.0}, 0, 0.0, 0, math.nan)
    window.add({"loss": 5.0}, 0, 0.0, 0, math.nan)
    assert window.row(3, 3, 2, 0)["loss"] == 4.0


@pytest.mark.parametrize("cut", range(0, 24))
def test_save_and_load_in_mid_window_equals_straight(cut: int) -> None:
    draw = random.Random(5)
    adds = [({"loss": draw.gauss(0, 1), "kl": draw.random() * 1e-7}, draw.randrange(3), draw.gauss(0, 100), draw.randrange(99),
             draw.random() if i > 3 else math.nan) for i in range(24)]

    def rows(stop_at: int) -> list[str]:
        window, out = Window(), []
        for i, one in enumerate(adds):
            if i == stop_at:
                text = json.dumps(window.state(), allow_nan=False)
                window = Window()
                window.add({"rubbish": 1.0}, 9, 9.0, 9, 9.0)
                window.load(json.loads(text))
            window.add(*one)
            if i % 7 == 6:
                out.append(repr(window.row(i, i, i, i)))
        out.append(repr(window.row(99, 99, 99, 99)))
        return out

    assert rows(cut) == rows(-1)


def test_nan_infinity_and_negative_zero_survive_a_save() -> None:
    window, again = Window(), Window()
    window.add({"a": math.nan, "b": math.inf, "c": -math.inf}, 1, -0.0, 1, math.nan)
    again.load(json.loads(json.dumps(window.state(), allow_nan=False)))
    assert repr(again.row(0, 0, 0, 0)) == repr(window.row(0, 0, 0, 0))


def test_a_metric_may_not_take_the_name_of_a_column() -> None:
    window = Window()
    window.add({"episodes": 1.0}, 0, 0.0, 0, 0.0)
    with pytest.raises(ShoalError, match="'episodes'"):
        window.row(1, 1, 1, 1)


@pytest.mark.parametrize(("field", "value"), [
    ("mean_return", 1.5), ("return_sum", "much"), ("episodes", -1), ("length_sum", "3"), ("episodes", True), ("metrics", []),
    ("metrics", {"loss": ["1.0"]}), ("metrics", {"loss": ["1.0", 0]}), ("metrics", {"loss": ["x", 1]}), ("episodes", None)])
def test_a_damaged_state_is_refused_with_its_field(field: str, value: object) -> None:
    window = Window()
    window.add({"loss": 1.0}, 1, 1.0, 1, 1.0)
    state = window.state() | {field: value}
    with pytest.raises(DamagedError, match="loss" if isinstance(value, dict) else field):
        Window().load(state)
