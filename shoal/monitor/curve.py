"""Learning curves: as text for a terminal, as SVG for the run folder and the README. Plain Python, no plotting library."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.errors import ShoalError
from shoal.monitor.sinks import read_rows, write_text

_HUGE = 1e300  # beyond it the difference of two numbers may overflow
_MAX_POINTS = 800  # of one series in a picture: about one per pixel
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bit of the dot in row, column of a character

Number = int | float | None
Point = tuple[float, float]


class Series(NamedTuple):
    """One line of a picture. A y that is None or not finite leaves a gap."""

    label: str
    xs: Sequence[Number]
    ys: Sequence[Number]
    low: Sequence[Number] | None = None  # with ``high``: a band, such as an interval over seeds
    high: Sequence[Number] | None = None
    dots: bool = False  # mark every point, as for evaluations


class _Axis(NamedTuple):
    low: float
    high: float
    ticks: list[float]
    labels: list[str]

    def place(self, value: float) -> float:
        """Where a value lies, 0 at the low end and 1 at the high one."""
        return (value - self.low) / (self.high - self.low)


def _is_number(value: Number) -> bool:
    return value is not None and abs(value) <= _HUGE  # False for nan


def _axis(values: Iterable[float], num_ticks: int, *, snap: bool) -> _Axis:
    """An axis that holds ``values``, with about ``num_ticks`` round ticks, at least two; ``snap`` widens it to whole ticks."""
    values = list(values)
    low, high = min(values), max(values)
    middle, scale = low / 2 + high / 2, max(abs(low), abs(high))
    if high - low <= 1e-9 * scale or high == low:  # constant, as far as labels could show
        half = 0.5 * scale if scale else 1.0
        low, high = middle - half, middle + half
    raw = (high - low) / max(1, num_ticks)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [factor * power for factor in (1, 2, 5, 10, 20, 50) if factor * power >= raw * 0.999]

    def cover(step: float) -> tuple[int, int]:
        """First and last tick, as multiples of ``step``, that hold all values between them."""
        return math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)

    if snap:
        step = min(steps, key=lambda step: (round((cover(step)[1] - cover(step)[0]) * step / power), step))  # least empty space
        first, last = cover(step)
    else:
        finer = (factor * power for factor in (10, 5, 2, 1, 0.5, 0.2) if factor * power <= steps[0])
        for step in finer:  # until there are two ticks: one alone would give no scale
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last > first:
                break
    ticks = [index * step for index in range(first, last + 1)]
    if snap:
        low, high = ticks[0], ticks[-1]
    return _Axis(low, high, ticks, [_tick_label(tick, step, ticks) for tick in ticks])


def _tick_label(tick: float, step: float, ticks: list[float]) -> str:
    """A label in the unit that suits the whole axis, with as many decimals as its step needs: ``250k``, ``-0.5``."""
    largest = max(abs(ticks[0]), abs(ticks[-1]))
    if not 1e-4 < largest < 1e13:
        return f"{tick:.{max(1, 1 + math.floor(math.log10(largest)) - math.floor(math.log10(step)))}g}"
    unit, suffix = next((pair for pair in ((1e9, "G"), (1e6, "M"), (1e4, "k")) if largest >= pair[0]), (1.0, ""))
    unit = 1e3 if suffix == "k" else unit
    if tick == 0:
        return "0"
    decimals = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    return f"{tick / unit:.{decimals}f}{suffix}"


def _x_axis(values: Iterable[float], num_ticks: int) -> _Axis:
    """From 0 where the first value is near it: steps are counted from there."""
    values = list(values)
    return _axis([*values, 0.0] if 0 < min(values) <= 0.25 * max(values) else values, num_ticks, snap=False)


def _segments(xs: Sequence[Number], ys: Sequence[Number]) -> Iterator[list[Point]]:
    """Runs of points without a gap."""
    if len(xs) != len(ys):
        raise ShoalError(f"curve: {len(xs)} xs and {len(ys)} ys: expected as many of each")
    run: list[Point] = []
    for x, y in zip(xs, ys, strict=True):
        if x is not None and y is not None and _is_number(x) and _is_number(y):
            run.append((float(x), float(y)))
        elif run:
            yield run
            run = []
    if run:
        yield run


def text_curve(xs: Sequence[Number], ys: Sequence[Number], width: int = 60, height: int = 12, title: str = "",
               x_label: str = "steps", ascii: bool = False) -> str:
    """A curve at most ``width`` characters wide (never narrower than its labels and 8), with ``height`` lines of plot and a title
    and labelled axes around them.

    Lines are drawn in braille dots, or with ``ascii`` in ``*``. A y that is None or not finite leaves a gap.
    """
    heading = [title[:width]] if title else []
    runs = list(_segments(xs, ys))
    if not runs:
        return "\n".join([*heading, "(no data to draw)"])
    height = max(2, height)
    y_axis = _axis((y for run in runs for _, y in run), min(5, max(2, height // 2 - 1)), snap=True)
    margin = max(map(len, y_axis.labels)) + 1
    columns = max(8, width - margin - 1)
    x_axis = _x_axis((x for run in runs for x, _ in run), max(1, columns // 12))
    dots_x, dots_y = (1, 1) if ascii else (2, 4)
    lit = _rasterise(runs, x_axis, y_axis, columns * dots_x, height * dots_y)
    rows = [round((1 - y_axis.place(tick)) * (height - 1)) for tick in y_axis.ticks]
    labels = dict(zip(rows, y_axis.labels, strict=True))
    wall, tick_wall, floor, corner = ("|", "+", "-", "+") if ascii else ("│", "┤", "─", "└")
    lines = []
    for row in range(height):
        cells = "".join(_cell(lit, row, column, ascii) for column in range(columns))
        lines.append(f"{labels.get(row, ''):>{margin}}{tick_wall if row in labels else wall}{cells}".rstrip())
    lines.append(" " * margin + corner + floor * columns)
    lines.append(_x_labels(x_axis, columns, margin + 1))
    if x_label:
        lines.append(f"{x_label[:width]:>{margin + 1 + columns}}")
    return "\n".join([*heading, *lines])


def _rasterise(runs: list[list[Point]], x_axis: _Axis, y_axis: _Axis, width: int, height: int) -> set[tuple[int, int]]:
    """The dots (column, row from the top) that the curve passes through."""
    lit = set()
    for run in runs:
        dots = [(round(x_axis.place(x) * (width - 1)), round((1 - y_axis.place(y)) * (height - 1))) for x, y in run]
        lit.add(dots[0])
        for (x0, y0), (x1, y1) in zip(dots, dots[1:], strict=False):
            count = max(abs(x1 - x0), abs(y1 - y0), 1)
            lit.update((round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)) for i in range(count + 1))
    return lit


def _cell(lit: set[tuple[int, int]], row: int, column: int, ascii: bool) -> str:
    if ascii:
        return "*" if (column, row) in lit else " "
    bits = sum(bit for i, pair in enumerate(_BRAILLE) for j, bit in enumerate(pair) if (2 * column + j, 4 * row + i) in lit)
    return chr(0x2800 + bits) if bits else " "


def _x_labels(axis: _Axis, columns: int, offset: int) -> str:
    """Tick labels centred below their places, each only where it fits."""
    line = [" "] * (offset + columns)
    free_from = 0
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        start = min(max(0, offset + round(axis.place(tick) * (columns - 1)) - len(label) // 2), len(line) - len(label))
        if start >= free_from:
            line[start : start + len(label)] = label
            free_from = start + len(label) + 2
    return "".join(line).rstrip()


_WIDTH, _HEIGHT, _RIGHT, _BOTTOM = 760, 430, 28, 58
_LIGHT = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2")
_DARK = ("#60a5fa", "#fbbf24", "#34d399", "#c084fc", "#f87171", "#22d3ee")


def svg_curve(series: Sequence[Series], title: str, x_label: str = "environment steps", y_label: str = "return") -> str:
    """A self-contained picture; follows the viewer's light or dark preference."""
    series = [_thin(one) for one in series]
    runs = [run for one in series for ys in (one.ys, one.low, one.high) if ys is not None for run in _segments(one.xs, ys)]
    points = [point for run in runs for point in run] or [(0.0, 0.0), (1.0, 1.0)]
    x_axis, y_axis = _x_axis((x for x, _ in points), 6), _axis((y for _, y in points), 5, snap=True)
    left = 46 + 7.5 * max(map(len, y_axis.labels))
    legend, top = _svg_legend(series, left)
    frame = _Frame(x_axis, y_axis, left, _WIDTH - _RIGHT, top, _HEIGHT - _BOTTOM)
    body = [*legend, *_svg_axes(frame, x_label, y_label)]
    for index, one in enumerate(series):
        body += _svg_series(frame, one, f"c{index % len(_LIGHT)}")
    if not runs:
        body.append(f'<text class="faint" x="{(left + _WIDTH - _RIGHT) / 2:.1f}" y="{(top + _HEIGHT - _BOTTOM) / 2:.1f}" '
                    'text-anchor="middle">no data yet</text>')
    name = _escape(title)
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<title>{name}</title>", f"<style>{_style()}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8"/>',
        f'<text class="head" x="{left:.1f}" y="28">{_escape(_cut(title, 58))}</text>', *body, "</svg>", ""])


