"""Decides what a flow.yaml may call on this worker (DESIGN 7).

There are two checks. Before the import: whether the module is allowed. After the import: whether the object found
there is code of an allowed module, or was only imported by that module for its own use.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from pyoco.core.models import Task
from pyoco.dsl.syntax import TaskWrapper

from pyoco_server.core.flow_file import excerpt
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.errors import CallableRefused
from pyoco_server.executors.flow.paths import is_below
from pyoco_server.executors.flow.plug_ins import PlugIns

__all__ = ["Offer", "homes_of", "package_of"]

#: The engine and this package: no setting allows these.
_RESERVED = frozenset({"pyoco", "pyoco_server"})
#: A function in more layers of decorators than this is not unwrapped.
_LAYERS_MAX = 64


class Offer:
    """The allowed modules. Immutable: another environment has another offer.

    `own`: the worker's flow modules. `allow`: modules that the operator named, including those of the standard library.
    """

    def __init__(self, own: Iterable[str], allow: Iterable[str], environment: Environment = NO_WHEELS) -> None:
        self._own, self._allow, self._environment = frozenset(own), frozenset(allow), environment
        self._wheel_modules = frozenset(environment.modules)

    @functools.cached_property
    def plug_ins(self) -> PlugIns:
        """Return all packages that offer tasks by an entry point."""
        return PlugIns(self._environment.paths)

    @functools.cached_property
    def _offered(self) -> frozenset[str]:
        """Return the worker's own modules and installed task packages. Modules of wheels are allowed separately,
        whatever their entry points name."""
        return self._own | {package_of(plug_in.module) for plug_in in self.plug_ins.installed}

    def check_name(self, task: str, path: str) -> None:
        """Check the name before the import. Raises CallableRefused."""
        module, _, name = path.partition(":")
        parts = module.split(".")
        refusal = f"task {excerpt(task)!r} names {excerpt(path)!r}, which "
        if not all(map(str.isidentifier, [*parts, name])):
            raise CallableRefused(refusal + "is not a module and a name in it, as in my_tasks.mail:send")
        if parts[0] in _RESERVED:
            raise CallableRefused(refusal + "is part of the worker itself")
        prefix = self._prefix_of(module)
        if prefix is None and parts[0] in sys.stdlib_module_names:
            raise CallableRefused(refusal + "belongs to the standard library")
        if prefix is None:
            allow = f"allow it with PYOCO_CALLABLE_ALLOW={package_of(module)}"
            raise CallableRefused(refusal + f"this worker does not offer; {excerpt(allow)}")
        if name.startswith("_") or any(part.startswith("_") for part in parts[prefix.count(".") + 1 :]):
            raise CallableRefused(refusal + "is private: a name that begins with '_' is not on offer")

    def check_target(self, task: str, path: str, target: object) -> None:
        """Check the imported object `target` that the module has under this name. Raises CallableRefused."""
        if isinstance(target, Task | TaskWrapper):  # declared as a task, wherever it comes from
            return
        refusal = f"task {excerpt(task)!r} names {excerpt(path)!r}, which "
        if isinstance(target, types.ModuleType) or not callable(target):
            raise CallableRefused(refusal + "cannot be called")
        module, _, name = path.partition(":")
        if module.partition(".")[0] in sys.stdlib_module_names:  # named by the operator: all public names
            public = getattr(sys.modules.get(module), "__all__", None)
            if public is None or name in public:
                return
        for home in homes_of(target):
            if self._prefix_of(home) is None:
                is_closed = home.partition(".")[0] in _RESERVED | sys.stdlib_module_names
                allow = "" if is_closed else f", or allow it with PYOCO_CALLABLE_ALLOW={excerpt(home)}"
                raise CallableRefused(
                    refusal + f"belongs to {excerpt(home)} and is not offered by this worker; make a task of it{allow}"
                )

    def _prefix_of(self, module: str) -> str | None:
        """Return the allowed module or package that contains the module, or None if it is not allowed."""
        top = module.partition(".")[0]
        if top in _RESERVED:
            return None
        prefixes = [module[:end] for end in range(1, len(module) + 1) if end == len(module) or module[end] == "."]
        prefixes.reverse()
        named = next((prefix for prefix in prefixes if prefix in self._allow), None)
        if named is not None:
            return named
        if top in sys.stdlib_module_names:  # an import finds the standard library, not another module of that name
            return None
        if top in self._wheel_modules:
            package, place = _find_package(module)
            if place is not None and is_below(place, self._environment.paths):
                return package
        return next((prefix for prefix in prefixes if prefix in self._offered), None)


def package_of(module: str) -> str:
    """Return the package of a module: its first part, or more if that is a namespace shared with others."""
    return _find_package(module)[0]


def _find_package(module: str) -> tuple[str, str | None]:
    """Return the package's name and the file of its `__init__`, if it has one. Imports nothing."""
    parts = module.split(".")
    path: list[str] | None = None
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        try:
            spec = _find_spec(name, path)
            portions = list((spec and spec.submodule_search_locations) or ())
        except KeyError:  # a namespace inside one that is not imported: computing its path needs the parent
            path = [str(place) for entry in path or () if (place := Path(entry, parts[depth - 1])).is_dir()]
            continue
        if spec is None:  # not found, so nothing more is known about it
            return (module if depth > 1 else name), None
        if spec.origin is not None or spec.submodule_search_locations is None:
            return name, spec.origin
        path = portions  # a namespace: its parts may come from several places
    return module, None


