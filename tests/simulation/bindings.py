"""Find where code has bound a function at import: module globals, class attributes, default arguments, closures."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Binding", "find_bindings"]

_MISSING = object()


class Binding:
    """An attribute to replace and restore."""

    def __init__(self, holder: Any, name: str, value: Any) -> None:
        self.holder, self.name, self.value = holder, name, value
        self._before: Any = vars(holder)[name] if isinstance(holder, type) else getattr(holder, name, _MISSING)

    def __repr__(self) -> str:
        return f"<Binding {self.holder!r}.{self.name}>"

    def is_current(self) -> bool:
        """Whether the attribute still has the value it had when this was made."""
        now = (
            vars(self.holder).get(self.name) if isinstance(self.holder, type) else getattr(self.holder, self.name, None)
        )
        return now is self._before

    def replace(self) -> None:
        setattr(self.holder, self.name, self.value)

    def restore(self) -> None:
        if self._before is _MISSING:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, self._before)


#: What was found last, and in which modules: a search takes 50 ms.
_last: tuple[object, list[Binding]] = (None, [])


def find_bindings(packages: Sequence[str], replacements: Mapping[int, Any]) -> list[Binding]:
    """In all imported modules of the packages. `replacements`: by the `id` of the original."""
    global _last  # noqa: PLW0603
    modules = [
        (name, module)
        for name, module in sorted(sys.modules.items())
        if name.split(".", 1)[0] in packages and isinstance(module, types.ModuleType)
    ]
    searched = (tuple((name, len(vars(module))) for name, module in modules), tuple(map(id, replacements.values())))
    if _last[0] == searched and all(binding.is_current() for binding in _last[1]):
        return _last[1]
    found: list[Binding] = []
    seen: set[int] = set()
    for name, module in modules:
        _search(module, name, replacements, seen, found)
    _last = searched, found
    return found


def _search(holder: Any, module: str, replacements: Mapping[int, Any], seen: set[int], found: list[Binding]) -> None:
    """Search the attributes, functions and classes of a module or class."""
    for name, value in list(vars(holder).items()):
        if id(value) in replacements:
            replacement = replacements[id(value)]  # a Python function in a class would become a method
            found.append(Binding(holder, name, staticmethod(replacement) if isinstance(holder, type) else replacement))
            continue
        for function in _functions_of(value):
            # Skip imported functions: a bound replacement has the original in its closure, and needs it.
            if id(function) not in seen and function.__module__ == module:
                seen.add(id(function))
                found += _in_function(function, replacements)
        if isinstance(value, type) and value.__module__ == module and id(value) not in seen:
            seen.add(id(value))
            _search(value, module, replacements, seen, found)


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """The function itself, and the functions wrapped by decorators, properties and class methods."""
    while value is not None:
        if isinstance(value, types.FunctionType):
            yield value
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, classmethod | staticmethod):
            value = value.__func__
        else:
            value = vars(value).get("__wrapped__") if hasattr(value, "__dict__") else None


def _in_function(function: types.FunctionType, replacements: Mapping[int, Any]) -> Iterator[Binding]:
    swap: Callable[[Any], Any] = lambda value: replacements.get(id(value), value)  # noqa: E731
    if any(id(value) in replacements for value in function.__defaults__ or ()):
        yield Binding(function, "__defaults__", tuple(map(swap, function.__defaults__ or ())))
    if any(id(value) in replacements for value in (function.__kwdefaults__ or {}).values()):
        defaults = {name: swap(value) for name, value in (function.__kwdefaults__ or {}).items()}
        yield Binding(function, "__kwdefaults__", defaults)
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if id(value) in replacements:
            yield Binding(cell, "cell_contents", swap(value))
