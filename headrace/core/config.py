"""From plain data (a YAML recipe, command-line overrides) to typed, frozen, strict configuration, and back.

Configuration lives with its owner as frozen dataclasses. `build` is the one way in: whatever it does not know, or
what has the wrong type, raises before any work starts, with the full key path and the nearest valid name.
This is the only file that reads headrace's own environment variables.
"""

from __future__ import annotations

import dataclasses
import os
import re
import runpy
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from headrace.core.errors import ConfigError, nearest

T = TypeVar("T")
ENVIRONMENT_PREFIX = "HEADRACE_"
DEFAULTS_KEY = "defaults"
RECIPE_VARIABLE = "recipe"


def environment(name: str, default: str | None = None) -> str | None:
    """The process's environment variable HEADRACE_<name>."""
    return os.environ.get(ENVIRONMENT_PREFIX + name, default)


# -- building ----------------------------------------------------------------------------------------------------


def build(cls: type[T], data: Mapping[str, Any], *, path: str = "") -> T:
    """A frozen dataclass of type `cls` from nested mappings, by its type hints.

    path: where `data` stands in the whole configuration; errors name keys from there.

    Raises:
        ConfigError: an unknown key, a missing one, a value of the wrong type, or one that the dataclass refuses.
    """
    return _Builder(cls).dataclass(cls, data, path)


class _Builder:
    """Builds below one root, which it searches for where a misplaced key belongs."""

    def __init__(self, root: type) -> None:
        self._root = root

    def dataclass(self, cls: type[T], data: Any, path: str) -> T:
        if not isinstance(data, Mapping):
            raise ConfigError(path or cls.__name__, data, f"must be a section with keys {', '.join(_names(cls))}")
        hints = get_type_hints(cls)
        names = _names(cls)
        for key in data:
            if key not in names:
                raise ConfigError(_join(path, str(key)), data[key], self._unknown(str(key), names, path))
        values = {name: self.value(hints[name], data[name], _join(path, name)) for name in names if name in data}
        missing = [field.name for field in _fields(cls) if field.name not in values and _is_required(field)]
        if missing:
            raise ConfigError(_join(path, missing[0]), None, "is required and missing")
        try:
            return cls(**values)
        except ConfigError as refused:
            raise type(refused)(_join(path, refused.key), refused.value, refused.remedy) from refused

    def value(self, hint: Any, value: Any, path: str) -> Any:
        """`value` as `hint` says; ConfigError where it is not."""
        origin = get_origin(hint)
        if hint is Any:
            return value
        if origin in (Union, types.UnionType):
            return self._union(get_args(hint), value, path)
        if origin is Literal:
            return _choice(value, get_args(hint), path)
        if origin in (list, tuple, Sequence):
            return self._sequence(hint, value, path)
        if origin in (dict, Mapping):
            return self._mapping(hint, value, path)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return value if isinstance(value, hint) else self.dataclass(hint, value, path)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint(_choice(value, [member.value for member in hint], path))
        return _scalar(hint, value, path)

    def _union(self, options: Sequence[Any], value: Any, path: str) -> Any:
        if value is None:
            if type(None) in options:
                return None
            raise ConfigError(path, value, "must not be empty")
        failures = []
        # Exact types first: with `int | str`, the text "3" stays text.
        present = [option for option in options if option is not type(None)]
        for option in sorted(present, key=lambda option: not (isinstance(option, type) and type(value) is option)):
            try:
                return self.value(option, value, path)
            except ConfigError as failure:
                failures.append(failure)
        # The most telling complaint is the one that got furthest into the value.
        raise max(failures, key=lambda failure: failure.key.count("."))

    def _sequence(self, hint: Any, value: Any, path: str) -> Any:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise ConfigError(path, value, "must be a list")
        args = get_args(hint)
        fixed = get_origin(hint) is tuple and args and args[-1] is not Ellipsis
        if fixed and len(args) != len(value):
            raise ConfigError(path, value, f"must have {len(args)} entries")
        kinds = args if fixed else [args[0] if args else Any] * len(value)
        items = [self.value(kind, item, f"{path}.{i}") for i, (kind, item) in enumerate(zip(kinds, value, strict=True))]
        return tuple(items) if get_origin(hint) is tuple else items

    def _mapping(self, hint: Any, value: Any, path: str) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise ConfigError(path, value, "must be a section of keys and values")
        key_hint, value_hint = get_args(hint) or (Any, Any)
        return {
            self.value(key_hint, key, f"{path}.{key}"): self.value(value_hint, item, f"{path}.{key}")
            for key, item in value.items()
        }

    def _unknown(self, key: str, names: Sequence[str], path: str) -> str:
        normalised = key.replace("-", "_")
        if normalised in names:
            return f"unknown key; did you mean '{normalised}'?"
        places = [place for place in _places_of(self._root, key) if place != _join(path, key)]
        if places:
            return f"unknown key here; it belongs in '{places[0].rpartition('.')[0] or 'the top level'}'"
        return f"unknown key; {nearest(key, names)}"


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is float:
        return _float(value, path)
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 1e6 is how people write a million
    if hint is int and isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+", value):
        return int(value)  # not by way of a float, which would round a long seed
    if hint is int and isinstance(value, str) and _float_text(value) and float(value).is_integer():
        return int(float(value))
    wrong_bool = isinstance(value, bool) and hint is not bool
    if not isinstance(value, hint) or wrong_bool:
        article = "an" if hint.__name__[0] in "aeiou" else "a"
        quoted = "; quote it" if hint is str and isinstance(value, int | float) else ""
        raise ConfigError(path, value, f"must be {article} {hint.__name__}, not {type(value).__name__}{quoted}")
    return value


