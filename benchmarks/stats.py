"""The arithmetic behind the tables: intervals over seeds, ratios over pairs, and how much CPU time others took."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    mean: float
    half: float  # half the width

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean and Student's interval of independent ``values``; of a single one the width is unknown, so infinite."""
    from scipy.stats import t

    count = len(values)
    mean = statistics.fmean(values)
    if count < 2:
        return Interval(mean, math.inf)
    return Interval(mean, float(t.ppf(0.5 + level / 2, count - 1)) * statistics.stdev(values) / math.sqrt(count))


def iqm(values: Sequence[float]) -> float:
    """The interquartile mean: of the middle half, values at its edges counting in part. Agarwal et al. (2021)."""
    ordered, quarter = sorted(values), len(values) / 4
    weights = [max(0.0, min(i + 1, 3 * quarter) - max(i, quarter)) for i in range(len(ordered))]
    return sum(w * x for w, x in zip(weights, ordered, strict=True)) / sum(weights)


def iqm_interval(values: Sequence[float], level: float = 0.95, draws: int = 2_000) -> tuple[float, float, float]:
    """The interquartile mean and the interval in which it lies when seeds are drawn anew from those there are."""
    draw = random.Random(0)
    means = sorted(iqm(draw.choices(values, k=len(values))) for _ in range(draws))
    edge = int((1 - level) / 2 * draws)
    return iqm(values), means[edge], means[-1 - edge]


class Ratio(NamedTuple):
    median: float
    low: float
    high: float
    pairs: int


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Of ours to theirs, pair by pair: the two of a pair were measured next to each other, so the machine's drift cancels."""
    ratios = [ours / theirs for ours, theirs in pairs]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


class Ticks(NamedTuple):
    """CPU time of the whole machine so far, in ticks."""

    busy: int  # steal included: time that was wanted
    steal: int


def parse_ticks(line: str) -> Ticks:
    """From the first line of /proc/stat: user nice system idle iowait irq softirq steal, then guest, which user holds already."""
    values = [int(x) for x in line.split()[1:9]]
    return Ticks(sum(values) - values[3] - values[4], values[7])


def ticks() -> Ticks:
    """Now; zeros where the machine does not say."""
    try:
        with open("/proc/stat") as file:
            return parse_ticks(file.readline())
    except OSError:
        return Ticks(0, 0)


def steal_share(before: Ticks, after: Ticks) -> float:
    """Share of the wanted CPU time that the hypervisor gave to others."""
    busy = after.busy - before.busy
    return (after.steal - before.steal) / busy if busy > 0 else 0.0
