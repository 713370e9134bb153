"""What `make test` makes of a test that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "tools" / "suite.py"

#: The first number fail each time, the second one only the first time.
_TESTS = """\
from pathlib import Path
import pytest

@pytest.mark.parametrize("place", range({broken}))
def test_broken(place):
    assert place < 0

@pytest.mark.parametrize("place", range({unsteady}))
def test_unsteady(place):
    begun = Path(f"begun-{{place}}")
    is_first = not begun.exists()
    begun.touch()
    assert not is_first

def test_good():
    assert True
"""


def run(folder: Path, *, broken: int = 0, unsteady: int = 0, tests: str = _TESTS) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(tests.format(broken=broken, unsteady=unsteady))
    command = [sys.executable, str(SUITE), "-q", "-p", "xdist"]
    quick = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # most of a start is imports of other plug-ins
    done = subprocess.run(command, cwd=folder, env=quick, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_suite_without_a_failure_is_run_once(tmp_path: Path) -> None:
    code, told = run(tmp_path)
    assert code == 0
    assert "1 passed" in told
    assert "once more" not in told.lower()


def test_what_passes_alone_is_forgiven_and_named(tmp_path: Path) -> None:
    code, told = run(tmp_path, unsteady=2)
    assert code == 0
    first, second = told.split("Once more, alone")
    assert "2 failed, 1 passed" in first
    assert "2 passed" in second
    unsteady = second.split("UNSTEADY")[1]
    assert "test_it.py::test_unsteady[0]\ntest_it.py::test_unsteady[1]\n" in unsteady


def test_what_fails_alone_too_has_failed(tmp_path: Path) -> None:
    code, told = run(tmp_path, broken=1, unsteady=1)
    assert code == 1
    assert "1 failed, 1 passed" in told.split("Once more, alone")[1]
    assert "UNSTEADY" not in told


@pytest.mark.parametrize("tests", [_TESTS, "def test_nothing(:\n"], ids=["more than a few", "no Python"])
def test_no_accident_is_not_asked_again(tmp_path: Path, tests: str) -> None:
    code, told = run(tmp_path, unsteady=4, tests=tests)
    assert code != 0
    assert "Once more, alone" not in told
