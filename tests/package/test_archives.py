"""Archives: what is refused whole before anything is written, and what is packed the same way twice."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.errors import InvalidArchive
from pyoco_server.executors.program.archives import ArchiveWriter, entry_name, open_archive, unpack
from support.hostile_archives import HOSTILE, handmade, named

MIB = 1 << 20


def packed(files: dict[str, bytes]) -> bytes:
    out = bytearray()
    with ArchiveWriter(out.extend) as archive:
        for name, data in sorted(files.items()):
            archive.add(name, [data], len(data))
    assert archive.size == len(out)
    assert archive.sha256 == hashlib.sha256(out).hexdigest()
    return bytes(out)


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_archive_is_refused_before_anything_is_written(tmp_path: Path, content: bytes) -> None:
    """GRID-97, P20"""
    into = tmp_path / "home" / "out"
    with pytest.raises(InvalidArchive):
        unpack(io.BytesIO(content), into, bytes_max=2 * MIB, files_max=100)
    assert list(tmp_path.iterdir()) == []


def test_one_bad_entry_among_good_ones_spoils_the_whole(tmp_path: Path) -> None:
    """GRID-97"""
    for names in (("good", "../bad"), ("../bad", "good")):
        with pytest.raises(InvalidArchive, match="leaves the directory"):
            unpack(io.BytesIO(named(*names)), tmp_path / "out", bytes_max=MIB)
    broken = bytearray(packed({"a": b"fine", "b": os.urandom(1000)}))
    broken[-400] ^= 1  # of the last file's bytes
    with pytest.raises(InvalidArchive):
        unpack(io.BytesIO(bytes(broken)), tmp_path / "out", bytes_max=MIB)
    assert list(tmp_path.iterdir()) == []


def test_the_limits_are_exact(tmp_path: Path) -> None:
    """GRID-97: up to 10,000 entries, up to the bytes that are allowed"""
    many = packed({f"{n:05d}": b"" for n in range(10_000)})
    assert len(open_archive(io.BytesIO(many), bytes_max=0).members) == 10_000
    with pytest.raises(InvalidArchive, match="10001 files"):
        unpack(io.BytesIO(packed({f"{n:05d}": b"" for n in range(10_001)})), tmp_path / "x", bytes_max=0)
    content = packed({"a": b"12345", "b": b"67890"})
    assert unpack(io.BytesIO(content), tmp_path / "ten", bytes_max=10) == ["a", "b"]
    with pytest.raises(InvalidArchive, match="unpacks to 10 bytes, and may to 9"):
        unpack(io.BytesIO(content), tmp_path / "x", bytes_max=9)
    assert not (tmp_path / "x").exists()


def test_a_good_archive_is_unpacked_over_what_was_there(tmp_path: Path) -> None:
    """GRID-97, GRID-121"""
    files = {"result.txt": b"42\n", "deep/er/データ.csv": b"1,2\n", "empty": b"", "a b.txt": b"x"}
    for _ in range(2):
        assert unpack(io.BytesIO(packed(files)), tmp_path / "out", bytes_max=MIB) == sorted(files)
        found = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*")}
        assert {name: path.read_bytes() for name, path in found.items() if path.is_file()} == files


def test_an_archive_of_another_tool_is_unpacked_too(tmp_path: Path) -> None:
    """GRID-97"""

    def write(archive: zipfile.ZipFile) -> None:
        archive.mkdir("folder")
        archive.writestr("folder/file", b"data", zipfile.ZIP_STORED)

    assert unpack(io.BytesIO(handmade(write)), tmp_path / "out", bytes_max=MIB) == ["folder/file"]
    assert (tmp_path / "out" / "folder" / "file").read_bytes() == b"data"


def test_a_link_that_lies_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """GRID-97: whoever put it there"""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name, link, target in (("f", "f", outside / "made"), ("d/f", "d", outside)):
        into = tmp_path / link
        into.mkdir()
        (into / link).symlink_to(target)
        with pytest.raises((InvalidArchive, OSError)):
            unpack(io.BytesIO(packed({name: b"evil"})), into, bytes_max=MIB)
    assert list(outside.iterdir()) == []


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 10_000))
def test_whatever_is_changed_in_an_archive_nothing_lands_elsewhere(at: int, value: int, cut: int) -> None:
    """GRID-97, P20"""
    content = bytearray(packed({"inside/a": b"data" * 20, "inside/b": b"more"}))
    content[at % len(content)] = value
    if cut < len(content):
        del content[cut:]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        try:
            unpack(io.BytesIO(bytes(content)), home / "out" / "deep", bytes_max=MIB)
        except InvalidArchive:
            assert list(home.iterdir()) == []
        else:
            assert [path.name for path in home.iterdir()] == ["out"]
            assert [path.name for path in (home / "out").iterdir()] == ["deep"]


def test_the_members_of_an_archive_can_be_read_without_unpacking_it() -> None:
    """GRID-97: as whoever fetches one input of many does"""
    archive = open_archive(io.BytesIO(packed({"a": b"one", "b": b"two"})), bytes_max=MIB)
    assert {member.name: b"".join(archive.pieces_of(member)) for member in archive.members} == {
        "a": b"one",
        "b": b"two",
    }


def test_equal_content_gives_equal_bytes() -> None:
    """GRID-102: fixed times, fixed modes, deflate"""
    files = {"b": b"two" * 1000, "a": b"one", "データ": b""}
    content = packed(files)
    assert content == packed(dict(reversed(files.items())))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["a", "b", "データ"]
        assert archive.testzip() is None
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert entry.compress_type == zipfile.ZIP_DEFLATED


def test_a_file_that_grows_is_cut_at_what_it_had() -> None:
    """GRID-102: a process that left its group may still write"""
    out = bytearray()
    with ArchiveWriter(out.extend) as archive:
        assert archive.add("grows", iter(lambda: b"again", b""), 12) == 12
    with zipfile.ZipFile(io.BytesIO(bytes(out))) as read:
        assert read.read("grows") == b"againagainag"


def test_a_disk_that_is_full_ends_the_writing_at_once() -> None:
    """GRID-101: and nobody tries to write the rest afterwards"""
    calls = []

    def full(data: bytes) -> None:
        calls.append(len(data))
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), ArchiveWriter(full) as archive:
        archive.add("a", [b"x" * 100], 100)
    assert len(calls) == 1


def test_packing_and_unpacking_take_the_same_memory_for_any_size(tmp_path: Path) -> None:
    """GRID-102, GRID-148: streaming, both ways"""
    piece = os.urandom(MIB)
    tracemalloc.start()
    with (tmp_path / "x.zip").open("wb") as file, ArchiveWriter(file.write) as archive:
        archive.add("large", (piece for _ in range(24)), 24 * MIB)
    with (tmp_path / "x.zip").open("rb") as whole:
        unpack(whole, tmp_path / "out", bytes_max=24 * MIB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * MIB
    assert (tmp_path / "out" / "large").stat().st_size == 24 * MIB


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("result.txt", "result.txt"),
        ("a/b c/データ.csv", "a/b c/データ.csv"),
        ("a\\b", "a%5Cb"),
        ("C:x", "C%3Ax"),
        ("deep/C:x", "deep/C:x"),
        (os.fsdecode(b"caf\xe9/\xff"), "caf%E9/%FF"),
        ("100%", "100%"),
        ("line\nbreak", "line\nbreak"),
    ],
)
def test_a_file_is_called_so_that_any_machine_can_unpack_it(tmp_path: Path, path: str, name: str) -> None:
    """GRID-102, GRID-97: one file with an odd name must not make the whole archive useless"""
    assert entry_name(path) == name
    assert unpack(io.BytesIO(packed({name: b"x"})), tmp_path, bytes_max=10) == [name]
