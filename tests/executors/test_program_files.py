"""The files of programs without a program: owners, removal, what is an output, what a pipe keeps."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyoco_server.executors.program import SAMPLES, outputs, running
from pyoco_server.executors.program.archives import FILES_MAX
from pyoco_server.executors.program.directory import WorkDirectory, empty, make, remove
from pyoco_server.executors.program.leftovers import clean_root
from pyoco_server.executors.program.outputs import Limits, Staged, TooMuch, find_outputs, pack_left
from pyoco_server.executors.program.owners import owner_of
from pyoco_server.executors.program.removal import remove_tree
from pyoco_server.executors.program.running import NotStarted, Tail
from pyoco_server.executors.strays.owners import is_gone, own_text

NOBODY = 65534
JOB = "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01"
NO_INPUTS = Staged("program", {})


@pytest.fixture
def own_user() -> Iterator[Path]:
    """A directory, and a user to whom rights mean something: root may read what nobody may."""
    folder = Path(tempfile.mkdtemp())
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        shutil.rmtree(folder, ignore_errors=True)


def _locked_tree(folder: Path) -> Path:
    top = folder / "jobs" / JOB / "a1"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "secret").write_text("s")
    (top / "seen").write_text("s")
    for path in (top / "a" / "b" / "secret", top / "a" / "b", top / "a", top / "seen", top, top.parent):
        path.chmod(0)
    return top


def test_rights_that_a_program_took_from_itself_do_not_hold_us_up(own_user: Path) -> None:
    """GRID-95, GRID-102: its files are read, and all of it is removed"""
    top = _locked_tree(own_user)
    target = own_user / "x" / "out.zip"
    packed = pack_left(str(top), NO_INPUTS, Limits(1000), str(target))
    assert packed is not None
    assert packed.size == target.stat().st_size
    remove(str(top))
    assert list((own_user / "jobs").iterdir()) == []
    top = _locked_tree(own_user)
    remove(str(top))
    assert list((own_user / "jobs").iterdir()) == []


def test_any_tree_is_removed(tmp_path: Path) -> None:
    """GRID-95: depth, links, names that ours could be, files in the way"""
    top = tmp_path / "top"
    top.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    for name in (".0", ".1", ".2"):
        (top / name).write_text("x")
    for name in (".3", ".4", "a/.0/b", "a/.1", "c/d/e/f", "a/link-to"):
        (top / name).mkdir(parents=True)
    (top / "a" / "up").symlink_to(outside)
    (top / "a" / "link-to" / "self").symlink_to("..")
    (top / "c" / "d" / "precious").hardlink_to(outside / "precious")
    os.mkfifo(top / "c" / "fifo")
    here = os.open(top, os.O_RDONLY)
    for _ in range(1000):  # deeper than Python may call, and longer than a path may be
        os.mkdir("down", dir_fd=here)
        deeper = os.open("down", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    before = len(list(Path("/proc/self/fd").iterdir()))
    remove_tree(str(top))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    remove_tree(str(top))  # nothing is no error
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        remove_tree(str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_an_owner_is_a_process_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-95: pid and start time; a zombie is gone; other containers and nameless ones are given time"""
    now, day = time.time(), 86_400.0
    pid, started, namespace, boot = own_text().split("-")
    assert int(pid) == os.getpid()
    assert not is_gone(own_text(), now - 10 * day)
    assert is_gone(f"{pid}-{int(started) + 1}-{namespace}-{boot}", now)
    assert is_gone(f"999999999-{started}-{namespace}-{boot}", now)
    assert is_gone(f"{pid}-{started}-{namespace}-other", now), "the machine was started since"
    assert not is_gone(f"999999999-{started}-7-{boot}", now - day), "a job may take a day"
    assert is_gone(f"999999999-{started}-7-{boot}", now - 1.1 * day)
    for nameless in ("", "x", "1-2-3", "a-b-c-d"):
        assert not is_gone(nameless, now - 600)
        assert is_gone(nameless, now - 4000)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        about = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        text = f"{child.pid}-{about[19]}-{namespace}-{boot}"
        assert not is_gone(text, now)
        child.kill()
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        assert is_gone(text, now), "killed, and not yet reaped"
    assert is_gone(text, now)


