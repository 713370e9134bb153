"""What a retry policy learns about an exception."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyoco_server.core.retries.matching import Failure, raised

__all__ = ["failure_of"]


def failure_of(error: BaseException) -> Failure:
    """Return the names of the class of an exception and of all its bases. Never raises."""
    try:
        return raised(_names_of(type(error)), is_memory=isinstance(error, MemoryError))
    except Exception:  # noqa: BLE001  (a class of tasks may do anything when it is asked for its name)
        return raised(["builtins.Exception"])


def _names_of(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        if each is object:
            continue
        module, name = str(each.__module__), each.__qualname__
        yield f"{module}.{name}"
        # Packages export the classes of their modules: requests.exceptions.ConnectionError is requests.ConnectionError.
        while "." in module:
            module = module.rpartition(".")[0]
            if vars(sys.modules.get(module, object)).get(name) is each:
                yield f"{module}.{name}"
