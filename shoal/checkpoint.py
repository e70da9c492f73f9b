"""The inside of a checkpoint: a folder of ``state.safetensors`` and ``MANIFEST.json``, and what makes it whole.

The manifest gives size and SHA-256 of the state and seals itself, so that no bit of either can change unseen. Reading
trusts nothing: every field is checked before it is used, and nothing that is read can name code. Where checkpoints lie
and how they replace each other is the store's business. No JAX here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from shoal import disk
from shoal.errors import DamagedError, ReplayError, StoreError

MANIFEST = "MANIFEST.json"
STATE = "state.safetensors"
FORMAT = 1
NAME = re.compile(r"(step|best)-(0|[1-9][0-9]{0,18})(\.old-[0-9a-f]{8})?")  # kind, step, moved aside

ATTACHED = re.compile(r"segments\.json|newest\.rows|[a-z]{1,20}(-(0|[1-9][0-9]{0,18})){3}\.rows")  # of a replay buffer in files

_MAX_TEXT = 1 << 24  # no manifest or config of ours comes near it: refuse before parsing
_DTYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
           "float16", "float32", "float64", "complex64")


Attach = Callable[[Path], dict[str, str]]  # puts more files into a checkpoint's folder; their SHA-256 by name


class Tensors(dict[str, np.ndarray]):
    """The arrays of a checkpoint: they know the file they came from, and which of them were asked for."""

    def __init__(self, file: Path, arrays: Mapping[str, np.ndarray]):
        super().__init__(arrays)
        self.file, self.taken = file, set[str]()

    def __getitem__(self, name: str) -> np.ndarray:
        self.taken.add(name)
        return super().__getitem__(name)

    def __missing__(self, name: str) -> np.ndarray:
        raise StoreError(f"checkpoint has no {name}; it was made by another plan")


class Checkpoint(NamedTuple):
    """One cut of a run."""

    step: int
    tensors: dict[str, np.ndarray]
    meta: dict[str, Any]
    lengths: dict[str, int]  # bytes of each metric file that belong to this cut


def fill(tmp: Path, step: int, tensors: Mapping[str, np.ndarray], meta: Mapping[str, Any], lengths: Mapping[str, int],
         attach_fn: Attach | None = None) -> None:
    """Write a checkpoint's files into the folder ``tmp`` and flush them and it."""
    files = {}
    for name, digest in (attach_fn(tmp) if attach_fn is not None else {}).items():
        files[name] = {"size": (tmp / name).stat().st_size, "sha256": digest}
    if tensors or step:
        raw = safetensors.numpy.save({name: _array(name, value) for name, value in tensors.items()})
        disk.write(tmp / STATE, raw)
        files[STATE] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest = {"format": FORMAT, "shoal": str(meta.get("shoal") or _version()), "step": step, "files": files,
                "meta": dict(meta), "lengths": dict(lengths)}
    try:
        text = _encode(json.loads(json.dumps(manifest)))  # as it will be read: keys that were numbers sort as text
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"meta of step {step}: expected JSON data: {error}") from None
    if len(text) > _MAX_TEXT:
        raise StoreError(f"meta of step {step}: {len(text)} bytes; expected at most {_MAX_TEXT}: save arrays as tensors")
    disk.write(tmp / MANIFEST, text)
    disk.sync(tmp)


