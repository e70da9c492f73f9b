"""What both corpora are read with: a witness of everything that could be code, and a reader without rights."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CODE = ("exec", "compile", "marshal.loads", "pickle.find_class", "ctypes.dlopen", "os.system", "os.exec", "os.posix_spawn",
        "os.spawn", "os.fork", "os.forkpty", "subprocess.Popen", "pty.spawn")
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.chown",
           "shutil.rmtree")
NOBODY = 65534


class Witness:
    """Hears what Python does while a file is read. A hook cannot be taken back, so there is one, and it sleeps in between."""

    def __init__(self) -> None:
        self.scratch, self.seen, self.awake = "", [], False  # type: ignore[var-annotated]
        self.slowest: dict[str, tuple[float, str]] = {}
        self.counts: dict[str, int] = {}
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple) -> None:
        if not self.awake:
            return
        loaded = event == "import" and args and args[0] in sys.modules
        writes = event == "open" and (isinstance(args[1], str) and set(args[1]) & set("wax+") or (args[2] or 0) & 3)
        outside = (writes or event in CHANGES) and not str(args[0]).startswith(self.scratch)
        if (event == "import" and not loaded) or event in CODE or event.startswith("socket.") or outside:
            self.seen.append((event, str(args)[:120]))

    @contextlib.contextmanager
    def watch(self, kind: str, name: str) -> Iterator[list[tuple[str, str]]]:
        """Everything suspicious that happens inside, as a list; and how long it took, for the record."""
        self.seen = []
        begun = time.perf_counter()
        self.awake = True
        try:
            yield self.seen
        finally:
            self.awake = False
            self.slowest[kind] = max(self.slowest.get(kind, (0.0, "")), (time.perf_counter() - begun, name))
            self.counts[kind] = self.counts.get(kind, 0) + 1


WITNESS = Witness()


@pytest.fixture(scope="session")
def witness() -> Witness:
    return WITNESS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for kind, (seconds, name) in WITNESS.slowest.items():
        terminalreporter.write_line(f"{kind}: {WITNESS.counts[kind]} loads, slowest {seconds * 1e3:.0f} ms ({name})")


@pytest.fixture
def scratch(witness: Witness) -> Iterator[Path]:
    """A folder that everyone may enter, so that what cannot be read is the file in it."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as name:
        os.chmod(name, 0o755)
        witness.scratch = name
        yield Path(name)


@pytest.fixture
def without_rights() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """As someone who may not read everything, for the tests of whoever may."""

    @contextlib.contextmanager
    def drop() -> Iterator[None]:
        if os.geteuid():
            yield
            return
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    return drop