def _float(value: Any, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and _float_text(value):
        return float(value)  # YAML 1.1 reads 1e-3 as text
    raise ConfigError(path, value, f"must be a number, not {type(value).__name__}")


def _float_text(text: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None


def _choice(value: Any, choices: Sequence[Any], path: str) -> Any:
    for choice in choices:
        if value == choice and type(value) is type(choice):
            return choice
    raise ConfigError(
        path, value, f"not one of the choices; {nearest(str(value), [str(choice) for choice in choices])}"
    )


def _fields(cls: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _names(cls: Any) -> list[str]:
    return [field.name for field in _fields(cls)]


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _sections(hint: Any) -> list[type]:
    """The dataclasses inside a type hint."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [section for arg in get_args(hint) for section in _sections(arg)] if get_origin(hint) is not dict else []


def _places_of(cls: type, key: str, path: str = "") -> list[str]:
    """Every path below `cls` whose last part is `key`."""
    hints = get_type_hints(cls)
    places = [_join(path, key)] if key in _names(cls) else []
    for name in _names(cls):
        for section in _sections(hints[name]):
            places += _places_of(section, key, _join(path, name))
    return places


# -- recipes -----------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1:30, yes and 010 are text; a key stands once."""


_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_SCALARS = [
    ("tag:yaml.org,2002:bool", r"true|True|false|False", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+0123456789."),
    (_MERGE, r"<<", "<"),
]
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _PLAIN_SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))


def _mapping_without_doubles(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue  # `<<: *other` is no key; `flatten_mapping` carries it out
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, Hashable):
            raise ConfigError(str(key), None, f"cannot be a key; write text or a number (line {line})")
        if key in seen:
            raise ConfigError(str(key), None, f"stands twice in one section (line {line})")
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping_without_doubles)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A recipe as plain data, its `defaults` (another file, relative to it) below it, `key=value` on top.

    The file is YAML, in which `${section.key}` stands for another value, as in OmegaConf; or Python, whose variable
    `recipe` is the configuration or a mapping.

    Raises:
        ConfigError: the file is not there or is no YAML mapping, or an override is malformed.
    """
    data = _read(Path(path), ())
    for override in overrides:
        _override(data, override)
    return _interpolate(data)


def parse_value(text: str) -> Any:
    """A value as written on the command line: YAML, so `[1, 2]`, `true`, `1e-3` and `null` are what they seem."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError("override", text, f"is no value: {' '.join(str(error).split())}") from error


def _read(path: Path, parents: tuple[Path, ...]) -> dict[str, Any]:
    path = path.resolve()
    if path in parents:
        raise ConfigError(DEFAULTS_KEY, path.name, "recipes inherit from each other in a circle")
    text = _text(path)
    data = _run(path) if path.suffix == ".py" else _parse(text, path)
    if not isinstance(data, dict):
        raise ConfigError("recipe", _shown(path), "must be sections of keys and values")
    base = data.pop(DEFAULTS_KEY, None)
    if base is None:
        return data
    return _merge(_read(path.parent / str(base), (*parents, path)), data)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("recipe", _shown(path), "is no text; a recipe is YAML or Python, in UTF-8") from error
    except OSError as error:
        remedy = f"cannot be read ({error.strerror}){_similar_files(path)}"
        raise ConfigError("recipe", _shown(path), remedy) from error


def _parse(text: str, path: Path) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError("recipe", _shown(path), f"is no YAML: {' '.join(str(error).split())}") from error


def _run(path: Path) -> Any:
    """What a Python recipe says; exceptions of its own pass through, with their traceback."""
    namespace = runpy.run_path(str(path))
    if RECIPE_VARIABLE not in namespace:
        raise ConfigError(RECIPE_VARIABLE, None, f"{_shown(path)} defines no variable of that name")
    return to_dict(namespace[RECIPE_VARIABLE])


def _shown(path: Path) -> str:
    return os.path.relpath(path)


def _similar_files(path: Path) -> str:
    here = [entry.name for entry in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    return f"; {nearest(path.name, here)}" if here else ""


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError("override", override, "write overrides as section.key=value")
    section = data
    for depth, part in enumerate(parts[:-1]):
        below = section.get(part)
        if below is None:
            below = section[part] = {}
        if not isinstance(below, dict):
            raise ConfigError(".".join(parts[: depth + 1]), below, f"is a value, so '{key}' cannot be set below it")
        section = below
    section[parts[-1]] = parse_value(text)


def _interpolate(data: dict[str, Any]) -> dict[str, Any]:
    if "${" not in str(data):
        return data
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(data), resolve=True)
    except OmegaConfBaseException as error:
        full_key = str(getattr(error, "full_key", None) or "recipe")
        raise ConfigError(full_key, None, f"does not resolve: {str(error).splitlines()[0]}") from error
    return typing.cast("dict[str, Any]", resolved)


# -- and back ----------------------------------------------------------------------------------------------------


def to_dict(config: Any) -> Any:
    """Plain data (dicts, lists, scalars) from which `build` makes an equal configuration."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: to_dict(getattr(config, field.name)) for field in _fields(config)}
    if isinstance(config, Mapping):
        return {key: to_dict(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_dict(value) for value in config]
    if isinstance(config, Enum):
        return config.value
    return str(config) if isinstance(config, Path) else config


def save_yaml(config: Any, path: Path) -> None:
    """Write a configuration as a recipe."""
    path.write_text(yaml.dump(to_dict(config), Dumper=_Dumper, sort_keys=False))


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader`, or a YAML 1.1 reader, would not read back as text."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain_elsewhere = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    ambiguous = not text or any(pattern.match(text) for _, pattern in plain_elsewhere) or _float_text(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if ambiguous else None)


_Dumper.add_representer(str, _represent_text)
