"""What a finished library does not hold: prints, swallowed failures, promises for later."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import shoal

PACKAGE = Path(shoal.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
WIDE = ("Exception", "BaseException")
LATER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_is_finished(path: Path):
    text = path.read_text()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        where = f"{name(path)}:{getattr(node, 'lineno', 0)}"
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{where}: bare except"
        assert not (isinstance(node, ast.Name) and node.id == "NotImplementedError"), f"{where}: not implemented"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and path.name != "cli.py":
            assert node.func.id != "print", f"{where}: print in the library"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            assert not LATER.search(token.string), f"{name(path)}:{token.start[0]}: {token.string}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_says_what_it_is_for(path: Path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{name(path)} has no docstring"
    defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign) for node in tree.body)
    future = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    assert future or not defines, f"{name(path)}: from __future__ import annotations"


def test_a_failure_is_not_swallowed():
    """``except Exception: pass`` hides what went wrong; a narrow class, or saying why, does not."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            wide = isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Name) and node.type.id in WIDE
            if wide:
                assert not all(isinstance(inner, ast.Pass) for inner in node.body), f"{name(path)}:{node.lineno}"