class _Frame(NamedTuple):
    """The plot area in pixels, and the axes that fill it."""

    x_axis: _Axis
    y_axis: _Axis
    left: float
    right: float
    top: float
    bottom: float

    def x(self, value: float) -> float:
        return self.left + self.x_axis.place(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.y_axis.place(value) * (self.bottom - self.top)

    def path(self, points: Iterable[Point]) -> str:
        return " ".join(f"{self.x(x):.2f},{self.y(y):.2f}" for x, y in points)


def _style() -> str:
    def colours(palette: Sequence[str], paper: str, edge: str, grid: str, ink: str, faint: str) -> str:
        lines = "".join(f".line.c{i}{{stroke:{c}}}.dot.c{i}{{fill:{c};stroke:{paper}}}.band.c{i}{{fill:{c}}}"
                        for i, c in enumerate(palette))
        return (f".paper{{fill:{paper};stroke:{edge}}}.grid{{stroke:{grid}}}.axis{{stroke:{faint}}}"
                f".head,.key{{fill:{ink}}}.tick,.faint{{fill:{faint}}}{lines}")

    fixed = ("text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:13px}"
             ".head{font-size:16px;font-weight:600}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
             ".thin{stroke-width:1.2;stroke-opacity:0.45}.dot{stroke-width:1}.band{fill-opacity:0.18;stroke:none}")
    light = colours(_LIGHT, "#ffffff", "#e2e8f0", "#e8edf3", "#0f172a", "#64748b")
    dark = colours(_DARK, "#0f172a", "#1e293b", "#233047", "#e2e8f0", "#94a3b8")
    return f"{fixed}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _svg_axes(frame: _Frame, x_label: str, y_label: str) -> Iterator[str]:
    for tick, label in zip(frame.y_axis.ticks, frame.y_axis.labels, strict=True):
        y = frame.y(tick)
        yield f'<line class="grid" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{frame.left - 9:.1f}" y="{y + 4.5:.1f}" text-anchor="end">{label}</text>'
    yield f'<line class="axis" x1="{frame.left:.1f}" x2="{frame.right:.1f}" y1="{frame.bottom:.1f}" y2="{frame.bottom:.1f}"/>'
    for tick, label in zip(frame.x_axis.ticks, frame.x_axis.labels, strict=True):
        x = frame.x(tick)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.bottom:.1f}" y2="{frame.bottom + 5:.1f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{frame.bottom + 20:.1f}" text-anchor="middle">{label}</text>'
    middle_x, middle_y = (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2
    yield f'<text class="tick" x="{middle_x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{_escape(x_label)}</text>'
    yield (f'<text class="tick" x="22" y="{middle_y:.1f}" text-anchor="middle" transform="rotate(-90 22 {middle_y:.1f})">'
           f"{_escape(y_label)}</text>")


def _svg_series(frame: _Frame, one: Series, colour: str) -> Iterator[str]:
    if one.low is not None and one.high is not None:
        both = [h if _is_number(v) else None for v, h in zip(one.low, one.high, strict=True)]
        down = [v if _is_number(h) else None for v, h in zip(one.low, one.high, strict=True)]
        for upper, lower in zip(_segments(one.xs, both), _segments(one.xs, down), strict=True):
            yield f'<polygon class="band {colour}" points="{frame.path([*upper, *reversed(lower)])}"/>'
    for run in _segments(one.xs, one.ys):
        if len(run) > 1:
            yield f'<polyline class="line {colour}{" thin" if one.dots else ""}" points="{frame.path(run)}"/>'
        if one.dots or len(run) == 1:  # a line through one point would not be seen
            for x, y in run:
                yield f'<circle class="dot {colour}" cx="{frame.x(x):.2f}" cy="{frame.y(y):.2f}" r="3.6"/>'


def _svg_legend(series: Sequence[Series], left: float) -> tuple[list[str], float]:
    """Marks and labels under the title, in as many lines as they need, and where the plot may begin below them."""
    parts, x, y = [], left, 49.0
    for index, one in enumerate(series):
        colour, label = f"c{index % len(_LIGHT)}", _cut(one.label, 80)
        width = 24 + 7.2 * len(label)  # a guess on the wide side: fonts differ
        if x > left and x + width > _WIDTH - _RIGHT:
            x, y = left, y + 19
        if one.dots:
            parts.append(f'<circle class="dot {colour} key-mark" cx="{x + 9:.1f}" cy="{y - 4.5:.1f}" r="4"/>')
        else:
            parts.append(f'<line class="line {colour} key-mark" x1="{x + 1:.1f}" x2="{x + 17:.1f}" '
                         f'y1="{y - 4.5:.1f}" y2="{y - 4.5:.1f}"/>')
        parts.append(f'<text class="key" x="{x + 24:.1f}" y="{y:.1f}">{_escape(label)}</text>')
        x += width + 20
    return parts, y + 23


def _thin(one: Series) -> Series:
    """At most ``_MAX_POINTS`` points, evenly chosen, both ends among them: a picture has no room for more."""
    if len(one.xs) <= _MAX_POINTS:
        return one
    chosen = [round(i * (len(one.xs) - 1) / (_MAX_POINTS - 1)) for i in range(_MAX_POINTS)]

    def pick(values: Sequence[Number]) -> Sequence[Number]:
        return [values[i] for i in chosen]

    low, high = (values if values is None else pick(values) for values in (one.low, one.high))
    return one._replace(xs=pick(one.xs), ys=pick(one.ys), low=low, high=high)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _escape(text: str) -> str:
    return html.escape("".join(c for c in text if c.isprintable()))  # control characters are not allowed in XML at all


def write_curve(folder: str | os.PathLike[str], title: str = "Learning curve") -> Path:
    """Draw ``metrics.jsonl`` of a run folder into its ``learning_curve.svg``, replaced in one go."""
    rows = read_rows(Path(folder) / "metrics.jsonl")
    kinds = (("mean_return", "training, last 100 episodes", False), ("eval_return", "evaluation", True))
    series = []
    for name, label, dots in kinds:
        found = [(row.get("step"), row[name]) for row in rows if name in row]
        found = [pair for pair in found if all(value is None or isinstance(value, int | float) for value in pair)]
        if found:
            series.append(Series(label, [x for x, _ in found], [y for _, y in found], dots=dots))
    path = Path(folder) / "learning_curve.svg"
    write_text(path, svg_curve(series, title))
    return path