def test_a_directory_says_whose_it_is_in_one_step(tmp_path: Path) -> None:
    """GRID-92, GRID-95"""
    place = make(str(tmp_path), JOB, 3, own_text())
    place.close()
    assert place.path == f"{tmp_path}/{JOB}/a3"
    assert owner_of(place.path) == own_text()
    assert oct(os.lstat(place.path).st_mode & 0o7777) == "0o700"
    remove(place.path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / JOB).symlink_to(tmp_path / "elsewhere")  # as another program could have left it
    make(str(tmp_path), JOB, 1, own_text()).close()
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_left_in_a_directory_still_has_an_owner(tmp_path: Path) -> None:
    """GRID-95: a worker that dies while it packs leaves something that the next one may remove"""
    place = make(str(tmp_path), JOB, 1, own_text())
    place.write("in", b"data")
    (Path(place.path) / "out").write_text("x")
    assert not empty(place, {"in": (4, "")}, "program")
    assert owner_of(place.path) == own_text()
    assert [path.name for path in Path(place.path).iterdir()] == ["out"]
    (Path(place.path) / "out").unlink()
    assert empty(place, {}, "program")
    place.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", ["a1.owner", "a1/.owner"], ids=["this version", "the one before"])
def test_a_directory_whose_owner_is_gone_is_removed(tmp_path: Path, link: str) -> None:
    """GRID-95"""
    (tmp_path / JOB / "a1" / "tmp").mkdir(parents=True)
    (tmp_path / JOB / link).symlink_to("1-1-1-1")
    assert clean_root(str(tmp_path), lambda path, error: pytest.fail(f"{path}: {error}")) == 1
    assert list(tmp_path.iterdir()) == []


def test_names_of_owners_without_a_directory_are_removed(tmp_path: Path) -> None:
    """GRID-95: a crash between two removals"""
    (tmp_path / JOB).mkdir()
    (tmp_path / JOB / "a1.owner").symlink_to("1-1-1-1")
    os.utime(tmp_path / JOB, (1, 1))
    assert clean_root(str(tmp_path), lambda path, error: pytest.fail(f"{path}: {error}")) == 0
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_ours_to_tidy_is_tidied(tmp_path: Path) -> None:
    """GRID-95: other names in the root stay, whatever they are"""
    for name in (".spool/w1", ".worker-1", "notes", f"{JOB}/notes", f"{JOB}/a1", f"{JOB}/a2", ".packed/1-1-1-1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / JOB / "a1" / ".owner").symlink_to("1-1-1-1")
    make(str(tmp_path), JOB, 4, own_text()).close()
    told: list[str] = []
    assert clean_root(str(tmp_path), lambda path, _: told.append(path)) == 1
    assert told == []
    left = sorted(path.name for path in (tmp_path / JOB).iterdir())
    assert left == ["a2", "a4", "a4.owner", "notes"], "a2 is too young"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".packed", ".spool", ".worker-1", "notes", JOB])
    assert list((tmp_path / ".packed").iterdir()) == []
    os.utime(tmp_path / JOB / "a2", (1, 1))
    assert clean_root(str(tmp_path), lambda path, _: told.append(path)) == 1


def test_the_limits_of_outputs_are_exact(tmp_path: Path) -> None:
    """GRID-102: files, bytes; and what is no file may not take for ever either"""
    assert (Limits(1).files_max, FILES_MAX) == (10_000, 10_000)
    for number in range(5):
        (tmp_path / f"f{number}").write_bytes(b"12")
    limits = Limits(bytes_max=10, files_max=5, entries_max=8)
    assert len(find_outputs(str(tmp_path), NO_INPUTS, limits)) == 5
    with pytest.raises(TooMuch, match="more than 9 bytes"):
        find_outputs(str(tmp_path), NO_INPUTS, Limits(bytes_max=9, files_max=5))
    with pytest.raises(TooMuch, match="more than 4 files"):
        find_outputs(str(tmp_path), NO_INPUTS, Limits(bytes_max=10, files_max=4))
    for number in range(4):
        (tmp_path / f"l{number}").symlink_to("x")
    with pytest.raises(TooMuch):
        find_outputs(str(tmp_path), NO_INPUTS, limits)


