"""The kernels compiled by numba: the same functions, with draws that wrap by themselves. Needs the ``tabular`` extra.

Compiled code is kept between runs in the user's own cache folder, as XLA's is, apart for every kind of learning; a change of the kernels
or of numba starts anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np

from shoal import code_cache
from shoal.errors import MissingError
from shoal.tabular import bound, draws, duel, elementary, hot, kernels, memory, rule
from shoal.tabular.bound import MODULES, copies
from shoal.tabular.rule import Kind

_STEP, _FIRST, _SECOND, _STARTS = (np.uint64(x) for x in (draws.STEP, draws.FIRST, draws.SECOND, draws.STARTS))
_ENTRIES = ("walk", "walk_alone", "duel", "duel_alone", "act", "learn", "turn")  # what is called from outside


def draw(key, count):
    x = np.uint64(key) + np.uint64(count) * _STEP
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def unit(bits):
    return np.float64(np.int64(bits >> np.uint64(11))) * 2.0**-53


def half(bits):
    return np.float64(np.int64(bits >> np.uint64(32))) * 2.0**-32


def pick(bits, num):
    return np.int64((bits & np.uint64(0xFFFFFFFF)) * np.uint64(num) >> np.uint64(32))


def share(bits, num):
    return np.int64((bits >> np.uint64(32)) * np.uint64(num) >> np.uint64(32))


def coin(bits):
    return np.int64(bits & np.uint64(1))


def other(key):
    return np.uint64(key) ^ _STARTS


def installed() -> bool:
    """Whether numba is there; it is not imported for that."""
    return importlib.util.find_spec("numba") is not None


def check_installed() -> None:
    if not installed():
        raise MissingError("table = 'compiled' needs numba: pip install 'shoal[tabular]', or use --table numpy")


@functools.cache
def load(kind: Kind) -> types.SimpleNamespace:
    """The kernels of a kind, each compiled when it is first called."""
    check_installed()
    import numba

    settings: Any = numba.config
    own = {fn.__name__: fn for fn in (draw, unit, half, pick, share, coin, other)}
    space = copies((*MODULES, hot), kind, **own, **{name: globals()[name] for name in ("np", "_STEP", "_FIRST", "_SECOND", "_STARTS")})
    folder, before = _cache(numba.__version__, kind), settings.CACHE_DIR
    try:
        if folder is not None:
            settings.CACHE_DIR = str(folder)
        for name, fn in list(space.items()):
            if isinstance(fn, types.FunctionType):
                space[name] = numba.njit(fn, cache=folder is not None and name in _ENTRIES, error_model="numpy",
                                         forceinline=name not in _ENTRIES)
                if folder is not None and name in _ENTRIES:
                    _forgive(space[name]._cache)
    finally:
        settings.CACHE_DIR = before
    return types.SimpleNamespace(**space)


def _forgive(cache: Any) -> None:
    """What cannot be read back, for it is torn, is compiled again; what cannot be written, on a full disk, is not kept."""
    load, save = cache.load_overload, cache.save_overload

    def load_overload(*args: Any) -> Any:
        try:
            return load(*args)
        except Exception:  # a damaged pickle may raise anything
            with contextlib.suppress(Exception):
                cache.flush()
            return None

    def save_overload(*args: Any) -> None:
        with contextlib.suppress(Exception):
            save(*args)

    cache.load_overload, cache.save_overload = load_overload, save_overload


def _cache(version: str, kind: Kind) -> Path | None:
    """Where compiled code is kept, in a folder of its own for these sources and this kind."""
    base = code_cache.folder("numba")
    if base is None:
        return None
    files = [Path(str(module.__file__)) for module in (rule, bound, draws, elementary, memory, kernels, duel, hot)] + [Path(__file__)]
    sources = b"".join(path.read_bytes() for path in files)
    folder = base / hashlib.sha256(sources + f"{version} {tuple(kind)}".encode()).hexdigest()[:16]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder
