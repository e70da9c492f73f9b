"""Curves: the right points in the right places, and no input that cannot be drawn."""

from __future__ import annotations

import itertools
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.monitor.curve import Series, svg_curve, text_curve, write_curve

SVG = "{http://www.w3.org/2000/svg}"


def test_text_curve_exactly() -> None:
    assert text_curve([0, 10, 20, 30, 40], [0, 25, 50, 75, 100], width=25, height=5, title="up", ascii=True).splitlines() == [
        "up",
        " 100+                 ***",
        "    |             ****",
        "  50+        *****",
        "    |   *****",
        "   0+***",
        "    +--------------------",
        "     0        20       40",
        "                    steps",
    ]


def test_braille_rises_from_the_lower_left_to_the_upper_right() -> None:
    lines = text_curve(range(101), range(101), width=30, height=6, x_label="").splitlines()
    assert len(lines) == 8 and max(map(len, lines)) <= 30
    assert lines[5][5] == "⣠" and lines[0][-1] == "⠋" and lines[5].startswith("   0┤") and lines[0].startswith(" 100┤")


ODD = {
    "one": ([5], [2.5]), "constant": ([0, 1, 2], [7, 7, 7]), "zeros": ([0, 1], [0, 0]), "negative": ([0, 1], [-1500.0, -150.0]),
    "gap": ([0, 1, 2, 3], [1.0, math.nan, None, -1.0]), "infinite": ([0, 1, 2], [math.inf, 1.0, -math.inf]),
    "huge": ([0, 1], [-1e38, 1e38]), "too huge": ([0, 1, 2], [1e308, -1e308, 3.0]), "tiny": ([0, 1], [1e-9, 3e-9]),
    "nearly constant": ([0, 1], [1e16, 1e16 + 2]), "denormal": ([0, 1], [0.0, 5e-300]), "same x": ([4, 4], [1, 2]),
    "x unknown": ([None, 1], [1, 2]), "large integer": ([0, 10**400], [1, 10**400]), "many": (range(5000), range(5000)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize(("width", "height"), [(60, 12), (30, 3), (10, 1)])
def test_odd_inputs_are_drawn_in_shape(name: str, ascii: bool, width: int, height: int) -> None:
    text = text_curve(*ODD[name], width=width, height=height, title="t", ascii=ascii)
    lines = text.splitlines()
    assert len(lines) == max(2, height) + 4
    assert max(map(len, lines)) <= max(width, 8 + 1 + len("-1e+38") + 2)
    plot = "".join(lines[1:-3])
    assert any(c == "*" if ascii else 0x2800 < ord(c) <= 0x28FF for c in plot)
    assert text.isascii() == ascii


@pytest.mark.parametrize("ys", [[], [math.nan, None]])
def test_nothing_to_draw_says_so(ys: list[float | None]) -> None:
    assert text_curve(range(len(ys)), ys, title="t") == "t\n(no data to draw)"


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ShoalError, match="2 xs and 1 ys"):
        text_curve([1, 2], [1])


def points(element: ElementTree.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in element.get("points", "").split()]  # type: ignore[misc]


def parts(svg: str, tag: str, kind: str) -> list[ElementTree.Element]:
    return [e for e in ElementTree.fromstring(svg).iter(SVG + tag) if kind in e.get("class", "").split() and "key-mark" not in
            e.get("class", "")]


def tick(svg: str, label: str, axis: str) -> float:
    """Where the tick with this label is drawn, read off the picture."""
    found = [e for e in ElementTree.fromstring(svg).iter(SVG + "text") if e.get("class") == "tick" and e.text == label
             and (e.get("text-anchor") == "middle") == (axis == "x")]
    assert len(found) == 1
    return float(found[0].get(axis, "")) - (4.5 if axis == "y" else 0)


def test_svg_points_lie_where_the_axes_say() -> None:
    svg = svg_curve([Series("a", [0, 50_000, 100_000, 200_000], [0.0, 100.0, 400.0, 500.0])], "title")
    [line] = parts(svg, "polyline", "line")
    drawn = points(line)
    assert len(drawn) == 4
    for (x, y), x_label, y_label in zip(drawn, ("0", "50k", "100k", "200k"), ("0", "100", "400", "500"), strict=True):
        assert abs(x - tick(svg, x_label, "x")) < 0.11 and abs(y - tick(svg, y_label, "y")) < 0.11
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(drawn))


