"""Names chosen once, at the edge: a registry per kind of thing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.core.errors import ConfigError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by name. A name of the form "module.path:attribute" is imported instead of looked up."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: make the thing known as `name`.

        Raises:
            ConfigError: the name is taken.
        """

        def add(entry: T) -> T:
            if self._entries.get(name, entry) is not entry:
                raise ConfigError(self.kind, name, "is registered already; choose another name")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str, key: str = "") -> T:
        """The thing called `name`; `key` is the configuration key that an error names.

        Raises:
            ConfigError: no such name, or no such attribute to import.
        """
        if ":" in name:
            return self._imported(name, key or self.kind)
        if name not in self._entries:
            raise ConfigError(key or self.kind, name, f"no such {self.kind}; {nearest(name, self._entries)}")
        return self._entries[name]

    def names(self) -> list[str]:
        return sorted(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @staticmethod
    def _imported(name: str, key: str) -> Any:
        module_name, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(key, name, f"cannot be imported: {error}") from error
