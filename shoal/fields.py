"""What can be set, and to what: the fields of algorithms, environments and the plan. No JAX here.

Settings are described by the classes that own them. A built-in class is read as source, never imported: an annotated
assignment is a field, its literal the default, the string underneath its help; ``RANGES`` and ``CHOICES`` bound it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import inspect
import math
import operator
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from shoal import registry
from shoal.errors import ConfigError, MissingError, nearest

REQUIRED = dataclasses.MISSING  # a field without a default
COMPUTED = ...  # a default that only running the code would tell
MAX_LIST = 1000  # items in a field that is a list
_EXPECTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


class Field(NamedTuple):
    name: str
    type: str
    default: Any
    help: str


class Described(NamedTuple):
    """What a class says of its own settings."""

    fields: list[Field]
    ranges: dict[str, tuple[float, float]]  # inclusive
    choices: dict[str, tuple[Any, ...]]
    summary: str  # first line of the docstring
    open: bool = False  # takes further keywords that it does not list

    def find(self, name: str) -> Field | None:
        return next((item for item in self.fields if item.name == name), None)


# reading classes ---------------------------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow}


def _literal(node: ast.expr | None) -> Any:
    """The value of a default as it is written, or COMPUTED where it is more than arithmetic on literals."""
    if node is None:
        return REQUIRED
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        return COMPUTED if value is COMPUTED else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        sides = _literal(node.left), _literal(node.right)
        return COMPUTED if COMPUTED in sides else _OPERATORS[type(node.op)](*sides)
    if isinstance(node, ast.Tuple | ast.List):
        values = tuple(map(_literal, node.elts))
        return COMPUTED if COMPUTED in values else values
    if isinstance(node, ast.Dict):
        return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Name | ast.Attribute):
        value = getattr(math, node.id if isinstance(node, ast.Name) else node.attr, COMPUTED)
        return value if isinstance(value, float) else COMPUTED
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "float" and len(node.args) == 1:
        return float(_literal(node.args[0]))
    return node.value if isinstance(node, ast.Constant) else COMPUTED


def _describe_class(tree: ast.ClassDef) -> Described:
    found: list[Field] = []
    bounds: dict[str, dict[str, Any]] = {"RANGES": {}, "CHOICES": {}}
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, kind = node.targets[0], "ClassVar"
        elif isinstance(node, ast.AnnAssign):
            target, kind = node.target, _type_name(ast.unparse(node.annotation).strip("'\""))
        else:
            continue
        name = target.id if isinstance(target, ast.Name) else "_"
        if name in bounds:
            bounds[name] = _literal(node.value)
        elif "ClassVar" not in kind and not name.startswith("_"):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            found.append(Field(name, kind, _literal(node.value), inspect.cleandoc(str(text))))
    summary = (ast.get_docstring(tree) or "").split("\n")[0]
    return Described(found, bounds["RANGES"], bounds["CHOICES"], summary)


def _bases(tree: ast.Module, node: ast.ClassDef, module: str) -> list[str]:
    """``module:Class`` of the classes that a class extends, where the package itself has them."""
    names = {base.id for base in node.bases if isinstance(base, ast.Name)}
    lines = [line for line in tree.body if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("shoal.")]
    beside = [f"{module}:{other.name}" for other in tree.body if isinstance(other, ast.ClassDef) and other.name in names]
    return [f"{line.module}:{item.name}" for line in lines for item in line.names if item.name in names] + beside


def _extend(base: Described, more: Described) -> Described:
    """What a class says on top of what it extends; a field said again keeps its place."""
    fields = {item.name: item for item in base.fields} | {item.name: item for item in more.fields}
    return Described(list(fields.values()), base.ranges | more.ranges, base.choices | more.choices, more.summary)


@functools.cache
def _describe_source(target: str) -> Described:
    """``module:Class`` by its source file, found without importing even the packages above it."""
    module, attribute = target.split(":")
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    roots = [Path(root, *rest) for root in spec.submodule_search_locations or ()] if spec else []
    files = [file for root in roots for file in (root.with_suffix(".py"), root / "__init__.py")]
    if spec and spec.origin and not rest:
        files.append(Path(spec.origin))
    for file in filter(Path.is_file, files):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == attribute:
                bases = [_describe_source(base) for base in _bases(tree, node, module)]
                return functools.reduce(_extend, [*bases, _describe_class(node)])
    raise MissingError(f"{target} is not part of this installation")


def _describe_object(factory: Any) -> Described:
    """A user's class or function: its dataclass fields or signature, with help from its source where that can be read."""
    summary = (inspect.getdoc(factory) or "").split("\n")[0]
    help_of: dict[str, str] = {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(factory))).body[0]
        if isinstance(tree, ast.ClassDef):
            help_of = {item.name: item.help for item in _describe_class(tree).fields}
    except (OSError, TypeError, SyntaxError):
        summary = summary or "(its source cannot be read)"
    found, is_open = [], False
    if dataclasses.is_dataclass(factory):
        for item in filter(lambda item: item.init, dataclasses.fields(factory)):
            default = item.default_factory() if item.default_factory is not REQUIRED else item.default
            found.append(Field(item.name, _type_name(item.type), default, help_of.get(item.name, "")))
    else:
        for taken in inspect.signature(factory).parameters.values():
            is_open |= taken.kind is taken.VAR_KEYWORD
            if taken.kind not in (taken.VAR_KEYWORD, taken.VAR_POSITIONAL):
                default = REQUIRED if taken.default is taken.empty else taken.default
                found.append(Field(taken.name, _type_name(taken.annotation), default, help_of.get(taken.name, "")))
    return Described(found, _merged(factory, "RANGES"), _merged(factory, "CHOICES"), summary, is_open)


