"""Damage and malice: every change to a checkpoint is refused by name, quickly, and the checkpoint before it is used."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal import checkpoint, store
from shoal.errors import DamagedError, StoreError

STATE, MANIFEST = "state.safetensors", "MANIFEST.json"


def assert_refused(run: Path, file: str, field: str = "") -> None:
    """``step-100`` is damaged in ``file``; ``step-9`` is not."""
    with pytest.raises(DamagedError) as caught:
        store.load(run / "checkpoints" / "step-100")
    said = str(caught.value)
    assert f"step-100/{file}: " in said and field in said and "\n" not in said and len(said) < 600, said
    newest, skipped = store.newest(run)
    assert newest.step == 9 and newest.meta == {"updates": 9}
    assert skipped == [f"skipped damaged step-100: {said}"]


@pytest.mark.parametrize("file", [STATE, MANIFEST])
def test_every_byte_counts(run: Path, file: str):
    """One bit flipped, at every byte of each file in turn."""
    path = run / "checkpoints" / "step-100" / file
    whole = path.read_bytes()
    assert len(whole) > 200
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=file):
            store.load(path.parent)
    assert_refused(run, file)
    path.write_bytes(whole)
    assert store.load(path.parent).step == 100


def reseal(path: Path, change: Callable[[dict], object]) -> None:
    """Change the manifest and seal it again, as someone with an editor and ill will would."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    del manifest["seal"]
    changed = change(manifest)
    (path / MANIFEST).write_bytes(checkpoint._encode(manifest if changed is None else changed))


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(manifest: dict) -> None:
        for key in keys:
            manifest = manifest[key]
        manifest[last] = value

    return change


def drop(*keys):
    *keys, last = keys

    def change(manifest: dict) -> None:
        for key in keys:
            manifest = manifest[key]
        del manifest[last]

    return change


WRONG = {  # field → values that it may not have
    ("format",): (None, "1", 1.0, True, [], {}, -1),
    ("shoal",): (None, 1, [], {}),
    ("step",): (None, "100", 100.0, True, [], -1, 2**64, 101, 9),
    ("meta",): (None, 1, "x", []),
    ("lengths",): (None, 1, "x", []),
    ("lengths", "metrics.jsonl"): (None, "1", 1.5, True, -1, [], 2**70),
    ("lengths", "../escape"): (0,), ("lengths", "/etc/passwd"): (0,), ("lengths", "a/b"): (0,), ("lengths", ""): (0,),
    ("lengths", "a\\b"): (0,), ("lengths", "nul\0"): (0,), ("lengths", ".."): (0,), ("lengths", "line\n"): (0,),
    ("lengths", "x" * 9999): (0,),
    ("files",): (None, 1, "x", [], {}, [STATE]),
    ("files", "../../config.toml"): ({"size": 1, "sha256": "0"},), ("files", "other"): ({"size": 1, "sha256": "0"},),
    ("files", STATE): (None, 1, "x", [], {}, {"size": 1}, {"size": 1, "sha256": "0", "more": 1}),
    ("files", STATE, "size"): (None, "1", 1.5, True, -1, 0, 1, 2**62, 2**63, 10**4000),
    ("files", STATE, "sha256"): (None, 1, "", "0" * 64, [], {}),
}
CASES = [(keys, value) for keys, values in WRONG.items() for value in values]


def test_there_are_many_ways_to_be_wrong():
    assert len(CASES) >= 60


@pytest.mark.parametrize(("keys", "value"), CASES, ids=[f"{'.'.join(k)[:30]}={str(v)[:20]}" for k, v in CASES])
def test_a_sealed_manifest_with_a_wrong_field(run: Path, keys, value):
    reseal(run / "checkpoints" / "step-100", put(*keys, copy.deepcopy(value)))
    # a size or digest of the right kind is caught where it meets the file
    in_state = (keys[-1] == "size" and checkpoint.is_count(value)) or (keys[-1] == "sha256" and isinstance(value, str))
    assert_refused(run, STATE if in_state else MANIFEST, keys[-1] if in_state else keys[0])


