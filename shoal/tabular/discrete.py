"""From observations to rows of a table, and from a table's actions back. Plain Python and NumPy: an index is a Python integer, exact
however many rows there would be.

Every space is read as digits, each with a base of its own; the first counts most, as in an array in C order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ConfigError, EnvError
from shoal.specs import MASK, STATE, Action, Box, Discrete, Group, MultiBinary, MultiDiscrete, Space

Bound = float | tuple[float, ...] | None  # None, or (): the space's own

ENTRY_BYTES = 16  # of a dense table: a value, float64, and a counter, int64
MOST_BATCHED = 2**63  # rows that int64 can number
UNBOUNDED = float(np.finfo(np.float32).max)  # what some environments say for infinity


@dataclass(frozen=True)
class Rows:
    """A space as the rows of a table."""

    num: int
    index: Callable[[Any], int]  # the row of one observation; EnvError where the space does not have it
    index_batch: Callable[[Any], np.ndarray]  # observations [B, ...] → int64 [B]; only where num < 2**63
    mask: Callable[[Any], Any]  # the action mask that an observation carries, as it is there; None where the space has none


@dataclass(frozen=True)
class Choices:
    """A space of actions as one choice."""

    num: int
    action: Callable[[int], Any]  # the environment's action behind an index
    legal: Callable[[Any], np.ndarray]  # a mask as observations carry it, [sum of choices] → bool [num]: what it allows altogether


class Digits(NamedTuple):
    """How a space that is no group is read."""

    bases: tuple[int, ...]
    read: Callable[[Any], list[int]]  # one observation
    read_batch: Callable[[Any], np.ndarray]  # [B, ...] → int64 [B, digits]


class Binning(NamedTuple):
    """What a user says of the continuous numbers in a space: one for all, or one for each, in order."""

    bins: int | tuple[int, ...]
    low: Bound
    high: Bound


def rows_of(space: Space, bins: int | tuple[int, ...] = 0, low: Bound = None, high: Bound = None) -> Rows:
    """The rows that observations of ``space`` fall in.

    Numbers of a Box are put in ``bins`` of equal width between ``low`` and ``high``, or the box's own bounds; beyond them, in the
    outermost. A number on an edge belongs to the bin above it, and ``high`` to the last. Each of the three is one for all, or
    one for each number of all boxes, in order. A group is the product of its members, without the action mask and the global state.
    """
    if isinstance(space, Discrete):
        num, digits = space.num, _choices("observation", (space.num,), scalar=True)
        return Rows(num, lambda obs: _digit("observation", obs, num), lambda obs: digits.read_batch(obs)[:, 0], lambda obs: None)
    leaves = list(_leaves(space, ()))
    binnings = iter(_shared_out(Binning(bins or 0, _kept(low), _kept(high)), [leaf for _, leaf in leaves if isinstance(leaf, Box)]))
    parts = [(path, _digits(_label(path), leaf, next(binnings) if isinstance(leaf, Box) else None)) for path, leaf in leaves]
    num = math.prod(base for _, digits in parts for base in digits.bases)
    masked = isinstance(space, Group) and MASK in space
    return Rows(num, _index_all(parts), _index_batch(num, parts), lambda obs: obs[MASK] if masked else None)


def actions_of(space: Action) -> Choices:
    """The choices that a space of actions is; several at once are one, in C order."""
    if isinstance(space, Discrete):
        return Choices(space.num, lambda index: _in_range(index, space.num), lambda mask: np.asarray(mask, bool))
    if not isinstance(space, MultiDiscrete | MultiBinary):
        raise ConfigError(f"actions are {_short(space)}: a table needs choices to count; for continuous actions use sac, td3, ddpg or ppo")
    nums = _bases(space)
    num = math.prod(nums)

    def action(index: int) -> np.ndarray:
        digits, rest = np.empty(len(nums), space.dtype), _in_range(index, num)
        for i in range(len(nums) - 1, -1, -1):
            rest, digits[i] = divmod(rest, nums[i])
        return digits

    def legal(mask: Any) -> np.ndarray:
        joint, place = np.ones(1, bool), 0
        for n in nums:
            joint = (joint[:, None] & np.asarray(mask, bool)[place:place + n]).reshape(-1)
            place += n
        return joint

    return Choices(num, action, legal)


def fits(num_rows: int, num_actions: int, limit_bytes: int) -> None:
    """Refuse a dense table, of values and counters, that does not fit in ``limit_bytes``."""
    need = num_rows * num_actions * ENTRY_BYTES
    if need > limit_bytes:
        raise ConfigError(f"a table of {in_words(num_rows)} rows and {in_words(num_actions)} actions needs {_memory(need)}, and "
                          f"{_memory(limit_bytes)} are free: give --sparse, which keeps only rows that were visited, or fewer --bins")


# reading -------------------------------------------------------------------------------------------------------------


def _index_all(parts: list[tuple[tuple[str, ...], Digits]]) -> Callable[[Any], int]:
    def index(obs: Any) -> int:
        row = 0
        for path, digits in parts:
            for digit, base in zip(digits.read(_at(obs, path)), digits.bases, strict=True):
                row = row * base + digit
        return row

    return index


def _index_batch(num: int, parts: list[tuple[tuple[str, ...], Digits]]) -> Callable[[Any], np.ndarray]:
    def index_batch(obs: Any) -> np.ndarray:
        if num >= MOST_BATCHED:
            raise ConfigError(f"{in_words(num)} rows are more than int64 can number: index observations one by one")
        columns = [digits.read_batch(_at(obs, path)) for path, digits in parts]
        rows = np.zeros(len(columns[0]), np.int64)
        for (_, digits), column in zip(parts, columns, strict=True):
            for i, base in enumerate(digits.bases):
                rows = rows * base + column[:, i]
        return rows

    return index_batch


def _at(obs: Any, path: tuple[str, ...]) -> Any:
    try:
        for name in path:
            obs = obs[name]
    except (KeyError, TypeError, IndexError):
        raise EnvError(f"{_label(path)} is not in what was observed: {_short(obs)}") from None
    return obs


def _leaves(space: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The spaces that a group is made of, however deep, each with the names that lead to it; any other space itself."""
    if not isinstance(space, Group):
        yield path, space
        return
    members = [(name, inner) for name, inner in space.items if name not in (MASK, STATE)]
    if not members:
        raise ConfigError(f"{_label(path)} is a group without members to tell rows apart by: expected some beside {MASK!r} and {STATE!r}")
    for name, inner in members:
        yield from _leaves(inner, (*path, name))


