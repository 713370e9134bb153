"""The pytest fixture `pyoco_app_testing`. pytest imports this module whenever it starts, so it imports no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyoco_server.app.app import App
    from pyoco_server.testing.block import AppTesting

__all__ = ["pyoco_app_testing"]


@pytest.fixture
def pyoco_app_testing() -> Iterator[Callable[[App], AppTesting]]:
    """A function that takes an app, and returns its testing block, which ends with the test."""
    with contextlib.ExitStack() as blocks:
        yield lambda app: blocks.enter_context(app.testing())
