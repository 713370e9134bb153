"""Where a worker keeps its wheels: whole or not there at all, and one worker's at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pyoco_server.core.wheel_sync import Hurdle, InstalledWheel, WheelTrouble
from pyoco_server.errors import UsageError
from pyoco_server.executors.wheels.shelf import Shelf, open_shelf

ENTRY = InstalledWheel(
    wheel_name="my_tasks-1.0-py3-none-any.whl",
    package_name="my-tasks",
    package_version="1.0",
    nuid="n1",
    size_bytes=3,
    sha256_hex="ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",  # of abc
    tags=("gpu",),
    installed_at=12.5,
)
NAME = ENTRY.wheel_name


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path / "wheels")
    shelf.directory.mkdir()
    shelf.prepare()
    return shelf


def test_workers_that_share_a_setting_have_a_directory_each_and_find_it_again(tmp_path: Path) -> None:
    """FLOW-237"""
    with open_shelf(tmp_path / "some" / "wheels") as first:
        assert first.directory == tmp_path / "some" / "wheels"
        with open_shelf(tmp_path / "some" / "wheels") as second, open_shelf(tmp_path / "some" / "wheels") as third:
            assert [second.directory.name, third.directory.name] == ["wheels-2", "wheels-3"]
    with open_shelf(tmp_path / "some" / "wheels") as again:
        assert again.directory == first.directory


def test_a_worker_that_was_killed_leaves_its_directory_to_the_next(tmp_path: Path) -> None:
    """FLOW-237"""
    program = (
        "import sys, pathlib, contextlib\nfrom pyoco_server.executors.wheels.shelf import open_shelf\n"
        "with open_shelf(pathlib.Path(sys.argv[1])) as shelf, shelf.workplace():\n"
        "    print(shelf.directory.name, flush=True)\n    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "wheels")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"wheels\n"
        with open_shelf(tmp_path / "wheels") as mine:
            assert mine.directory.name == "wheels-2"
        other.send_signal(signal.SIGKILL)
    assert list((tmp_path / "wheels" / ".tmp").iterdir())
    with open_shelf(tmp_path / "wheels") as mine:
        assert mine.directory.name == "wheels"
        assert not list((tmp_path / "wheels" / ".tmp").iterdir())  # what it had begun is gone


def test_a_directory_that_cannot_be_made_is_told_with_its_setting(tmp_path: Path) -> None:
    """FLOW-237"""
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(UsageError, match="PYOCO_WHEEL_SYNC_DIR"), open_shelf(tmp_path / "file" / "wheels"):
        raise AssertionError("it was opened")


def test_the_manifest_is_an_object_from_wheel_name_to_what_was_installed(shelf: Shelf) -> None:
    """FLOW-238"""
    shelf.save({NAME: ENTRY})
    document = json.loads((shelf.directory / ".installed.json").read_text())
    assert document == {NAME: {**asdict(ENTRY), "tags": ["gpu"]}}
    assert shelf.load() == {NAME: ENTRY}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"a": 1}', "[" * 100_000, "\udcff"])
def test_a_manifest_that_cannot_be_read_counts_as_empty(shelf: Shelf, text: str) -> None:
    """FLOW-239"""
    assert shelf.load() == {}
    (shelf.directory / ".installed.json").write_bytes(text.encode(errors="surrogateescape"))
    assert shelf.load() == {}


def test_of_a_damaged_manifest_the_entries_that_can_be_read_count(shelf: Shelf) -> None:
    """FLOW-239"""
    good = asdict(ENTRY)
    text = json.dumps({NAME: good, "other.whl": good, "broken.whl": {**good, "nuid": 3}})
    (shelf.directory / ".installed.json").write_text(text)
    assert shelf.load() == {NAME: ENTRY}


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-238"""
    shelf.save({NAME: ENTRY})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        shelf.save({})
    assert shelf.load() == {NAME: ENTRY}
    assert not list((shelf.directory / ".tmp").iterdir())


@pytest.mark.parametrize("nuid", ["../../etc", "a/b", "", "x" * 300, ".."])
def test_an_id_from_the_store_is_never_a_path(shelf: Shelf, nuid: str) -> None:
    home = shelf.home(replace(ENTRY, nuid=nuid))
    assert home.parent == shelf.envs
    assert len(home.name) < 200
    assert home != shelf.home(replace(ENTRY, nuid=nuid + "y"))


