"""Configs as TOML or JSON: what a file leaves out keeps the value it had."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from reprlib import repr as shortened
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from doppler.base.files import parse_json, read_text
from doppler.errors import ConfigError, DopplerError, FormatError, UnknownNameError
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.configs import CONFIGS, AnyConfig
from doppler.training.config import TrainConfig

MAX = 1e18  # of any number
Table = TypeVar("Table")


def read_document(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file, or of a JSON one; its content says which."""
    path = Path(path)
    text, source = read_text(path), f"`{path}`"
    if text.lstrip().startswith("{"):
        document: dict[str, Any] = parse_json(text, source)
        return document
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source} is not valid TOML: {error}") from None


def config_to(config: TrainConfig) -> dict[str, Any]:
    """JSON values of a config: `config_from` gives the same one back."""
    document: dict[str, Any] = _plain(asdict(config))
    if config.policy.kind != PolicyConfig.kind:  # the one of tables that name none
        document["policy"] = {"kind": config.policy.kind} | document["policy"]
    return document


def config_from(
    document: Mapping[str, Any], base: TrainConfig, *, source: str = "config"
) -> TrainConfig:
    """`base` with the values of nested tables; `source` names these in errors.

    What may be absent is switched off by `false` (TOML has no null), such as `expert = false`; an
    empty table, or `true`, switches it on with its defaults.
    """
    try:
        return _merge(base, document, "")
    except DopplerError as error:
        raise ConfigError(f"{source}: {error.message}", hint=error.hint) from None


def _merge(base: Table, table: Mapping[str, Any], prefix: str) -> Table:
    hints = get_type_hints(type(base))
    types = {field.name: hints[field.name] for field in fields(base)}  # type: ignore[arg-type]
    for key in table:
        if key not in types:
            raise _unknown(base, key, prefix)
    changed = {
        key: _value(types[key], value, getattr(base, key), f"{prefix}{key}")
        for key, value in table.items()
    }
    return replace(base, **changed)  # type: ignore[type-var]


def _unknown(base: Any, key: str, prefix: str) -> ConfigError:
    """What to raise for a key that no field has; it may have been meant for another table."""
    inside = [f"{prefix}{name}" for name in _names(base)]
    here = [field.name for field in fields(base)]
    meant = [name for name in inside if name.rpartition(".")[2] == key]
    meant += difflib.get_close_matches(f"{prefix}{key}", inside, n=1)
    guess = f"did you mean `{meant[0]}`? " if meant else ""
    return ConfigError(f"unknown key `{prefix}{key}`", hint=f"{guess}known here: {', '.join(here)}")


def _names(table: Any) -> Iterator[str]:
    """Dotted names of all fields."""
    for field in fields(table):
        yield field.name
        if is_dataclass(value := getattr(table, field.name)):
            yield from (f"{field.name}.{name}" for name in _names(value))


def _value(kind: Any, value: Any, base: Any, key: str) -> Any:
    """A value of a field's type, from the one in a file; a `ConfigError` if it is of another."""
    if kind == AnyConfig:
        return _of_kind(value, base, key)
    if get_origin(kind) is UnionType:  # X | None
        if value is None or value is False:
            return None
        (kind,) = (option for option in get_args(kind) if option is not NoneType)
        if isinstance(kind, type) and is_dataclass(kind):
            base = kind() if base is None else base
            value = {} if value is True else value
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise _mistyped(key, value, "a table")
        return _merge(base, value, f"{key}.")
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), value, key)
    if kind is float:
        if type(value) not in (int, float) or not abs(value) <= MAX:
            raise _mistyped(key, value, "a finite number")
        return float(value)
    if type(value) is not kind or (kind is int and abs(value) > MAX):
        names = {int: "a whole number", bool: "true or false", str: "text"}
        raise _mistyped(key, value, names[kind])
    return value


def _of_kind(value: Any, base: Any, key: str) -> Any:
    """The config of a policy; a table of another `kind` than it was begins with its defaults."""
    if not isinstance(value, Mapping):
        raise _mistyped(key, value, "a table")
    name = value.get("kind", base.kind)
    if name not in CONFIGS:
        raise UnknownNameError("kind of policy", str(name), CONFIGS)
    start = base if name == base.kind else CONFIGS[name]()
    return _merge(start, {k: v for k, v in value.items() if k != "kind"}, f"{key}.")


def _tuple(kinds: tuple[Any, ...], value: Any, key: str) -> tuple[Any, ...]:
    size = None if kinds[-1] is Ellipsis else len(kinds)
    if not isinstance(value, (list, tuple)) or (size is not None and len(value) != size):
        raise _mistyped(key, value, "a list" if size is None else f"a list of {size}")
    return tuple(_value(kinds[0], item, None, f"{key}[{i}]") for i, item in enumerate(value))


def _mistyped(key: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"`{key}` is {shortened(value)}, must be {expected}")


def _plain(value: Any) -> Any:
    """JSON values: tuples become lists."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
