"""Collecting the tests, once in each test process of pytest-xdist, in less processor time."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["import_share", "without_garbage_collector"]


@contextlib.contextmanager
def without_garbage_collector() -> Iterator[None]:
    """Collecting allocates most of a million objects, nearly all of which stay. The garbage collector would traverse
    them dozens of times: a quarter of the processor time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def import_share(config: pytest.Config) -> None:
    """In a new clone, pytest rewrites the assertions of each test module when it is first imported, and keeps the
    result beside it. All test processes import all modules in the same order, at the same time, and would all do this
    work. So each begins with a share of the modules and finds the others' results when it collects the rest."""
    worker: dict[str, object] | None = getattr(config, "workerinput", None)
    if worker is None:
        return
    number, count = int(str(worker["workerid"]).removeprefix("gw")), int(str(worker["workercount"]))
    for path in _test_modules(config)[number::count]:
        if any(path.parent.glob(f"__pycache__/{path.stem}.*-pytest-*.pyc")):
            continue
        root, name = path.parent, path.stem
        while (root / "__init__.py").exists():
            root, name = root.parent, f"{root.name}.{name}"
        sys.path.insert(0, str(root))  # as pytest does
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection imports it again, and reports that
            importlib.import_module(name)


def _test_modules(config: pytest.Config) -> list[Path]:
    """Those in the folders that are to be collected."""
    folders = [config.invocation_params.dir / arg for arg in config.args]
    return sorted(path for folder in folders if folder.is_dir() for path in folder.rglob("test_*.py"))