def test_a_name_as_long_as_it_may_be_has_a_place(shelf: Shelf) -> None:
    home = shelf.home_of("p" * 200, "1" * 200, "n" * 64)
    shelf.fetched_home(home, "what").mkdir()


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_file_is_in_its_place_when_it_is_whole(shelf: Shelf) -> None:
    """FLOW-237"""

    async def breaking() -> AsyncIterator[bytes]:
        yield b"ab"
        raise EOFError

    with pytest.raises(EOFError):
        await shelf.receive(NAME, breaking())
    assert not shelf.file_of(NAME).exists()
    assert not list((shelf.directory / ".tmp").iterdir())
    large = bytes(1_500_000)
    assert (await shelf.receive(NAME, chunks(large, large, b"end"))).read_bytes() == large + large + b"end"
    await shelf.receive(NAME, chunks(b"a", b"bc"))
    assert shelf.file_of(NAME).read_bytes() == b"abc"


async def test_a_file_is_known_by_all_of_its_bytes(shelf: Shelf) -> None:
    """FLOW-235"""
    assert not shelf.has_file(NAME, 3, ENTRY.sha256_hex)
    await shelf.receive(NAME, chunks(b"abc"))
    assert shelf.has_file(NAME, 3, ENTRY.sha256_hex)
    assert not shelf.has_file(NAME, 4, ENTRY.sha256_hex)
    await shelf.receive(NAME, chunks(b"abd"))
    assert not shelf.has_file(NAME, 3, ENTRY.sha256_hex)


def test_what_a_run_still_reads_stays_until_a_later_sweep(shelf: Shelf) -> None:
    """FLOW-230, FLOW-240"""
    kept, busy, making, gone = (shelf.home(replace(ENTRY, nuid=nuid)) for nuid in ("kept", "busy", "making", "gone"))
    homes = [kept, busy, making, gone, shelf.fetched_home(making, "x"), shelf.fetched_home(gone, "x")]
    for home in homes:
        (home / "inside").mkdir(parents=True)
    for name in ("stays.whl", "goes.whl"):
        shelf.file_of(name).write_bytes(b"")
    stays = [shelf.file_of("stays.whl")]
    assert not shelf.sweep(stays, [kept], [making], {str(busy)})
    assert sorted(shelf.envs.iterdir()) == sorted([kept, busy, making, shelf.fetched_home(making, "x")])
    assert list(shelf.files.iterdir()) == stays
    assert shelf.sweep(stays, [kept], [], set())
    assert list(shelf.envs.iterdir()) == [kept]
    assert not list((shelf.directory / ".tmp").iterdir())


def test_what_was_fetched_for_other_packages_is_told_apart(shelf: Shelf) -> None:
    mine = shelf.fetched_home(shelf.home_of("foo", "1.0+local", "a"), "x")
    other = shelf.fetched_home(shelf.home_of("foo-bar", "1.0", "b"), "x")
    for home in (mine, other, shelf.home_of("baz", "1.0", "c")):
        home.mkdir()
    assert shelf.fetched_for_others("foo") == [other]
    assert shelf.fetched_for_others("foo-bar") == [mine]


def test_what_no_host_started_with_is_known_to_the_next_worker(shelf: Shelf) -> None:
    """FLOW-242: and a file that cannot be read says nothing"""
    trouble = WheelTrouble(nuid="n1", hurdle=Hurdle.HOSTS, error="why", times=3, again_at=99.0)
    assert shelf.load_refused() == {}
    shelf.save_refused({NAME: trouble})
    assert shelf.load_refused() == {NAME: replace(trouble, again_at=0.0)}
    for text in ("", "[]", '{"a.whl": 3}'):
        (shelf.directory / ".refused.json").write_text(text)
        assert shelf.load_refused() == {}


async def test_a_workplace_is_empty_and_goes_with_all_that_is_in_it(shelf: Shelf) -> None:
    async with shelf.open_workplace() as place:
        assert not list(place.iterdir())
        (place / "deep").mkdir()
    assert not list((shelf.directory / ".tmp").iterdir())
