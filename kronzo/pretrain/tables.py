"""Nested tables of plain values <-> frozen dataclasses, checked by the type hints; TOML both ways."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from kronzo.errors import InputError

T = TypeVar("T")
_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def build(kind: type[T], table: Any, prefix: str = "") -> T:
    """Build a dataclass, its nested dataclasses included, from tables.

    Args:
        kind: a dataclass; its hints are bool, int, float, str, tuple[X, ...], dict[str, X], unions and dataclasses.
        table: key -> value; an int serves where a float is needed.
        prefix: what to put before a key in messages, "section.".

    Raises:
        InputError: an unknown key (the nearest one is named), a missing one, or a value of another type.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{prefix.rstrip('.')} = {table!r}: a table [{prefix.rstrip('.')}] is needed.")
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            close = _with_section(key, hints) or nearest(key, hints)
            raise InputError(f"{prefix}{key}: unknown key, did you mean {prefix}{close}? Known: {', '.join(hints)}.")
        if dataclasses.is_dataclass(hints[key]):
            values[key] = build(hints[key], value, f"{prefix}{key}.")
        else:
            values[key] = _checked(value, hints[key], f"{prefix}{key}")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise InputError(f"{prefix}{field.name} is missing: {_described(hints[field.name])} is needed.")
    return kind(**values)


def read(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        InputError: a missing, unreadable or empty file, or bad TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a TOML file or a run folder.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; a TOML file is needed.") from error
    if not (tables := parse(text, str(path))):
        raise InputError(f"{path}: holds no setting; give a TOML file with at least one.")
    return tables


def parse(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        InputError: bad TOML; `where` names the text.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not valid TOML: {error}.") from error


def dumps(tables: Mapping[str, Any]) -> str:
    """Return tables, at most two levels and inline tables deep, as TOML."""
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, Mapping)]
    for section, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def override(tables: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Return a copy of the tables with one `section.key=value` applied.

    The value is read as TOML and, where that fails, as a plain string. Tables that exist are entered first; what then
    follows a second dot is one key, so that optimizer.scale.wte.weight=2.0 sets "wte.weight" in optimizer.scale.

    Raises:
        InputError: a setting without "=", or one that reaches into a plain value.
    """
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {setting}: section.key=value is needed, e.g. --set optimizer.lr=1e-3.")
    result: dict[str, Any] = json.loads(json.dumps(tables))
    parts, table = key.strip().split("."), result
    while len(parts) > 1 and isinstance(table.get(parts[0]), dict):
        table = table[parts.pop(0)]
    entered = key.count(".") + 1 - len(parts)
    *sections, last = ".".join(parts).split(".", max(0, 2 - entered))
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {setting}: {section} is a value and not a table; give section.key=value.")
    table[last] = _value(text.strip())
    return result


def plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with tuples as lists and without None and empty tables."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            value = plain(value) or None
        if value is not None:
            result[key] = list(value) if isinstance(value, tuple) else value
    return result


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"section.key": value} of nested tables."""
    result: dict[str, Any] = {}
    for key, value in tables.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return result


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the most similar of some words."""
    return difflib.get_close_matches(word, list(words), n=1, cutoff=0.0)[0]


def _with_section(key: str, hints: Mapping[str, Any]) -> str | None:
    """The key with the first section that has it, None where no section does: lr is optimizer.lr."""
    tables = [section for section, hint in hints.items() if dataclasses.is_dataclass(hint)]
    return next((f"{section}.{key}" for section in tables if key in get_type_hints(hints[section])), None)


def _checked(value: Any, hint: Any, key: str) -> Any:
    try:
        return _convert(value, hint)
    except TypeError as error:
        raise InputError(f"{key} = {value!r}: {_described(hint)} is needed.") from error


def _convert(value: Any, hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, UnionType):
        for kind in args:
            try:
                return _convert(value, kind)
            except TypeError:
                continue
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(part, args[0]) for part in value)
    elif origin is dict and isinstance(value, Mapping):
        return {name: _convert(part, args[1]) for name, part in value.items()}
    elif hint is float and type(value) is int:
        return float(value)
    elif origin is None and type(value) is hint:
        return value
    raise TypeError(f"{value!r} is no {hint}")


def _described(hint: Any) -> str:
    if isinstance(hint, UnionType):
        return " or ".join(_described(kind) for kind in get_args(hint) if kind is not NoneType)
    if get_origin(hint) is tuple:
        return f"a list of ({_described(get_args(hint)[0])})"
    if get_origin(hint) is dict:
        return f"a table of ({_described(get_args(hint)[1])})"
    return "a table" if dataclasses.is_dataclass(hint) else _WORDS[hint]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_quoted(key)} = {_toml(part)}' for key, part in value.items())} }}"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """Return a TOML basic string: JSON's, but for DEL, which TOML forbids, and surrogate pairs, which it lacks."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