def _find_spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def homes_of(target: object, layers: int = _LAYERS_MAX) -> Iterator[str]:
    """Yield the modules whose code runs when `target` is called.

    `__module__` is the last resort because it is often wrong: decorators copy it, and libraries change it.
    """
    target = _inmost(target)
    kind = type(target)
    if kind is types.FunctionType:
        yield str(target.__globals__.get("__name__") or target.__module__)  # type: ignore[attr-defined]
    elif kind is types.BuiltinFunctionType:
        owner, name = target.__self__, target.__name__  # type: ignore[attr-defined]
        if owner is None or isinstance(owner, types.ModuleType):
            yield str(target.__module__ or getattr(owner, "__name__", None))
        else:  # a method bound to an object or a class
            bases = (owner if isinstance(owner, type) else type(owner)).__mro__
            yield str(next((base for base in bases if name in vars(base)), object).__module__)
    elif issubclass(kind, type):
        yield from _homes_of_class(target, layers)  # type: ignore[arg-type]
    elif kind.__name__ == "cython_function_or_method":
        yield str(getattr(target, "__module__", None))
    else:
        yield from _homes_of_call(kind, layers)


def _inmost(target: object) -> object:
    """Unwrap partials, bound methods, and decorators that set `__wrapped__`."""
    for _ in range(_LAYERS_MAX):
        if isinstance(target, functools.partial):
            target = target.func
        elif isinstance(target, types.MethodType | staticmethod | classmethod):
            target = target.__func__
        elif (inner := _own_values(target).get("__wrapped__")) is not None:
            target = inner
        else:
            return target
    return None  # no known home


def _own_values(target: object) -> dict[str, object]:
    """Return the object's own attributes. Not by getattr, which an object may override to return anything."""
    try:
        values = object.__getattribute__(target, "__dict__")
    except AttributeError:
        return {}
    return values if isinstance(values, dict) else {}


def _homes_of_class(cls: type, layers: int) -> Iterator[str]:
    """Yield the modules whose code runs when the class is instantiated: its own, and those of bases that take part."""
    yield str(cls.__module__)
    for name in ("__new__", "__init__"):
        owner = next(base for base in cls.__mro__ if name in vars(base))
        if owner is not object:
            yield str(owner.__module__)
    if _owner_of_call(type(cls)) is not type:
        yield from _homes_of_call(type(cls), layers)


def _owner_of_call(kind: type) -> type:
    return next((base for base in kind.__mro__ if "__call__" in vars(base)), kind)


def _homes_of_call(kind: type, layers: int) -> Iterator[str]:
    """Yield the modules of `__call__` for objects of this class. It may be any callable."""
    owner = _owner_of_call(kind)
    call = _inmost(vars(owner).get("__call__"))
    if isinstance(call, types.WrapperDescriptorType):  # written in C
        yield str(owner.__module__)
    elif call is None or not layers:
        yield type(None).__module__  # no known home
    else:
        yield from homes_of(call, layers - 1)
