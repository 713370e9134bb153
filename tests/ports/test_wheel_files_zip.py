"""Zip archives that are not what they seem: cut, glued together, overlapping, lying, too large."""

from __future__ import annotations

import io
import random
import stat
import struct
import tracemalloc
import unicodedata
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.core import zip_archive
from pyoco_server.core.wheel import read_wheel_name
from pyoco_server.core.zip_archive import ZipArchive
from pyoco_server.errors import InvalidWheel
from pyoco_server.ports.wheel_files.archive import ArchiveWheelFiles
from pyoco_server.ports.wheel_files.paths import path_problem
from pyoco_server.ports.wheel_files.second_reader import check_agreement
from support.wheels import build_wheel, dist_info_of, pack, wheel_files, with_record, write_wheel

NAME, GOOD = build_wheel(entry_points={"pyoco.tasks": {"one": "my_tasks:one"}})
INFO = dist_info_of()
MODULE = "my_tasks/__init__.py"

#: Where a field lies in an entry of the directory, in an entry's own header, and how wide it is.
FIELDS = {
    "flags": (8, 6, "<H"),
    "method": (10, 8, "<H"),
    "crc": (16, 14, "<L"),
    "packed": (20, 18, "<L"),
    "size": (24, 22, "<L"),
    "attributes": (38, None, "<L"),
    "offset": (42, None, "<L"),
}


def check(content: bytes, unpacked_bytes_max: int = 10_000_000) -> None:
    ArchiveWheelFiles(unpacked_bytes_max).check(io.BytesIO(content), read_wheel_name(NAME))


def refused(content: bytes, message: str | None = None) -> None:
    with pytest.raises(InvalidWheel, match=message):
        check(content)


def unpacked(content: bytes) -> dict[str, bytes]:
    """As the standard library reads it, and so pip."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def entries_of(content: bytes) -> Iterator[tuple[str, int, int]]:
    """Of each file: name, where its entry in the directory is, and where its own header is."""
    at = struct.unpack_from("<L", content, len(content) - 6)[0]
    while content[at : at + 4] == b"PK\1\2":
        name_size, extra_size, comment_size = struct.unpack_from("<3H", content, at + 28)
        name = content[at + 46 : at + 46 + name_size].decode()
        yield name, at, struct.unpack_from("<L", content, at + 42)[0]
        at += 46 + name_size + extra_size + comment_size


def edited(content: bytes, path: str, where: str = "both", **values: int) -> bytes:
    """The same archive, with other numbers about one file: in the "directory", in its own "header", or in both."""
    data = bytearray(content)
    [(in_directory, in_header)] = [places for name, *places in entries_of(content) if name == path]
    for field, value in values.items():
        directory_offset, header_offset, form = FIELDS[field]
        if where != "header":
            struct.pack_into(form, data, in_directory + directory_offset, value)
        if where != "directory" and header_offset is not None:
            struct.pack_into(form, data, in_header + header_offset, value)
    return bytes(data)


def with_extra(content: bytes, path: str, extra: bytes, where: str = "directory") -> bytes:
    """The same archive with an extra field about one file: in the "directory", or in its own "header"."""
    [(in_directory, in_header)] = [places for name, *places in entries_of(content) if name == path]
    size, at = struct.unpack_from("<LL", content, len(content) - 10)
    fixed, begin = (46, in_directory) if where == "directory" else (30, in_header)
    data = bytearray(content)
    struct.pack_into("<H", data, begin + fixed - (16 if where == "directory" else 2), len(extra))
    if where == "directory":
        struct.pack_into("<L", data, len(data) - 10, size + len(extra))
    else:
        struct.pack_into("<L", data, len(data) - 6, at + len(extra))
        for _, entry, header in entries_of(content):
            struct.pack_into("<L", data, entry + 42, header + len(extra) if header > in_header else header)
    split = begin + fixed + len(path)
    return bytes(data[:split] + extra + data[split:])


def wide(*numbers: int) -> bytes:
    """The extra field for numbers that do not fit their place."""
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers)


def numbers_of(content: bytes, path: str) -> tuple[int, int, int]:
    """Of one file: size, packed size, and where it begins."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entry = archive.getinfo(path)
        return entry.file_size, entry.compress_size, entry.header_offset


def a_wheel_with(write: Callable[[zipfile.ZipFile], None], **more: bytes) -> bytes:
    """A wheel whose last entries are written by hand. `more` are files that RECORD is to list besides."""
    buffer = io.BytesIO(pack(with_record({**wheel_files(), **more}, INFO)))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
        warnings.simplefilter("ignore")  # of duplicates
        write(archive)
    return buffer.getvalue()