def test_names_that_are_one_in_an_archive_are_told_apart(tmp_path: Path) -> None:
    """GRID-97, GRID-102: an entry that is there twice would spoil the whole"""
    import zipfile

    for name in ("a\\b", "a%5Cb", "a%5Cb~"):
        (tmp_path / name).write_text(name)
    packed = pack_left(str(tmp_path), NO_INPUTS, Limits(1000), f"{tmp_path}/out.zip")
    assert packed is not None
    with zipfile.ZipFile(packed.path) as archive:
        assert sorted(archive.read(name).decode() for name in archive.namelist()) == sorted(["a\\b", "a%5Cb", "a%5Cb~"])
        assert len(set(archive.namelist())) == 3


def test_a_file_that_goes_while_it_is_packed_is_passed_over(tmp_path: Path) -> None:
    """GRID-102: a process that left its group may still be at work"""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "stays").write_text("x")
    packed = outputs.pack(str(tmp_path / "in"), [("gone", 5), ("stays", 1)], f"{tmp_path}/out.zip")
    assert packed.size > 0


def test_a_tail_keeps_the_end_and_knows_what_it_lost() -> None:
    """GRID-100"""
    for chunks, kept, is_truncated in (
        ([b"abc"], b"abc", False),
        ([b"abcd", b"efgh"], b"abcdefgh", False),
        ([b"abcd", b"efgh", b"i"], b"bcdefghi", True),
        ([b"abcd", b"efghijkl"], b"efghijkl", True),
        ([b"x" * 30], b"x" * 8, True),
        ([b"x" * 30, b"ab"], b"x" * 6 + b"ab", True),
        ([], b"", False),
    ):
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        seen: list[bytes] = []
        tail = Tail(ours, 8, seen.append)
        for chunk in chunks:
            os.write(theirs, chunk)
            assert tail.read()
        assert (tail.read(), tail.is_open) == (False, True)
        os.close(theirs)
        tail.drain()
        os.close(ours)
        assert (tail.take(), tail.is_truncated, tail.is_open, seen) == (kept, is_truncated, False, chunks)


@pytest.mark.parametrize(
    ("number", "flags", "code", "text"),
    [
        (errno.ENOEXEC, 0, "EXEC_NOT_FOUND", "no program for this machine"),
        (errno.EACCES, os.ST_NOEXEC, "WORKER_ERROR", "mounted noexec"),
        (errno.EACCES, 0, None, ""),
        (errno.EAGAIN, 0, None, ""),
        (errno.ENOMEM, 0, None, ""),
    ],
)
def test_why_a_program_did_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, flags: int, code: str | None, text: str
) -> None:
    """GRID-101: what would fail again is not found; what is the worker's fault is tried again"""

    def spawn(*_: Any, **__: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_spawn", spawn)
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_flag=flags))
    place = WorkDirectory(str(tmp_path), 0)
    if code is None:
        with pytest.raises(OSError, match=os.strerror(number)):
            running._posix_spawn(("/x",), {}, (1, 2), place)
    else:
        with pytest.raises(NotStarted, match=text) as raised:
            running._posix_spawn(("/x",), {}, (1, 2), place)
        assert raised.value.code == code


def test_the_samples_are_all_there_and_need_no_executable_bit() -> None:
    """GRID-192: an installer may take it away"""
    assert {path.stem for path in SAMPLES.iterdir()} == {"calcA", "sleepn", "failn", "bigout", "forker", "echoenv"}
    assert {path.suffix for path in SAMPLES.iterdir()} <= {".sh", ".py"}
    import tomllib

    project = Path(__file__).parents[2] / "pyproject.toml"
    with contextlib.suppress(FileNotFoundError):
        data = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]
        assert "executors/program/samples/*" in data["pyoco_server"]
