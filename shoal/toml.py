"""Plain data as TOML text; the standard library reads it back but does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.errors import ConfigError


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