@pytest.mark.parametrize("keys", [("format",), ("shoal",), ("step",), ("meta",), ("lengths",), ("files",), ("files", STATE),
                                  ("files", STATE, "size"), ("files", STATE, "sha256")], ids=".".join)
def test_a_sealed_manifest_without_a_field(run: Path, keys):
    reseal(run / "checkpoints" / "step-100", drop(*keys))
    assert_refused(run, MANIFEST, keys[0])


@pytest.mark.parametrize("raw", [
    b"", b"\n", b"null", b"[]", b"3", b'"seal"', b"{}", b'{"seal": 1}', b'{"seal": null}', b"{", b"\xff\xfe", b"\x80", b"NaN",
    b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b'{"seal":' + b"9" * 5000 + b"}", b"\0" * 1000,
    b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x95.",
], ids=lambda raw: repr(raw[:12]))
def test_a_manifest_that_is_something_else(run: Path, raw: bytes):
    (run / "checkpoints" / "step-100" / MANIFEST).write_bytes(raw)
    assert_refused(run, MANIFEST, "seal")


def test_a_manifest_said_twice_or_spaced_out_is_not_ours(run: Path):
    path = run / "checkpoints" / "step-100" / MANIFEST
    whole = path.read_bytes()
    for raw in (b'{"step":100,' + whole[1:], whole.replace(b",", b", "), whole.rstrip(), whole + b" ",
                whole.decode().encode("utf-16")):
        path.write_bytes(raw)
        assert_refused(run, MANIFEST, "seal")


def header(text: str, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + data


def tensor(dtype: str, shape: object, offsets: object) -> str:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


@pytest.mark.parametrize("raw", [
    b"", b"\0" * 7, b"\xff" * 8, (2**62).to_bytes(8, "little") + b"{}", (200_000_000).to_bytes(8, "little") + b"{}",
    header("[]"), header("null"), header('"x"'), header("{"), header('{"a": 1}'), header('{"a": {}}'),
    header(tensor("F32", [1], [0, 4])),
    header(tensor("F32", [1], [0, 4]), b"12345"), header(tensor("F32", [2], [0, 4]), b"1234"),
    header(tensor("F32", [-1], [0, 4]), b"1234"), header(tensor("F32", [1], [4, 0]), b"1234"),
    header(tensor("F32", [2**40, 2**40], [0, 4]), b"1234"), header(tensor("BF16", [2], [0, 4]), b"1234"),
    header(tensor("F99", [2], [0, 4]), b"1234"), header(tensor("object", [1], [0, 4]), b"1234"),
    header(tensor("F32", [1] * 99, [0, 4]), b"1234"), header(tensor("F32", "x", [0, 4]), b"1234"),
    header(tensor("F32", [1], [0, 2**63]), b"1234"), header(tensor("F32", [0, 2**62, 2**62], [0, 0])), header("[" * 50_000),
    b"\x80\x04\x95\x00.", b"cos\nsystem\n(S'true'\ntR.", b"PK\x03\x04" + b"\0" * 60,
], ids=range(28))
def test_a_state_that_is_something_else_under_a_right_checksum(run: Path, raw: bytes):
    path = run / "checkpoints" / "step-100"
    (path / STATE).write_bytes(raw)
    reseal(path, put("files", STATE, {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}))
    assert_refused(run, STATE, "header")


@pytest.mark.parametrize("file", [STATE, MANIFEST])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "longer", "folder", "pipe", "device", "dangling"])
def test_a_file_that_is_not_what_it_was(run: Path, file: str, how: str):
    path = run / "checkpoints" / "step-100" / file
    whole = path.read_bytes()
    path.unlink()
    {"missing": lambda: None, "empty": path.touch, "cut": lambda: path.write_bytes(whole[:-1]),
     "longer": lambda: path.write_bytes(whole + b"\0"),
     "folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/zero"),
     "dangling": lambda: path.symlink_to("nowhere")}[how]()
    assert_refused(run, file)


