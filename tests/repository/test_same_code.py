"""The tool that shows that a change of prose changes no code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BEFORE = '''"""Old words."""
def work(log):
    """Old words."""
    log.info("old words", run_id=1)  # old words
    return "value"
'''


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "same_code.py"
    spec = importlib.util.spec_from_file_location("same_code", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_comments_and_log_messages_are_prose(tool: ModuleType) -> None:
    after = BEFORE.replace("old words", "new words").replace("Old words", "New words")
    assert tool.code_of(after) == tool.code_of(BEFORE)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"value"', '"other"'), ("run_id=1", "run_id=2"), ("log.info", "log.error"), ("def work", "def play")],
)
def test_everything_else_is_code(tool: ModuleType, old: str, new: str) -> None:
    assert tool.code_of(BEFORE.replace(old, new)) != tool.code_of(BEFORE)
