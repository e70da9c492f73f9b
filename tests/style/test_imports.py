"""Dependencies point one way, processes are started in one place, and nothing that is read can become code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shoal

PACKAGE = Path(shoal.__file__).parent
LAYERS = (
    ("errors", "registry", "plan", "toml", "faultpoint", "given", "disk", "code_cache", "specs", "types", "rng"),
    ("ops",),
    ("optim", "nets", "heads", "envs", "tabular", "buffers", "flow", "checkpoint", "tensors", "store"),
    ("algos", "params"),
    ("lane", "host_act", "host_lane", "vector_lane", "loops", "scoring"),
    ("runtime",),
    ("monitor", "signals", "callbacks", "main_loop"),
    ("fields", "config", "table_api", "api", "doctor", "flags", "cli"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(PACKAGE.rglob("*.py"))
PROCESSES = {"subprocess", "multiprocessing", "ray", "mpi4py"}
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "jsonpickle", "joblib", "shelve", "marshal", "copyreg",
           "allow_pickle", "multiprocessing"}  # whose channels pickle
# their fault hooks arm what tests ask for; the registry names the probe environment as text and imports nothing
MAY_IMPORT_TESTING = {"shoal.cli", "shoal.runtime.worker", "shoal.runtime.table_worker"}


def module_of(path: Path) -> str:
    """``shoal.envs.cartpole`` for its file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it; ``from shoal import x`` is ``shoal.x`` where that is a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & MODULES
            if inner - MODULES:
                found.add(node.module or "")
    return found


def room(module: str) -> str:
    """The layer's name a module belongs to: ``envs`` for ``shoal.envs.cartpole``; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def ours(path: Path) -> set[str]:
    return {room(name) for name in imports(path) if name.split(".")[0] == "shoal"} - {""}


LIBRARY = [path for path in FILES if room(module_of(path)) not in ("", "testing", "__main__")]


@pytest.mark.parametrize("path", LIBRARY, ids=module_of)
def test_a_module_imports_only_what_lies_below(path: Path):
    here = room(module_of(path))
    assert here in RANK, f"{here} has no layer: say in LAYERS where it belongs"
    above = {name for name in ours(path) - {"testing"} if RANK.get(name, -1) > RANK[here]}
    assert not above, f"{module_of(path)} imports {sorted(above)} from above"
    assert "testing" not in ours(path) or module_of(path) in MAY_IMPORT_TESTING


def test_the_layers_are_those_of_the_package():
    assert {room(module_of(path)) for path in LIBRARY} == set(RANK)


def test_the_package_itself_imports_two_modules():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {f"{node.module}" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in at_once}
    assert names == {"__future__", "importlib", "typing", "shoal", "shoal.registry"}


def test_algorithms_and_runtimes_do_not_know_each_other():
    for path in LIBRARY:
        here = room(module_of(path))
        if here == "algos":
            assert not ours(path) & {"lane", "host_act", "host_lane", "vector_lane", "loops", "scoring", "runtime", "main_loop"}, path
        if here == "runtime":
            assert "algos" not in ours(path), path


def test_only_runtimes_start_processes():
    for path in LIBRARY:
        if room(module_of(path)) != "runtime":
            assert not {name.split(".")[0] for name in imports(path)} & PROCESSES, path


def test_no_drawer_for_odds_and_ends():
    for module in MODULES:
        assert not set(module.split(".")) & {"utils", "util", "common", "helpers", "helper", "misc"}, module


def names_in(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_data_cannot_become_code(path: Path):
    parts = {part for name in imports(path) for part in name.split(".")}
    assert not (names_in(path) | parts) & PICKLES
    calls = {node.func.id for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"eval", "exec", "compile", "__import__"}


def test_names_become_modules_in_three_places():
    """The package's own lazy names, the registry, and the Gymnasium adapter, which imports what Gymnasium's registry lists."""
    users = {module_of(path) for path in FILES if "import_module" in names_in(path)}
    assert users == {"shoal", "shoal.registry", "shoal.envs.gymnasium"}
    # and a worker imports the user's own script, which its driver names
    assert {module_of(path) for path in FILES if "exec_module" in names_in(path)} == {"shoal.runtime.told"}
