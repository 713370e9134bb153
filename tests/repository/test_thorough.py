"""The list of long tests is true, and each part of it is about a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.thorough import THOROUGH, is_thorough

TESTS = Path(__file__).parents[1]
PARTS = [(file, part) for file, parts in THOROUGH.items() for part in parts or ("",)]


@pytest.mark.parametrize(("file", "part"), PARTS)
def test_what_is_left_out_exists(file: str, part: str) -> None:
    """A name that was changed would bring its test back unnoticed."""
    words = [word for word in re.split(r"[\[\]]", part) if word]
    text = (TESTS / file).read_text()
    if "[" in part:  # a parameter may be named by a shared helper
        shared = [*TESTS.glob("*.py"), *(TESTS / "support").rglob("*.py")]
        text += "".join(path.read_text() for path in shared)
    assert all(word in text for word in words)


def test_a_test_is_thorough_by_its_file_its_name_or_its_parameter() -> None:
    assert is_thorough("tests/system/test_chaos_nats.py::test_any")
    assert is_thorough("tests/system/test_ocr_runs.py::test_any[postgres]")
    assert not is_thorough("tests/system/test_ocr_runs.py::test_any[sqlite]")
    assert not is_thorough("tests/core/test_states.py::test_any[postgres]")


def test_most_files_of_each_folder_stay() -> None:
    for folder in {file.partition("/")[0] for file in THOROUGH if "/" in file}:
        whole = {file for file, parts in THOROUGH.items() if file.startswith(f"{folder}/") and not parts}
        assert len(whole) < len(list((TESTS / folder).glob("test_*.py"))) / 2