class _OneWay(io.RawIOBase):
    """What cannot go back, such as a socket: archives written there have their sizes behind each file."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.data += memoryview(data)  # type: ignore[arg-type]
        return len(memoryview(data))  # type: ignore[arg-type]


class TestHonestArchives:
    def test_may_be_stored_without_compression(self) -> None:
        check(pack(with_record(wheel_files(), INFO), zipfile.ZIP_STORED))

    @pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    @pytest.mark.parametrize("is_wide", [False, True])
    def test_may_have_their_sizes_behind_the_files(self, compression: int, is_wide: bool) -> None:
        target = _OneWay()
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


class TestLies:
    @pytest.mark.parametrize(
        ("field", "value"),
        [("flags", 1 << 11), ("method", 0), ("crc", 1), ("packed", 7), ("size", 7), ("packed", 0xFFFFFFFF)],
    )
    @pytest.mark.parametrize("where", ["directory", "header"])
    def test_a_file_that_two_readers_would_read_differently_is_refused(
        self, where: str, field: str, value: int
    ) -> None:
        refused(edited(GOOD, MODULE, where, **{field: value}))

    def test_a_file_with_another_checksum_is_refused(self) -> None:
        """RECORD would not notice, but the standard library does when it unpacks."""
        refused(edited(GOOD, MODULE, crc=1), f"'{MODULE}' is damaged")

    @pytest.mark.parametrize(
        ("flush", "more"), [(zlib.Z_FINISH, b"junk"), (zlib.Z_FINISH, bytes(2_000_000)), (zlib.Z_SYNC_FLUSH, b"")]
    )
    def test_a_file_whose_packed_bytes_end_elsewhere_is_refused(self, flush: int, more: bytes) -> None:
        real = b"x = 1\n" * 100
        deflater = zlib.compressobj(wbits=-15)
        packed = deflater.compress(real) + deflater.flush(flush) + more
        files = {**with_record({"a.py": real, **wheel_files()}, INFO), "a.py": packed}
        content = pack(files, zipfile.ZIP_STORED)
        refused(
            edited(content, "a.py", method=zipfile.ZIP_DEFLATED, size=len(real), crc=zlib.crc32(real)),
            "'a.py' is damaged: its packed bytes end elsewhere",
        )

    def test_a_file_of_two_names_is_refused(self) -> None:
        [(in_directory, in_header)] = [places for name, *places in entries_of(GOOD) if name == MODULE]
        for at in (in_directory + 46, in_header + 30):
            refused(GOOD[:at] + b"M" + GOOD[at + 1 :], "contradicts itself|RECORD|does not list")

    def test_a_second_name_in_an_extra_field_is_refused(self) -> None:
        def write(archive: zipfile.ZipFile) -> None:
            entry = zipfile.ZipInfo("extra.py")
            name = b"../evil.py"
            entry.extra = struct.pack("<HHBL", 0x7075, 5 + len(name), 1, 0) + name
            archive.writestr(entry, b"x")

        refused(a_wheel_with(write), "'extra.py' has a second name")

    @pytest.mark.parametrize("where", ["directory", "header"])
    @pytest.mark.parametrize(
        "extra",
        [
            b"".join(struct.pack("<HH", 0x9000 + kind, 0) for kind in range(17)),
            struct.pack("<HHB", 0x9999, 2, 0),
            struct.pack("<HH", 0x9999, 0) + b"\0",
            struct.pack("<HH", 0x9999, 0) * 2,
            struct.pack("<HHL", 0x5455, 4, 1) + struct.pack("<HHL", 0x7875, 4, 0) + struct.pack("<HHL", 0x5455, 4, 2),
        ],
        ids=["very many", "too short", "something behind", "one kind twice", "one kind twice, apart"],
    )
    def test_extra_fields_that_two_readers_would_read_differently_are_refused(self, where: str, extra: bytes) -> None:
        refused(with_extra(GOOD, MODULE, extra, where), f"'{MODULE}': the zip archive is damaged here")

    @pytest.mark.parametrize(
        ("fields", "extra"),
        [
            (["size", "packed", "offset"], "spo spo"),  # the first counts for the standard library
            (["size", "packed", "offset"], "sp"),
            (["size", "packed"], "spo"),
            (["size"], "sp"),
            (["size"], ""),
            (["size"], None),
            ([], "s"),
            ([], ""),
        ],
    )
    def test_wide_numbers_are_exactly_those_that_are_asked_for(self, fields: list[str], extra: str | None) -> None:
        """A second or a longer list of them is how the checked file and the installed one differ."""
        numbers = dict(zip("spo", numbers_of(GOOD, MODULE), strict=True))
        lists = [] if extra is None else [wide(*(numbers[letter] for letter in each)) for each in extra.split(" ")]
        full = edited(GOOD, MODULE, "directory", **dict.fromkeys(fields, 0xFFFFFFFF))
        refused(with_extra(full, MODULE, b"".join(lists)), f"'{MODULE}': the zip archive is damaged here")

    def test_small_numbers_told_twice_and_differently_are_refused(self) -> None:
        size, packed, _ = numbers_of(GOOD, MODULE)
        refused(with_extra(GOOD, MODULE, wide(size, packed + 1), "header"), "the zip archive is damaged here")

    @pytest.mark.parametrize("field", ["crc", "packed", "size"])
    def test_a_file_with_its_sizes_behind_it_tells_no_other_before(self, field: str) -> None:
        """Who reads from the front would believe these."""
        target = _OneWay()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in with_record(wheel_files(), INFO).items():
                archive.writestr(path, data)
        refused(edited(bytes(target.data), MODULE, "header", **{field: 7}), "contradicts itself")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(("name", "my_tasks/__init__.pY"), ("offset", 1), ("packed_bytes", 1), ("size_bytes", 1)),
            *(("crc", 1), ("method", 0), ("flags", 2), ("mode", 0)),
        ],
    )
    def test_what_python_reads_otherwise_than_we_do_is_refused(self, field: str, value: object) -> None:
        """Whatever we overlook: pip unpacks what Python's own reader finds."""
        file = io.BytesIO(GOOD)
        members = ZipArchive(file).members
        check_agreement(file, members)
        setattr(members[0], field, value)
        with pytest.raises(InvalidWheel, match="is another file to Python"):
            check_agreement(file, members)
        with pytest.raises(InvalidWheel, match="has 4 files, and 5 for Python"):
            check_agreement(file, members[1:])

    def test_what_python_cannot_read_is_refused(self) -> None:
        [(in_directory, _)] = [places for name, *places in entries_of(GOOD) if name == MODULE]
        version = in_directory + 6  # of the tool it takes to unpack it
        refused(GOOD[:version] + b"\xff" + GOOD[version + 1 :], "Python cannot read the zip archive: 'zip file version")

    def test_files_that_share_their_bytes_are_refused(self) -> None:
        """The bomb whose every file is the same megabytes."""
        headers = {name: header for name, _, header in entries_of(GOOD)}
        refused(edited(GOOD, f"{INFO}/METADATA", "directory", offset=headers[MODULE]), "contradicts itself")

    @pytest.mark.parametrize("flags", [1, 1 << 6, 1 << 13])
    def test_an_encrypted_file_is_refused(self, flags: int) -> None:
        refused(edited(GOOD, MODULE, flags=flags), f"'{MODULE}' is encrypted")

    def test_a_patch_is_refused(self) -> None:
        refused(edited(GOOD, MODULE, flags=1 << 5), "unknown zip flags 0x20")

    @pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_another_compression_is_refused(self, compression: int) -> None:
        refused(pack(with_record(wheel_files(), INFO), compression), "compressed in a way that is not known")

    @pytest.mark.parametrize(
        "kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR]
    )
    def test_a_link_or_a_special_file_is_refused(self, kind: int) -> None:
        refused(edited(GOOD, MODULE, attributes=(kind | 0o777) << 16), f"'{MODULE}' is a link or a special file")

    def test_a_directory_with_bytes_is_refused(self) -> None:
        refused(a_wheel_with(lambda archive: archive.writestr("folder/", b"x")), "a directory with bytes in it")


