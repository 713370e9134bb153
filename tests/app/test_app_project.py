"""`pyoco-server new`, and the fixture for pytest, in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pyoco_server.doors.cli.server import cli
from pyoco_server.doors.cli.shell import outcome
from support.documented import with_info

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
PLUGIN = "pyoco_server.testing.pytest_plugin"
#: pytest loads this before it collects tests.
CONFTEST = """
import sys

loaded = {name for name in sys.modules if name.startswith("pyoco_server")}
assert loaded == {"pyoco_server", "pyoco_server.testing", "pyoco_server.testing.pytest_plugin"}, loaded
"""


def test_a_new_project_passes_its_own_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """APP-15, APP-17: so do the tests of the guide; pytest imports the fixture, and no more."""
    monkeypatch.chdir(tmp_path)
    assert outcome(cli, "pyoco-server", ["new", "reports"]) == 0
    assert "cd reports && pytest" in capsys.readouterr().out
    project = tmp_path / "reports"
    assert {path.name for path in project.iterdir()} == {"flows.py", "test_flows.py", "README.md"}
    flows, *tests = [each.text for each in with_info("python") if each.name == "docs/guides/testing.md"]
    (project / "my_flows.py").write_text(flows)
    (project / "test_page.py").write_text("\n".join(tests))
    (project / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", "-W", "error"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}  # it may not be installed
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_the_fixture_is_offered_to_every_pytest() -> None:
    """APP-15"""
    assert tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["pytest11"] == {"pyoco_server": PLUGIN}


@pytest.mark.parametrize("name", ["full", "preview", "two words", "a/-b"])
def test_a_directory_that_cannot_be_created_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """APP-17"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    assert outcome(cli, "pyoco-server", ["new", name]) == 1
    assert Path(name).name in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "notes.txt"]