def load(path: Path) -> Checkpoint:
    """The checkpoint at ``path``, verified to the last byte; any damage is a DamagedError that names file and field."""
    path = Path(path)
    if path.is_symlink():
        raise DamagedError(f"{path}: is a link; expected the folder itself")
    manifest = _manifest(path)
    tensors: dict[str, np.ndarray] = {}
    for name, entry in manifest["files"].items():
        if name != STATE:
            _check_attached(path / name, entry)
            continue
        raw = contents(path / name, entry["size"])
        _same(path / name, "sha256", entry["sha256"], hashlib.sha256(raw).hexdigest())
        try:
            tensors = Tensors(path / name, dict(sorted(safetensors.numpy.load(raw).items())))
            header = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")].decode())
            odd = [key for key, array in tensors.items() if array.dtype.name not in _DTYPES]
            if odd or "__metadata__" in header:
                raise ValueError(f"unexpected {odd[0] if odd else '__metadata__'}")
        except (safetensors.SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise DamagedError(f"{path / name}: header: not tensors that shoal saves: {_line(error)}") from None
    return Checkpoint(manifest["step"], tensors, manifest["meta"], manifest["lengths"])


def check_record(path: Path, point: Checkpoint, counters: Sequence[str], plan: Mapping[str, Any]) -> None:
    """Whether a run can go on from ``point``: its record must be one that a run writes, and of this plan.

    A record that is not whole is damage; one of another plan is a reason to stop, whatever older checkpoints hold.
    """
    def expect(good: bool, field: str, what: str) -> None:
        if not good:
            raise DamagedError(f"{path / MANIFEST}: meta.{field}: expected {what}")

    meta = point.meta
    if meta.get("fresh") is True and not point.tensors:
        return
    expect("fresh" not in meta, "fresh", "no such mark on a run that has begun")
    for field in ("counters", "window", "device", "plan"):
        expect(isinstance(meta.get(field, {} if field == "plan" else None), dict), field, "an object")
    for name in counters:
        count = meta["counters"].get(name)
        expect(type(count) is int and -1 <= count < 1 << 63, f"counters.{name}", "a number of at least -1")
    expect(meta["counters"].get("step", point.step) == point.step, "counters.step", f"{point.step}, as the folder says")
    for field in ("mean_return", "best", "eval_return"):
        expect(_is_number(meta.get(field)), field, "a number as text")
    used = meta.get("used_s")
    expect(isinstance(used, int | float) and not isinstance(used, bool) and 0 <= used < math.inf, "used_s", "a number of seconds")
    for field, value in meta["device"].items():
        expect(isinstance(value, str) and len(value) < 200, f"device.{field[:80]}", "text")
    if "plan" in meta:  # absent where an earlier version wrote it
        _same_plan(path / MANIFEST, meta["plan"], plan)


def _same_plan(file: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    # a field that was not written did not exist then, but an option that was not written was not given
    added = [field for field in now if field.startswith("env_options.") and field not in was]
    for field in (*was, *added):
        if was.get(field) != now.get(field):
            change = f"{field[:80]} was {str(was.get(field))[:60]} and is {str(now.get(field))[:60]} now"
            raise StoreError(f"{file}: plan: {change}; a run goes on with the plan it began with: put it back, or train anew")


def _is_number(text: Any) -> bool:
    try:
        return isinstance(text, str) and len(text) < 100 and float(text) is not None
    except ValueError:
        return False


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Whatever is wrong with what was read from ``file`` names it."""
    try:
        yield
    except (StoreError, ReplayError) as error:
        raise type(error)(f"{file}: {error}") from error
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError) as error:
        raise StoreError(f"{file}: does not fit this plan: {type(error).__name__}: {_line(error)}") from error


@contextlib.contextmanager
def consuming(tensors: dict[str, np.ndarray]) -> Iterator[None]:
    """All of a checkpoint's tensors are taken inside, and fit."""
    if not isinstance(tensors, Tensors):
        yield
        return
    with naming(tensors.file):
        yield
        left = sorted(tensors.keys() - tensors.taken)
        if left:
            raise StoreError(f"holds {left[0][:80]}, which this plan has no place for")


def _line(error: Exception) -> str:
    """What an error of someone else says, in one short line."""
    return "".join(c for c in " ".join(str(error).split()) if c.isprintable())[:120]


def sha256(tensors: Mapping[str, np.ndarray]) -> str:
    """A digest of names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = _array(name, tensors[name])
        digest.update(json.dumps([name, array.dtype.name, list(array.shape)]).encode() + b"\n")
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _array(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value, order="C")  # safetensors reads the memory as it lies
    if array.dtype.name not in _DTYPES or not array.dtype.isnative:
        raise StoreError(f"tensor {name!r}: dtype {array.dtype} cannot be saved; expected one of {', '.join(_DTYPES)}")
    if name == "__metadata__":
        raise StoreError(f"tensor {name!r}: the file format keeps this name for itself")
    return array


def _encode(manifest: dict[str, Any]) -> bytes:
    """The only bytes that a manifest may have: sorted, compact, and sealed with a digest of itself."""
    encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
    seal = hashlib.sha256(encode(manifest).encode()).hexdigest()
    return encode(manifest | {"seal": seal}).encode() + b"\n"


@functools.cache
def _version() -> str:
    try:
        return importlib.metadata.version("shoal")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint at ``path``, its seal and structure checked."""
    file = path / MANIFEST
    raw = contents(file)
    try:
        manifest = json.loads(raw.decode("ascii"))  # without a guess at the encoding
        seal = manifest.pop("seal")
        same = _encode(manifest) == raw
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        raise DamagedError(f"{file}: seal: expected a sealed JSON object") from None
    if not same:
        raise DamagedError(f"{file}: seal: {str(seal)[:80]!r} does not match the contents")
    _check_manifest(file, manifest)
    match = NAME.fullmatch(path.name)
    if match:
        _same(file, "step", int(match[2]), manifest["step"])
    return manifest


def _check_manifest(file: Path, manifest: dict[str, Any]) -> None:
    def expect(good: bool, field: str, what: str) -> None:
        if not good:
            raise DamagedError(f"{file}: {field}: expected {what}")

    version = manifest.get("format")
    expect(is_count(version), "format", "a number")
    if version != FORMAT:
        writer = str(manifest.get("shoal"))[:80]
        raise StoreError(f"{file}: format: {version}, written by shoal {writer}; this one reads format {FORMAT}")
    expect(isinstance(manifest.get("shoal"), str), "shoal", "the version that wrote it")
    expect(is_count(manifest.get("step")), "step", "a number of at least 0")
    for field in ("meta", "files", "lengths"):
        expect(isinstance(manifest.get(field), dict), field, "an object")
    files = manifest["files"]
    expect(STATE in files or (not files and manifest["step"] == 0), "files", repr(STATE))
    expect(all(name == STATE or ATTACHED.fullmatch(name) for name in files), "files", f"{STATE!r} and files of a replay buffer")
    for name, entry in files.items():
        expect(isinstance(entry, dict) and set(entry) == {"size", "sha256"}, f"files[{name!r}]", "size and sha256")
        expect(is_count(entry["size"]), f"files[{name!r}].size", "a number of at least 0")
        expect(isinstance(entry["sha256"], str), f"files[{name!r}].sha256", "a digest")
    for name, length in manifest["lengths"].items():
        expect(is_name(name) and is_count(length), f"lengths[{name[:80]!r}]", "a file of the run folder and its bytes")


def _check_attached(file: Path, entry: Mapping[str, Any]) -> None:
    """Whether a file that is not read into memory is as it was written."""
    try:
        if file.is_symlink():
            raise DamagedError(f"{file}: is a link; expected the file itself")
        with disk.open_regular(file) as handle:
            _same(file, "size", entry["size"], os.fstat(handle.fileno()).st_size)
            _same(file, "sha256", entry["sha256"], hashlib.file_digest(handle, "sha256").hexdigest())
    except FileNotFoundError:
        raise DamagedError(f"{file}: is missing") from None
    except OSError as error:
        raise DamagedError(f"{file}: cannot be read: {disk.cause(error)}") from error


def attached(point: Checkpoint) -> Path:
    """The folder that a loaded checkpoint's other files lie in."""
    assert isinstance(point.tensors, Tensors)
    return point.tensors.file.parent


def link_attached(point: Checkpoint, folder: Path) -> dict[str, str]:
    """Put a loaded checkpoint's other files into ``folder``, too."""
    digests = {}
    for name, entry in _manifest(attached(point))["files"].items():
        if name != STATE:
            disk.link(attached(point) / name, folder / name)
            digests[name] = entry["sha256"]
    return digests


def intact(path: Path) -> bool:
    """Whether the checkpoint passes its checksums, found out without holding it in memory."""
    try:
        for name, entry in _manifest(path)["files"].items():
            if (path / name).is_symlink():
                return False
            with disk.open_regular(path / name) as file:
                _same(path / name, "sha256", entry["sha256"], hashlib.file_digest(file, "sha256").hexdigest())
    except (StoreError, OSError):
        return False
    return True


def contents(file: Path, size: int | None = None, *, most: int = _MAX_TEXT, follow: bool = False) -> bytes:
    """The bytes of a file of exactly ``size`` or, without one, of a text of at most so many. Links are followed where told to."""
    try:
        if not follow and file.is_symlink():
            raise DamagedError(f"{file}: is a link; expected the file itself")
        with disk.open_regular(file) as handle:
            actual = os.fstat(handle.fileno()).st_size
            if size is None and actual > most:
                raise DamagedError(f"{file}: size: {actual} bytes, larger than the {most} expected at most")
            _same(file, "size", actual if size is None else size, actual)
            return handle.read()
    except FileNotFoundError:
        raise DamagedError(f"{file}: is missing") from None
    except OSError as error:
        raise DamagedError(f"{file}: cannot be read: {disk.cause(error)}") from error
    except MemoryError:
        raise DamagedError(f"{file}: size: more than fits in memory") from None


def _same(file: Path, field: str, expected: int | str, actual: int | str) -> None:
    if expected != actual:
        raise DamagedError(f"{file}: {field}: expected {str(expected)[:80]}, found {actual}")


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def is_name(name: Any) -> bool:
    """Whether it names a metric file: nothing else in a run folder is ever cut to a length."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,93}\.(jsonl|csv)", name) is not None