def test_svg_gaps_dots_and_bands() -> None:
    line = Series("line", [0, 1, 2, 3, 4, 5], [1, 2, math.nan, 3, None, 4])
    dots = Series("dots", [1, 2, 3], [1, 3, 2], dots=True)
    band = Series("band", [0, 1, 2, 3], [1, 2, 3, 4], low=[0, 1, None, 2], high=[2, 3, 4, 6])
    svg = svg_curve([line, dots, band], "t")
    assert [len(points(e)) for e in parts(svg, "polyline", "c0")] == [2]
    assert len(parts(svg, "circle", "c0")) == 2, "points alone between gaps are marked"
    assert [len(points(e)) for e in parts(svg, "polyline", "c1")] == [3]
    centres = [(float(e.get("cx", "")), float(e.get("cy", ""))) for e in parts(svg, "circle", "c1")]
    assert centres == points(parts(svg, "polyline", "c1")[0])
    assert centres[1][1] < centres[2][1] < centres[0][1], "a higher value is drawn higher"
    bands = [points(e) for e in parts(svg, "polygon", "c2")]
    assert [len(b) for b in bands] == [4, 2]
    upper, lower = bands[0][:2], bands[0][:1:-1]
    assert all(u[0] == v[0] and u[1] < v[1] for u, v in zip(upper, lower, strict=True))
    assert [e.text for e in ElementTree.fromstring(svg).iter(SVG + "text") if e.get("class") == "key"] == ["line", "dots", "band"]


@pytest.mark.parametrize("name", ODD)
def test_svg_of_odd_inputs_is_well_formed_and_inside_the_picture(name: str) -> None:
    root = ElementTree.fromstring(svg_curve([Series("<&\x00\">" * 30, *ODD[name])], "a & b < c \x07" * 9))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for element in root.iter():
        for key in ("x", "x1", "x2", "cx"):
            assert 0 <= float(element.get(key, "0")) <= width
        for key in ("y", "y1", "y2", "cy"):
            assert 0 <= float(element.get(key, "0")) <= height
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points(element))


def test_svg_without_data_says_so_and_long_series_are_thinned() -> None:
    assert "no data yet" in svg_curve([], "t")
    xs = list(range(10_000))
    [line] = parts(svg_curve([Series("a", xs, xs, low=xs, high=xs)], "t"), "polyline", "line")
    drawn, short = points(line), points(parts(svg_curve([Series("a", [0, 9999], [0, 9999])], "t"), "polyline", "line")[0])
    assert len(drawn) == 800 and drawn[0] == short[0] and drawn[-1] == short[-1] and drawn == sorted(drawn)


def test_write_curve_draws_training_and_evaluations(tmp_path: Path) -> None:
    rows = [{"step": s, "iteration": s, "mean_return": None if s < 3 else 2.0 * s} for s in range(1, 11)]
    rows += [{"step": 5, "iteration": 5, "eval_return": 11.0}, {"step": 10, "iteration": 10, "eval_return": 21.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = write_curve(tmp_path, "ppo on cartpole")
    svg = path.read_text()
    assert path == tmp_path / "learning_curve.svg"
    assert [len(points(e)) for e in parts(svg, "polyline", "c0")] == [8]
    assert len(parts(svg, "circle", "c1")) == 2
    assert ElementTree.fromstring(svg).findtext(SVG + "title") == "ppo on cartpole"
    assert svg == write_curve(tmp_path, "ppo on cartpole").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["learning_curve.svg", "metrics.jsonl"]
