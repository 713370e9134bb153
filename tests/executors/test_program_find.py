"""Which file a name means."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pyoco_server.executors.program.find import (
    ProgramNotFound,
    find,
    names_in,
)


def _program(folder: Path, name: str, mode: int = 0o755, text: str = "#!/bin/sh\n") -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def _found(folder: Path, name: str) -> tuple[str, bool]:
    """Its file, and whether it has an interpreter."""
    found = find(str(folder), name)
    os.close(found.descriptor)
    return found.file_name, bool(found.interpreter)


def test_the_first_of_four_names_that_is_a_file_wins(tmp_path: Path) -> None:
    """GRID-89, GRID-91"""
    for name, has_interpreter in (("calc.sh", True), ("calc.py", True), ("calc.exe", False), ("calc", False)):
        _program(tmp_path, name, 0o644 if has_interpreter else 0o755)
        assert _found(tmp_path, "calc") == (name, has_interpreter)


@pytest.mark.parametrize("what", ["directory", "fifo", "socket", "dangling link", "link to itself"])
def test_what_is_no_file_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """GRID-89: and nothing waits for a FIFO to be written to."""
    path = tmp_path / "calc"
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            monkeypatch.chdir(tmp_path)  # a path that long does not fit a socket
            listener.bind("calc")
    else:
        path.symlink_to("nowhere" if what == "dangling link" else "calc")
    with pytest.raises(ProgramNotFound, match="no program calc"):
        find(str(tmp_path), "calc")
    _program(tmp_path, "calc.sh")
    assert _found(tmp_path, "calc") == ("calc.sh", True)


def test_a_link_must_end_inside(tmp_path: Path) -> None:
    """GRID-89, section 26.1: a link out of the directory is EXEC_NOT_FOUND"""
    exe, outside = tmp_path / "exe", _program(tmp_path, "outside")
    (exe / "versions").mkdir(parents=True)
    _program(exe / "versions", "calc-2")
    (exe / "inside").symlink_to("versions/calc-2")
    (exe / "out").symlink_to(outside)
    (exe / "twice").symlink_to("out")
    (exe / "up").symlink_to("../exe/../outside")
    (exe / "there").symlink_to(tmp_path)
    (exe / "through").symlink_to("there/outside")
    assert _found(exe, "inside") == ("inside", False)
    for name in ("out", "twice", "up", "through"):
        with pytest.raises(ProgramNotFound, match="leaves the directory"):
            find(str(exe), name)


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    """GRID-89"""
    (tmp_path / "real").mkdir()
    _program(tmp_path / "real", "calc")
    (tmp_path / "real" / "other").symlink_to("calc")
    (tmp_path / "exe").symlink_to("real")
    assert _found(tmp_path / "exe", "calc") == ("calc", False)
    assert _found(tmp_path / "exe", "other") == ("other", False)


def test_a_program_that_is_not_executable_is_not_found(tmp_path: Path) -> None:
    """GRID-91, section 26.1: not passed over, for another of the same name is another program"""
    _program(tmp_path, "calc", 0o644)
    _program(tmp_path, "calc.sh")
    with pytest.raises(ProgramNotFound, match="calc is not executable"):
        find(str(tmp_path), "calc")


def test_a_missing_directory_has_no_programs(tmp_path: Path) -> None:
    """GRID-89"""
    with pytest.raises(ProgramNotFound, match="no program calc"):
        find(str(tmp_path / "none"), "calc")


def test_the_programs_of_a_directory_are_known_by_name(tmp_path: Path) -> None:
    """GRID-89"""
    for name in ("calc", "calc.py", "render.sh", "x.exe", ".hidden", "a b", "notes.txt"):
        (tmp_path / name).touch()
    assert names_in(str(tmp_path)) == ("calc", "render", "x")
    assert names_in(str(tmp_path / "none")) == ()
