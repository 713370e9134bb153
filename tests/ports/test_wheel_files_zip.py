"""Zip archives that are not what they seem: cut, glued together, overlapping, lying, too large."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import unicodedata
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.core.wheel import read_wheel_name
from pyoco_server.errors import InvalidWheel
from pyoco_server.ports.wheel_files.archive import ArchiveWheelFiles
from pyoco_server.ports.wheel_files.paths import path_problem
from support.wheels import pack, wheel_files, with_record, write_wheel
from support.zip_edits import (
    GOOD,
    INFO,
    MODULE,
    OneWay,
    a_wheel_with,
    check,
    edited,
    entries_of,
    numbers_of,
    refused,
    unpacked,
    wide,
    with_extra,
)


class TestHonestArchives:
    def test_may_be_stored_without_compression(self) -> None:
        check(pack(with_record(wheel_files(), INFO), zipfile.ZIP_STORED))

    @pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    @pytest.mark.parametrize("is_wide", [False, True])
    def test_may_have_their_sizes_behind_the_files(self, compression: int, is_wide: bool) -> None:
        target = OneWay()
        with zipfile.ZipFile(target, "w", compression) as archive:
            for path, data in with_record(wheel_files(), INFO).items():
                with archive.open(path, "w", force_zip64=is_wide) as file:
                    file.write(data)
        check(bytes(target.data))

    def test_may_be_wide_where_they_need_not(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in with_record(wheel_files(), INFO).items():
                with archive.open(path, "w", force_zip64=True) as file:
                    file.write(data)
        check(buffer.getvalue())

    def test_may_tell_small_numbers_twice(self) -> None:
        """As Bazel writes them, and so the wheels of protobuf."""
        size, packed, _ = numbers_of(GOOD, MODULE)
        check(with_extra(GOOD, MODULE, wide(size, packed), "header"))

    @pytest.mark.parametrize("fields", [["size"], ["packed"], ["offset"], ["size", "offset"], ["size", "packed"]])
    def test_may_tell_any_number_in_the_extra_field(self, fields: list[str]) -> None:
        numbers = dict(zip(("size", "packed", "offset"), numbers_of(GOOD, MODULE), strict=True))
        full = edited(GOOD, MODULE, "directory", **dict.fromkeys(fields, 0xFFFFFFFF))
        content = with_extra(full, MODULE, wide(*(numbers[field] for field in fields)))
        check(content)
        assert unpacked(content) == unpacked(GOOD)

    def test_may_have_times_and_owners_beside(self) -> None:
        extra = struct.pack("<HHBL", 0x5455, 5, 1, 0) + struct.pack("<HHL", 0x7875, 4, 0)
        check(with_extra(with_extra(GOOD, MODULE, extra), MODULE, extra, "header"))

    @pytest.mark.parametrize("full", [range(6), range(4), (2, 3), ()])
    def test_may_end_as_very_large_ones_do(self, full: Iterable[int]) -> None:
        check(with_wide_end(GOOD, full))

    def test_of_any_size_take_the_same_memory(self, tmp_path: Path) -> None:
        path = write_wheel(tmp_path, modules={"my_tasks/zeros": bytes(60_000_000)}, pad_bytes=20_000_000)
        files = ArchiveWheelFiles(100_000_000)
        tracemalloc.start()
        with path.open("rb") as file:
            files.check(file, read_wheel_name(path.name))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 6_000_000


def with_wide_end(content: bytes, full: Iterable[int] = range(6), /, **odd: int) -> bytes:
    """The same archive with the end record of those with more than 65,535 files or 4 GiB.

    `full`: which numbers of the narrow record point to it; `narrow`: what the others are more than they should."""
    count, size, at = struct.unpack_from("<HLL", content, len(content) - 12)
    end = len(content) - 22
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, odd.get("count", count), size, at)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, odd.get("at", end), odd.get("disks", 1))
    numbers = [number + odd.get("narrow", 0) for number in (0, 0, count, count, size, at)]
    for place in full:
        numbers[place] = 0xFFFF if place < 4 else 0xFFFFFFFF
    return content[:end] + record + locator + struct.pack("<4s4H2LH", b"PK\5\6", *numbers, 0)


def shifted(content: bytes, at: int) -> bytes:
    """The same archive with other bytes at one place, and every offset told rightly."""
    odd = bytearray(content[:at] + b"hidden" + content[at:])
    directory = struct.unpack_from("<L", content, len(content) - 6)[0]
    struct.pack_into("<L", odd, len(odd) - 6, directory + 6)
    for _, in_directory, header in entries_of(content):
        struct.pack_into("<L", odd, in_directory + 6 + 42, header + 6 if header >= at else header)
    return bytes(odd)


class TestDamage:
    def test_every_cut_is_refused(self) -> None:
        """Truncated wheels."""
        for end in range(len(GOOD)):
            refused(GOOD[:end])

    def test_every_missing_beginning_is_refused(self) -> None:
        for begin in range(1, len(GOOD)):
            refused(GOOD[begin:])

    def test_every_other_byte_is_refused_or_means_nothing(self) -> None:
        """Dates, permissions and versions of tools may differ; a name, a byte or a place may not."""
        files, harmless = unpacked(GOOD), 0
        for at in range(len(GOOD)):
            for change in (1, 0x80):
                odd = bytearray(GOOD)
                odd[at] ^= change
                try:
                    check(bytes(odd))
                except InvalidWheel:
                    continue
                assert unpacked(bytes(odd)) == files
                harmless += 1
        assert harmless < len(GOOD) * 2 // 4

    @pytest.mark.parametrize("junk", [b"x", b"#!/bin/sh\n", GOOD, b"\0" * 70_000])
    def test_nothing_comes_before_or_after(self, junk: bytes) -> None:
        refused(junk + GOOD)
        refused(GOOD + junk)

    def test_a_comment_is_something_that_comes_after(self) -> None:
        refused(GOOD[:-2] + b"\5\0hello", "something follows it")
        refused(GOOD[:-2] + b"\5\0", "something follows it")

    def test_nothing_lies_before_or_between_the_files(self) -> None:
        """Also where every place is told rightly: such a file may be a program to one reader, a wheel to another."""
        headers = {name: header for name, _, header in entries_of(GOOD)}
        refused(shifted(GOOD, 0), "something before the zip archive")
        refused(shifted(GOOD, headers[f"{INFO}/METADATA"]), f"something behind '{MODULE}'")
        refused(shifted(GOOD, struct.unpack_from("<L", GOOD, len(GOOD) - 6)[0]), "something behind '.*RECORD'")

    def test_nothing_lies_behind_the_directory(self) -> None:
        size = struct.unpack_from("<L", GOOD, len(GOOD) - 10)[0]
        refused(GOOD[:-22] + b"junk" + GOOD[-22:], "not a whole zip archive")
        end = GOOD[-22:-10] + struct.pack("<L", size + 4) + GOOD[-6:]
        refused(GOOD[:-22] + b"junk" + end, "the directory of the zip archive is damaged")

    @pytest.mark.parametrize("odd", [{"count": 1}, {"count": 99}, {"at": 0}, {"disks": 2}])
    def test_a_wide_end_that_disagrees_is_refused(self, odd: dict[str, int]) -> None:
        refused(with_wide_end(GOOD, **odd), "not a whole zip archive")

    @pytest.mark.parametrize("full", [set(range(6)) - {odd} for odd in range(6)], ids=str)
    def test_a_wide_end_beside_a_narrow_one_that_differs_is_refused(self, full: set[int]) -> None:
        """Some readers take the wide one wherever there is one, others only for a number that is full."""
        refused(with_wide_end(GOOD, full, narrow=1), "not a whole zip archive")

    def test_a_wide_end_at_another_place_is_refused(self) -> None:
        refused(GOOD[:-22] + struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1) + GOOD[-22:], "not a whole zip archive")

    @given(st.binary(max_size=200))
    def test_whatever_bytes_it_is_it_is_refused(self, data: bytes) -> None:
        refused(data)

    @settings(max_examples=150, deadline=None)
    @given(st.integers(0, 2**32))
    def test_whatever_is_spliced_into_it_it_is_refused_or_the_same(self, seed: int) -> None:
        choice = random.Random(seed)
        odd = bytearray(GOOD)
        for _ in range(choice.randint(1, 4)):
            at, size = choice.randrange(len(odd)), choice.randrange(30)
            other = choice.randrange(len(odd))
            odd[at : at + size] = odd[other : other + choice.choice([size, choice.randrange(30)])]
        try:
            check(bytes(odd))
        except InvalidWheel:
            return
        assert unpacked(bytes(odd)) == unpacked(GOOD)


class TestNames:
    @pytest.mark.parametrize(
        "path",
        [
            *("../x", "a/../../x", "a/..", "/x", "//x", "C:/x", "c:x", "..\\x", "\\\\host\\x", "a\\b"),
            *("a\0b", "a\nb", "a\x7fb", "a\u202eb", "\u3000", "a//b", "./a", "a/./b", ".", "a./b", "a /b", "a/b."),
            *("x" * 256, "ä" * 128, "a/" * 32 + "b"),
        ],
    )
    def test_that_leave_their_directory_or_hide_something_are_refused(self, path: str) -> None:
        """Zip-slip."""
        assert path_problem(path)

    @pytest.mark.parametrize(
        "path",
        ["a", "a/b.py", "a/", "..a", "a..b/c", "...a", "a b/c d", "数/表.csv", "ab:c", "x" * 255, "a/" * 31 + "b"],
    )
    def test_that_stay_inside_are_taken(self, path: str) -> None:
        assert path_problem(path) is None

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("../evil.py", "'../evil.py' leaves the directory"),
            ("/evil.py", "'/evil.py' leaves the directory"),
            ("C:/evil.py", "'C:/evil.py' leaves the directory"),
            ("a\\evil.py", "has a backslash or a control character"),
            ("evil\n.py", "has a backslash or a control character"),
            ("a//evil.py", "has a part that is empty"),
        ],
    )
    def test_that_leave_their_directory_are_refused_in_a_wheel(self, path: str, message: str) -> None:
        """Zip-slip, also when RECORD lists it."""
        refused(pack(with_record({path: b"x", **wheel_files()}, INFO)), message)

    def test_with_a_zero_byte_are_refused(self) -> None:
        """Python itself ends a name there, so that it is not the name that was looked at."""
        content = pack(with_record({"evil_py": b"x", **wheel_files()}, INFO))
        refused(content.replace(b"evil_py", b"evil\0py"), "control character")

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("a.py", "a.py"),
            ("a.py", "A.PY"),
            ("straße.py", "STRASSE.py"),
            (unicodedata.normalize("NFC", "é.py"), unicodedata.normalize("NFD", "é.py")),
            ("folder", "folder/a.py"),
            ("Folder", "folder/deep/a.py"),
            ("folder/", "FOLDER/"),
        ],
    )
    def test_that_are_one_on_some_systems_are_refused(self, one: str, other: str) -> None:
        def write(archive: zipfile.ZipFile) -> None:
            for path in (one, "folder!", "folder-x", other):  # what sorts between them
                archive.writestr(zipfile.ZipInfo(path), b"" if path.endswith("/") else b"x")

        refused(a_wheel_with(write), "would be the same file|would lie in it")

    def test_that_are_not_utf8_are_refused(self) -> None:
        content = pack(with_record({"evil_py": b"x", **wheel_files()}, INFO))
        refused(content.replace(b"evil_py", b"evil\xffpy"), "must be UTF-8, marked so")

    def test_that_are_too_long_are_refused(self) -> None:
        content = a_wheel_with(lambda archive: archive.writestr("a/" * 3000, b""))
        refused(content, "has 1 to 4096 bytes, not 6000")