@pytest.mark.parametrize("file", [STATE, MANIFEST])
def test_absurd_sizes_are_refused_unread(run: Path, file: str):
    os.truncate(run / "checkpoints" / "step-100" / file, 1 << 40)
    assert_refused(run, file, "size")


@pytest.mark.parametrize("files", [(STATE,), (MANIFEST,), (STATE, MANIFEST)], ids=" ".join)
def test_files_swapped_between_checkpoints(run: Path, files, tensors):
    store.save(run, 50, tensors(50), {"updates": 50}, {})
    one, two = run / "checkpoints" / "step-100", run / "checkpoints" / "step-50"
    for file in files:
        data = (one / file).read_bytes()
        (one / file).write_bytes((two / file).read_bytes())
        (two / file).write_bytes(data)
    newest, skipped = store.newest(run)
    assert newest.step == 9
    assert [line.split(":")[0] for line in skipped] == ["skipped damaged step-100", "skipped damaged step-50"]
    assert all(("sha256" if files == (STATE,) else "step") in line for line in skipped)


def test_nothing_left_is_said_and_not_started_afresh(run: Path):
    for step in (0, 9, 100):
        (run / "checkpoints" / f"step-{step}" / MANIFEST).unlink()
    with pytest.raises(StoreError, match="every checkpoint of .* is damaged: .*step-100.*step-9.*step-0"):
        store.newest(run)
    for path in store.found(run):
        path.rename(run / path.name)
    with pytest.raises(StoreError, match="holds no checkpoint"):
        store.newest(run)


def test_a_damaged_best_falls_back_to_the_one_before(run: Path, tensors):
    for step in (9, 100):
        store.save(run, step, tensors(step), {}, {}, name=f"best-{step}")
    (run / "checkpoints" / "best-100" / STATE).unlink()
    best, skipped = store.best(run)
    assert best.step == 9 and "best-100" in skipped[0] and "is missing" in skipped[0]


def test_another_format_is_a_reason_to_stop_not_damage(run: Path):
    reseal(run / "checkpoints" / "step-100", put("format", 2))
    with pytest.raises(StoreError, match="format: 2, written by shoal") as caught:
        store.newest(run)
    assert not isinstance(caught.value, DamagedError)


AUDIT = """
import sys
from pathlib import Path
from shoal import store
from shoal.errors import DamagedError

folder = Path(sys.argv[1])
store.newest(folder)
store.read_config(folder)
seen = []
names = ("pickle.find_class", "exec", "compile", "import", "subprocess.Popen", "os.system", "os.exec",
         "marshal.loads", "ctypes.dlopen")
sys.addaudithook(lambda name, args: seen.append((name, str(args)[:80])) if name in names else None)
for path in sorted(folder.glob("checkpoints/*")):
    try:
        store.load(path)
    except DamagedError as error:
        str(error)
newest, skipped = store.newest(folder)
store.read_config(folder)
quiet = list(seen)
exec("import colorsys")
assert {"exec", "compile", "import"} <= {name for name, _ in seen}, "the hook is deaf"
print(newest.step, len(skipped), quiet)
"""


def test_no_code_is_loaded_while_data_is(run: Path, tensors):
    hostile = (b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x95", header(tensor("BF16", [2], [0, 4]), b"1234"))
    for step, raw in enumerate(hostile, 101):
        path = store.save(run, step, tensors(step), {}, {})
        (path / STATE).write_bytes(raw)
        reseal(path, put("files", STATE, {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}))
    (store.save(run, 104, tensors(104), {}, {}) / MANIFEST).write_bytes(b"\x80\x04\x95.")
    child = subprocess.run([sys.executable, "-c", AUDIT, str(run)], capture_output=True, text=True, timeout=60, check=False,
                           env=os.environ | {"PYTHONPATH": str(Path(store.__file__).parents[1])})
    assert child.returncode == 0, child.stderr
    assert child.stdout == "100 4 []\n"
