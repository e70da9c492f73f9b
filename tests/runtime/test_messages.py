"""What comes through a worker's socket is data: malformed, it is refused, and costs a worker its life and the run nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import fault_page
import numpy as np
import pytest

from shoal.runtime import wire
from shoal.runtime.wire import Garbled, Layout, Line, Pages

LINES = [b"\x80\x04\x95.", b"cos\nsystem", b"{", b"", b"[]", b"7", b'"make"', b"null", b"[" * 5000, b"\xff\xfe{}", b'{"is": }',
         b"__import__('os')", b'{"a": 1} {"b": 2}']
LEAVES = [[["O", [1]]], [["object", [1]]], [["float32", [-1]]], [["float99", [1]]], [["float32"]], "float32", [["float32", "x"]], None, 7,
          [["float32", [1e400]]], [["V8,O", [1]]], [["__import__('os')", [1]]]]
MESSAGES = [{}, {"is": "make"}, {"is": "import"}, {"is": ["chunk"]}, {"is": "chunk"}, {"is": "layout", "leaves": "float32"},
            {"is": "ready", "notes": [], "mode": 3}, {"is": "error", "kind": "x"}, {"is": "scores", "first": "0", "scores": []},
            {"is": "chunk", "lane": 99, "seq": 0, "version": 0, "at": 0, "layout": 0},
            {"is": "chunk", "lane": 0, "seq": 0, "version": 0, "at": -4096, "layout": 0},
            {"is": "chunk", "lane": 0, "seq": 0, "version": 0, "at": 0, "layout": 12}]


@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line[:12]))
def test_a_line_that_is_no_message_is_refused(line):
    ours, theirs = socket.socketpair()
    reader = Line(ours)
    theirs.sendall(line + b"\n")
    with pytest.raises(Garbled, match="a line that is"):
        reader.receive(1.0)
    reader.close()
    theirs.close()


@pytest.mark.parametrize("leaves", LEAVES, ids=lambda leaves: str(leaves)[:24])
def test_a_layout_that_is_none_is_refused(leaves):
    with pytest.raises(Garbled):
        Layout.read(leaves)


def test_memory_that_is_not_there_is_refused():
    pages = Pages(100)
    with pytest.raises(Garbled, match="shared memory ends at 4096 bytes"):
        Layout([("float32", (5000,))]).views(pages, 0)
    pages.close()


AUDIT = """
import json, os, socket, sys
import numpy as np
from shoal.errors import ShoalError
from shoal.runtime import hand, wire

lines, leaves, messages = json.loads(sys.argv[1])
def read(line):
    ours, theirs = socket.socketpair()
    one = hand.Hand(0, (0,), None)
    one.line, one.chunks, one._layouts = wire.Line(ours), pages, [wire.Layout([("float32", (4,))])]
    theirs.sendall(line + b"\\n")
    try:
        message = one.hear()
        if message is not None and message["is"] == "chunk":
            one.views(message)
        return True
    except ShoalError:
        return False
    finally:
        one.line.close()
        theirs.close()

pages = wire.Pages(4096)
good = b'{"is": "chunk", "lane": 0, "seq": 0, "version": 0, "at": 0, "layout": 0}'
assert read(good) and wire.untagged(wire.tagged({"a": (1, [2])}))
assert not read(b"{") and not read(b'{"is": "layout", "leaves": [["O", [1]]]}')
seen = []
names = ("pickle.find_class", "exec", "compile", "import", "subprocess.Popen", "os.system", "os.exec", "marshal.loads", "ctypes.dlopen")
sys.addaudithook(lambda name, args: seen.append((name, str(args)[:80])) if name in names else None)
taken = sum(read(line.encode("latin-1")) for line in lines)
taken += sum(read(json.dumps({"is": "layout", "leaves": x}).encode()) for x in leaves)
taken += sum(read(json.dumps(x).encode()) for x in messages)
read(good)
quiet = list(seen)
exec("import colorsys")
assert {"exec", "compile", "import"} <= {name for name, _ in seen}, "the hook is deaf"
print(taken, quiet)
"""


def test_no_code_is_loaded_while_messages_are_read():
    given = json.dumps([[line.decode("latin-1") for line in LINES], LEAVES, MESSAGES])
    child = subprocess.run([sys.executable, "-c", AUDIT, given], capture_output=True, text=True, timeout=120, check=False,
                           env=os.environ | {"PYTHONPATH": str(Path(wire.__file__).parents[2])})
    assert child.returncode == 0, child.stderr
    assert child.stdout == "0 []\n"  # none is taken for a message
    fault_page.write("F12", "malformed messages", "socket of a worker", "0 audit events of code; refused", "0 events, all refused",
                     len(LINES) + len(LEAVES) + len(MESSAGES))
    fault_page.held("F12", "hostile checkpoints", "disk", "0 audit events of code", "tests/store/test_store_damage.py",
                    "test_no_code_is_loaded_while_data_is")
    fault_page.held("F12", "names of the pickle family", "package", "0", "tests/style/test_imports.py", "test_data_cannot_become_code")


@pytest.mark.slow
def test_a_worker_that_talks_nonsense_is_replaced(run, monkeypatch):
    """An environment that writes into its worker's socket, once."""
    calm = run()
    done = run(workers=2, env_options={"trouble": "babble", "marker": str(Path(calm.folder) / "babbled")})
    assert (done.sha, done.metrics) == (calm.sha, calm.metrics) and done.ledger["restarts"] == 1
    (line,) = [line for line in done.said if "started again" in line]
    assert "sent a line that is not JSON" in line
    fault_page.write("F1", "nonsense through its channel, once", "env, actor", "R", "same bits, 1 restart", 1)


def test_arrays_of_numbers_are_taken():
    assert Layout.read(json.loads(json.dumps(Layout.of([np.zeros((2, 3), bool), np.zeros(1, np.uint8)]).kinds))).kinds == [
        ("bool", (2, 3)), ("uint8", (1,))]