def _digits(label: str, space: Any, binning: Binning | None) -> Digits:
    if binning is not None:
        return _binned(label, space, *_edges(label, space, binning))
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return _choices(label, _bases(space), scalar=isinstance(space, Discrete))
    raise ConfigError(f"{label} is {_short(space)}: a table needs Discrete, MultiDiscrete, MultiBinary, a Box with --bins, "
                      "or a group of them")


def _bases(space: Discrete | MultiDiscrete | MultiBinary) -> tuple[int, ...]:
    if isinstance(space, MultiDiscrete):
        return space.nums
    return (space.num,) if isinstance(space, Discrete) else (2,) * space.num


def _choices(label: str, bases: tuple[int, ...], scalar: bool) -> Digits:
    """Whole numbers, each from 0 to below its base; a ``scalar`` is one without an axis."""

    def read(obs: Any) -> list[int]:
        values = obs.tolist() if hasattr(obs, "tolist") else obs
        if scalar:
            return [_digit(label, values, bases[0])]
        if not hasattr(values, "__len__") or len(values) != len(bases):
            raise EnvError(f"{label} is {_short(obs)}: expected {len(bases)} whole numbers")
        return [_digit(label, value, base) for value, base in zip(values, bases, strict=True)]

    def read_batch(obs: Any) -> np.ndarray:
        values = _shaped(label, obs, () if scalar else (len(bases),), batched=True).reshape(-1, len(bases))
        with np.errstate(invalid="ignore"):  # what is no int64 does not equal what becomes of it
            whole = values.astype(np.int64)
        wrong = (whole < 0) | (whole >= bases) | (whole != values)
        if wrong.any():
            place = tuple(np.argwhere(wrong)[0])
            raise _stranger(label, values[place], bases[place[-1]])
        return whole

    return Digits(bases, read, read_batch)


def _digit(label: str, value: Any, base: int) -> int:
    try:
        digit = int(value)
    except (TypeError, ValueError, OverflowError):
        digit = -1
    if not 0 <= digit < base or digit != value:
        raise _stranger(label, value, base)
    return digit


def _binned(label: str, space: Box, bins: tuple[int, ...], edges: list[list[float]]) -> Digits:
    """Numbers in bins; ``edges`` are those between them, so that what lies beyond the bounds falls in the outermost."""
    dtype = space.dtype if np.dtype(space.dtype).kind == "f" else "float64"

    def read(obs: Any) -> list[int]:
        values = _shaped(label, obs, space.shape).astype(dtype).reshape(-1).tolist()
        for value in values:
            if value != value:
                raise _not_a_number(label)
        return [bisect_right(between, value) for between, value in zip(edges, values, strict=True)]

    def read_batch(obs: Any) -> np.ndarray:
        values = _shaped(label, obs, space.shape, batched=True).astype(dtype).reshape(-1, len(bins)).astype(np.float64)
        if np.isnan(values).any():
            raise _not_a_number(label)
        return np.stack([np.searchsorted(between, values[:, i], side="right") for i, between in enumerate(edges)], axis=1)

    return Digits(bins, read, read_batch)


