"""Zip archives with contradictory fields, and archives that expand too far."""

from __future__ import annotations

import io
import stat
import struct
import tracemalloc
import zipfile
import zlib

import pytest

from pyoco_server.core import zip_archive
from pyoco_server.core.zip_archive import ZipArchive
from pyoco_server.errors import InvalidWheel
from pyoco_server.ports.wheel_files.second_reader import check_agreement
from support.wheels import build_wheel, pack, wheel_files, with_record
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
        target = OneWay()
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
