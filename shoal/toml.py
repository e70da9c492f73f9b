"""TOML both ways: plain data as text, which the standard library does not write, and text as data, distrusting it.

The standard library's reader takes minutes over a key of many parts and hands back data too deep to print: such is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.errors import ConfigError

MAX_BYTES = 1 << 18  # no config of ours comes near it, and reading as much takes a tenth of a second
MAX_DEPTH = 32
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}){{{MAX_DEPTH}}}")


def loads_toml(raw: bytes) -> dict[str, Any]:
    """TOML as plain data. Whatever is wrong with it is a ValueError of one short line, and is found quickly."""
    if len(raw) > MAX_BYTES:
        raise ValueError(f"larger than a config can be ({MAX_BYTES} bytes)")
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ValueError("line 1: begins with a byte order mark; expected UTF-8 text without one")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw[:error.start].count(b"\n") + 1
        raise ValueError(f"line {line}: expected UTF-8 text") from None
    deep = _DEEP_KEY.search(text)
    if deep:
        line = text.count("\n", 0, deep.start()) + 1
        raise ValueError(f"line {line}: nested too deeply")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        line, _ = max(enumerate(text.split("\n"), 1), key=lambda item: item[1].count("[") + item[1].count("{"))
        raise ValueError(f"line {line}: nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        raise ValueError(said if len(said) <= 160 else f"{said[:100]}... {said[-50:]}") from None
    except ValueError:
        raise ValueError("a whole number has too many digits") from None
    _refuse_depth(data)
    return data


def _refuse_depth(data: dict[str, Any]) -> None:
    """Level by level, because what lies too deep is too deep for a recursion."""
    level: list[tuple[str, Any]] = list(data.items())
    for _ in range(MAX_DEPTH):
        level = [(key, item) for key, value in level if isinstance(value, dict | list)
                 for item in (value.values() if isinstance(value, dict) else value)]
    if level:
        raise ValueError(f"{level[0][0][:60]}: nested too deeply")


def dumps_toml(data: Mapping[str, Any]) -> str:
    """``data`` as TOML: values first, then each mapping as a table of its own. Tuples come back as lists."""
    return "\n".join(_table(data, ())).lstrip("\n") + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = ["", f"[{'.'.join(map(_key, path))}]"] if path else []
    inner = []
    for name, value in data.items():
        if isinstance(value, Mapping):
            inner.append((name, value))
        else:
            lines.append(f"{_key(name)} = {_value(value, (*path, name))}")
    for name, value in inner:
        _key(name)
        lines += _table(value, (*path, name))
    return lines


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"key {name!r}: expected text")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name, (name,))


def _value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)  # TOML spells inf and nan as Python does
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item, path) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_value(item, (*path, name))}" for name, item in value.items()) + "}"
    raise ConfigError(f"{'.'.join(path)} = {value!r}: expected text, a number, true or false, or a list of such")


def _text(text: str, path: tuple[str, ...]) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{'.'.join(path)!r}: expected text that UTF-8 can hold") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