def _shaped(label: str, obs: Any, shape: tuple[int, ...], batched: bool = False) -> np.ndarray:
    values = np.asarray(obs)
    if values.dtype.kind not in "biuf" or values.shape[batched:] != shape or values.ndim != len(shape) + batched:
        expected = list(shape) if not batched else ["B", *shape]
        raise EnvError(f"{label} has shape {list(values.shape)} and dtype {values.dtype}: expected numbers in the shape {expected}")
    return values


# bins ----------------------------------------------------------------------------------------------------------------


def _kept(bound: Bound) -> Bound:
    return None if bound == () else bound


def _shared_out(binning: Binning, boxes: list[Box]) -> list[Binning]:
    """What was said of all continuous numbers, for each box its own."""
    sizes = [box.size for box in boxes]
    for name, given in zip(Binning._fields, binning, strict=True):
        if isinstance(given, tuple) and len(given) != sum(sizes):
            raise ConfigError(f"{name} = {given}: expected one number, or {sum(sizes)}, one for each continuous number that is observed")
    shares, place = [], 0
    for size in sizes:
        own: list[Any] = [given[place:place + size] if isinstance(given, tuple) else given for given in binning]
        shares.append(Binning(*own))
        place += size
    return shares


def _edges(label: str, space: Box, binning: Binning) -> tuple[tuple[int, ...], list[list[float]]]:
    """Bins of every number, and the edges between them: rounded as the box's numbers are, so that these can meet them exactly."""
    low, high = _bounds(label, space, binning)
    bins = binning.bins if isinstance(binning.bins, tuple) else (binning.bins,) * space.size
    for num in bins:
        if isinstance(num, bool) or not isinstance(num, int) or num < 1:
            raise ConfigError(f"{label} is {_short(space)} and bins = {binning.bins}: give --bins, how many parts each number is cut into, "
                              "one for all or one for each")
    edges = [lo + (hi - lo) * (np.arange(1, num) / num) for lo, hi, num in zip(low, high, bins, strict=True)]
    if np.dtype(space.dtype).kind == "f":
        edges = [between.astype(space.dtype).astype(np.float64) for between in edges]
    return bins, [between.tolist() for between in edges]


def _bounds(label: str, space: Box, binning: Binning) -> tuple[np.ndarray, np.ndarray]:
    """float64 [size] each: the bounds that were given, and the box's own where none were."""
    low, high = ends = [np.broadcast_to(np.asarray(own if given is None else given, np.float64), (space.size,))
                        for own, given in ((space.low, binning.low), (space.high, binning.high))]
    if not (np.abs(ends) < UNBOUNDED).all():  # NaN included
        place = int(np.argmin((np.abs(ends) < UNBOUNDED).all(0)))
        raise ConfigError(f"{label} is {_short(space)}, and number {place} of it has no bounds: give --low and --high, one number for all "
                          f"or {space.size}, beside --bins")
    if (low > high).any() or ((low == high).any() and (binning.low, binning.high) != (None, None)):
        place = int(np.argmax(low >= high))
        raise ConfigError(f"low = {low[place]:g} and high = {high[place]:g} for number {place} of {label}: expected low below high")
    return low, high


# words ---------------------------------------------------------------------------------------------------------------


def in_words(num: int) -> str:
    """A count, however large: ``19,683``, or ``about 10^242``."""
    return f"{num:,}" if num < 10**12 else f"about 10^{math.log10(num):.0f}"


def _memory(num_bytes: int) -> str:
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        whole = num_bytes >> power
        if whole:
            return f"{in_words(whole) if whole >= 1000 else f'{num_bytes / 2**power:.1f}'} {unit}"
    return f"{num_bytes} bytes"


def _label(path: tuple[str, ...]) -> str:
    return "observation" + "".join(f"[{name!r}]" for name in path)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:80]}…"


def _in_range(index: int, num: int) -> int:
    if not 0 <= index < num:
        raise ConfigError(f"action = {index}: expected a number from 0 to {num - 1}")
    return index


def _stranger(label: str, value: Any, num: int) -> EnvError:
    return EnvError(f"{label} is {_short(value)}: expected a whole number from 0 to {num - 1}, for {num} rows")


def _not_a_number(label: str) -> EnvError:
    return EnvError(f"{label} has a number that is NaN, which falls in no bin")