def _merged(factory: Any, table: str) -> dict[str, Any]:
    """A table of bounds with what the classes it extends say."""
    lines = [getattr(cls, "__dict__", {}).get(table, {}) for cls in reversed(getattr(factory, "__mro__", (factory,)))]
    return {name: bound for line in lines for name, bound in line.items()}


def _type_name(annotation: Any) -> str:
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return "float" if name == "Fixed" else name  # a number like any other to whoever sets it


def describe(kind: str, name: str) -> Described:
    """The settings of a registered class; built-ins without importing them."""
    if name in registry.BUILTIN[kind]:
        return _describe_source(registry.BUILTIN[kind][name])
    return _describe_object(registry.find(kind, name))


def plan_fields() -> list[Field]:
    """Every field of a plan, in the same form."""
    return _describe_source("shoal.plan:Plan").fields


# checking values ---------------------------------------------------------------------------------------------------


def show(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print a whole number of thousands of digits
        return "(too long to show)"
    return text if len(text) <= 60 else text[:57] + "..."


def refuse(name: str, value: Any, expected: str, where: str) -> ConfigError:
    return ConfigError(f"{name} = {show(value)}: expected {expected}{f' ({where})' if where else ''}")


def _inner(kind: str) -> str:
    """``tuple[int, ...]`` → ``int``; nothing for any other type."""
    return kind[len("tuple["):-len(", ...]")] if kind.startswith("tuple[") and kind.endswith(", ...]") else ""


def cast(name: str, value: Any, kind: str, where: str = "") -> Any:
    """``value`` as the field's own type, or a refusal; whole floats are fine for int, and lists for tuples."""
    if _inner(kind):
        if not isinstance(value, list | tuple):
            raise refuse(name, value, f"a list of {_inner(kind)}", where)
        if len(value) > MAX_LIST:
            raise refuse(name, value, f"a list of at most {MAX_LIST}", where)
        return tuple(cast(name, item, _inner(kind), where) for item in value)
    if kind == "Array" and not isinstance(value, list | tuple):  # an environment's number that is data: whole or not
        cast(name, value, "float", where)
        return value
    if kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)
    wanted: Any = {"int": int, "float": (int, float), "bool": bool, "str": str}.get(kind)
    if wanted is None:
        return _frozen(plain(name, value, where)) if kind.startswith("tuple") else plain(name, value, where)
    right = isinstance(value, wanted) and (kind == "bool" or not isinstance(value, bool)) and value == value
    if not right:
        raise refuse(name, value, _EXPECTED[kind], where)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise refuse(name, value, "a number below 2**64", where)
    return float(value) if kind == "float" else plain(name, value, where)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def plain(name: str, value: Any, where: str) -> Any:
    """Data that TOML can hold, tuples as lists."""
    if isinstance(value, list | tuple):
        return [plain(name, item, where) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(name, item, where) for key, item in value.items()}
    if not isinstance(value, bool | int | float | str):
        raise refuse(name, value, "a number, text, true or false, or a list of these", where)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise refuse(name, value, "a number below 2**64", where)
    if isinstance(value, str) and not value.isascii() and value != value.encode(errors="ignore").decode():
        raise refuse(name, value, "text in UTF-8", where)
    return value


def parse(name: str, text: str, kind: str, where: str = "") -> Any:
    """What was typed after a flag, as the field's type: ``1e6`` and ``200_000`` are whole numbers, ``64,64`` is a tuple."""
    if _inner(kind):
        bare = text.strip("()[] ").removesuffix(",")
        return tuple(parse(name, part.strip(), _inner(kind), where) for part in bare.split(",")) if bare else ()
    if kind in ("int", "float"):
        for number in (int, float):
            try:
                return cast(name, number(text), kind, where)
            except ValueError:
                continue
        raise refuse(name, text, _EXPECTED[kind], where)
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    return cast(name, text if kind in ("bool", "str") else parse_literal(text), kind, where)


def parse_literal(text: str) -> Any:
    """A TOML literal, or the text itself."""
    try:
        data = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return data["value"] if len(data) == 1 else text


def check(item: Field, value: Any, known: Described, where: str) -> Any:
    value = cast(item.name, value, item.type, where)
    low, high = known.ranges.get(item.name, (1 if item.type == "int" and item.name.startswith("num_") else -math.inf, math.inf))
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, int | float) and not isinstance(each, bool) and not low <= each <= high:
            expected = f"a number of at least {low}" if high == math.inf else f"a number from {low} to {high}"
            raise refuse(item.name, value, expected, where)
        choices = known.choices.get(item.name, ())
        if choices and each not in choices:
            hint = nearest(str(each), map(str, choices))
            close = hint if hint.startswith("; did") else ""
            raise refuse(item.name, value, f"one of {', '.join(map(str, choices))}{close}", where)
    return value