class TestBombs:
    def test_a_wheel_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(self) -> None:
        content = build_wheel(modules={"zeros": bytes(20_000_000)})[1]
        assert len(content) < 100_000
        tracemalloc.start()
        refused(content, "unpacks to 200[0-9]{5} bytes, and may to 10000000")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2_000_000

    def test_exactly_as_much_as_it_may_is_taken(self) -> None:
        content = build_wheel(modules={"zeros": bytes(100_000)})[1]
        size = sum(map(len, unpacked(content).values()))
        check(content, size)
        with pytest.raises(InvalidWheel, match="unpacks to"):
            check(content, size - 1)

    def test_a_wheel_that_lies_about_its_size_is_stopped_at_once(self) -> None:
        """By bytes read, not by the header."""
        files = with_record(wheel_files(modules={"zeros": bytes(50_000_000)}), INFO)
        files[f"{INFO}/RECORD"] = files[f"{INFO}/RECORD"].replace(b",50000000", b",10")
        content = edited(pack(files), "zeros", size=10)
        tracemalloc.start()
        refused(content, "'zeros' unpacks to more bytes than the archive says")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4_000_000

    def test_a_wheel_of_too_many_files_is_refused_before_they_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(zip_archive, "MEMBERS_MAX", 5)
        check(GOOD)
        refused(build_wheel(modules=dict.fromkeys("abcd", ""))[1], "holds 7 files, and may hold 5")


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
