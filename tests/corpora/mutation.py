"""What can be done to a checkpoint, by name: the verbs of the corpus. Each gets the run folder, its case and one value."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from shoal import checkpoint
from shoal.toml import dumps_toml

STATE, MANIFEST = checkpoint.STATE, checkpoint.MANIFEST
OLDER, NEWEST = "step-64", "step-128"
Case = dict[str, Any]


def newest(run: Path) -> Path:
    return run / "checkpoints" / NEWEST


def place(size: int, at: int | float) -> int:
    return int(size * at) if isinstance(at, float) else at % size if at < 0 else at


def put(data: Any, keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        data = data[key]
    data[keys[-1]] = value


def drop(data: Any, keys: list[str]) -> None:
    for key in keys[:-1]:
        data = data[key]
    del data[keys[-1]]


def reseal(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and seal it again."""
    path = newest(run) / MANIFEST
    manifest = json.loads(path.read_bytes())
    del manifest["seal"]
    change(manifest)
    path.write_bytes(checkpoint._encode(manifest))


def restate(run: Path, raw: bytes) -> None:
    """Another state, under a right checksum."""
    (newest(run) / STATE).write_bytes(raw)
    entry = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    reseal(run, lambda manifest: put(manifest, ["files", STATE], entry))


# files ---------------------------------------------------------------------------------------------------------------


def change_bytes(run: Path, case: Case, value: Any) -> None:
    path = newest(run) / case["file"] if case["file"] != "config.toml" else run / "config.toml"
    raw = path.read_bytes()
    if case["do"] == "cut":
        raw = raw[:place(len(raw), value)]
    elif case["do"] == "flip":
        at = place(len(raw), value)
        raw = raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1:]
    elif case["do"] == "append":
        raw += value.encode()
    elif case["do"] == "encode":
        raw = raw.decode().encode(value)
    elif case["do"] == "respace":
        raw = json.dumps(json.loads(raw), sort_keys=True).encode() + b"\n"
    else:
        raw = value.encode() * (1_000_000 // len(value) if case["do"] == "fill" else 1)
    path.write_bytes(raw)


def replace_file(run: Path, case: Case, value: Any) -> None:
    path = newest(run) / case["file"]
    raw = path.read_bytes()
    path.unlink()
    if case["do"] == "folder":
        path.mkdir()
    elif case["do"] == "pipe":
        os.mkfifo(path)
    elif case["do"] == "link out":
        (run.parent / "outside").write_bytes(raw)
        path.symlink_to(run.parent / "outside")
    elif case["do"] == "link":
        path.symlink_to(value)
    elif case["do"] == "forbid":
        path.write_bytes(raw)
        path.chmod(0)
    elif case["do"] == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)


def swap(run: Path, case: Case, value: Any) -> None:
    one, two = newest(run) / MANIFEST, newest(run) / STATE
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def take(run: Path, case: Case, value: Any) -> None:
    """Files of another checkpoint, the folder ``value``."""
    for name in (MANIFEST, STATE) if case["do"] == "take all older" else (case["file"],):
        (newest(run) / name).write_bytes((value / name).read_bytes())


def change_folder(run: Path, case: Case, value: Any) -> None:
    path = newest(run)
    if case["do"] == "rename checkpoint":
        path.rename(path.parent / value)
    elif case["do"] == "forbid checkpoints":
        path.parent.chmod(0)
    elif case["do"] == "link checkpoint":
        path.rename(run.parent / "moved")
        path.symlink_to(run.parent / "moved")
    else:
        shutil.rmtree(path)
        if case["do"] == "empty checkpoint":
            path.mkdir()
        elif case["do"] == "checkpoint as file":
            path.write_bytes(b"")


def change_metrics(run: Path, case: Case, value: Any) -> None:
    path = run / "metrics.jsonl"
    raw = path.read_bytes()
    path.unlink()
    if value == "link":
        (run.parent / "precious").write_bytes(raw + b"more\n")
        path.symlink_to(run.parent / "precious")
    elif value == "folder":
        path.mkdir()
    elif value != "gone":
        path.write_bytes(raw[:-1] if value == "short" else b"")


# what is in them -----------------------------------------------------------------------------------------------------


def set_field(run: Path, case: Case, value: Any) -> None:
    reseal(run, lambda manifest: put(manifest, case["key"], json.loads(value)))


def drop_field(run: Path, case: Case, value: Any) -> None:
    reseal(run, lambda manifest: drop(manifest, value))


def write_raw(run: Path, case: Case, value: Any) -> None:
    restate(run, bytes.fromhex(value))


def change_header(run: Path, case: Case, value: Any) -> None:
    raw = (newest(run) / STATE).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    if case["do"] == "header":
        name = next(name for name in sorted(header) if name.startswith(case["tensor"]))
        put(header, [name, *case["key"]], json.loads(value))
    else:
        header["__metadata__" if case["do"] == "metadata" else "more"] = json.loads(value)
    text = json.dumps(header).encode()
    restate(run, len(text).to_bytes(8, "little") + text + data)


def change_tensors(run: Path, case: Case, value: Any) -> None:
    tensors = safetensors.numpy.load((newest(run) / STATE).read_bytes())
    start = case.get("tensor", value)
    # of the arrays whose names begin so, the first with anything in it
    name = next((n for n in sorted(tensors) if n.startswith(start) and tensors[n].size), start)
    if case["do"] == "lose":
        del tensors[name]
    elif case["do"] == "rename":
        tensors[f"{name}x"] = tensors.pop(name)
    elif case["do"] == "add":
        tensors[value] = np.zeros(3, np.float32)
    elif case["do"] == "retype":
        tensors[name] = tensors[name].astype(value)
    elif case["do"] == "reshape":
        tensors[name] = np.zeros(value, tensors[name].dtype)
    elif case["do"] == "fill":
        tensors[name] = np.full_like(tensors[name], value)
    restate(run, safetensors.numpy.save(tensors))


def change_config(run: Path, case: Case, value: Any) -> None:
    path = run / "config.toml"
    if case["do"] == "remove":
        path.unlink()
        return
    data = tomllib.loads(path.read_text())
    put(data, case["key"], json.loads(value))
    path.write_text(dumps_toml(data))


VERBS: dict[str, dict[str, Callable[[Path, Case, Any], None]]] = {
    "files": {**dict.fromkeys(("cut", "flip", "append", "write", "fill", "encode", "respace"), change_bytes),
              **dict.fromkeys(("remove", "folder", "pipe", "link out", "link", "forbid", "sparse"), replace_file),
              **dict.fromkeys(("take older", "take all older", "take other"), take),
              **dict.fromkeys(("rename checkpoint", "forbid checkpoints", "link checkpoint", "empty checkpoint",
                               "checkpoint as file", "no checkpoint"), change_folder),
              "swap": swap, "metrics": change_metrics},
    "manifest": {"set": set_field, "drop": drop_field},
    "state": {"raw": write_raw, **dict.fromkeys(("header", "metadata", "entry"), change_header),
              **dict.fromkeys(("lose", "add", "rename", "retype", "reshape", "fill"), change_tensors)},
    "config": {"set": change_config, "remove": change_config, "write": change_bytes},
}
