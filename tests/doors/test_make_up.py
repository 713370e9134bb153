"""`make up`, as make sees it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from pyoco_server.doors.cli import server, shell

UP = Path(__file__).parents[2] / "tools" / "up.py"


@pytest.mark.parametrize(("code", "ended"), [(130, 0), (0, 0), (1, 1), (3, 3)])
def test_ctrl_c_is_no_error_to_make(code: int, ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-13"""
    monkeypatch.setattr(shell, "outcome", lambda command, name: code if command is server.cli else None)
    monkeypatch.setattr(shell, "refuse_memory_stores", lambda: None)  # it holds for the whole process
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(UP), run_name="__main__")
    assert end.value.code == ended
