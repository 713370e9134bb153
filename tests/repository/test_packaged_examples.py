"""The example flows are part of the built package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIND = """
from pyoco_server.doors.cli.plan import _examples_home
import sys
sys.path.insert(0, str(_examples_home()))
from examples.flows import __file__, resolve
print(__file__, resolve("hello").name)
"""


def test_an_installed_package_has_the_examples(tmp_path: Path) -> None:
    """CLI-19: from an empty directory, with nothing but the package."""
    built, empty = tmp_path / "built", tmp_path / "empty"
    empty.mkdir()
    arguments = ["setup.py", "--quiet", "build", "--build-base", str(tmp_path / "base"), "--build-lib", str(built)]
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True, timeout=200)
    found = subprocess.run(
        [sys.executable, "-P", "-c", FIND],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(built)},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert found.stdout.split() == [str(built / "pyoco_server" / "with_examples" / "examples" / "flows.py"), "hello"]
