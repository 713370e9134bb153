"""The demonstration, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyoco_server.embedded import die_with
from support.left_behind import standing_in
from support.proofs.report import proof

_SECONDS = 540


@pytest.mark.timeout(600)  # a busy machine needs minutes for it
def test_the_demonstration_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    """P32: GRID-191"""
    folder = tmp_path / "demo"
    folder.mkdir()
    command = [sys.executable, "-m", "pyoco_server.doors.cli.grid", "demo3", "--once", "--base-port", "0"]
    with proof("P32", "the demonstration") as found:
        shown = subprocess.run(
            [*command, "--dir", folder],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            preexec_fn=die_with(os.getpid(), signal.SIGKILL),
        )
        print(shown.stdout, shown.stderr)
        assert shown.returncode == 0
        assert shown.stdout.count("COMPLETED") == 6
        assert "kill -9" in shown.stdout
        assert list(folder.iterdir()) == []
        deadline = time.monotonic() + 60
        while left := standing_in(folder):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        found.note(jobs=6)
