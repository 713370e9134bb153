"""A backup's folder: its permissions, and what is left of it after a failure."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.core.backup import Manifest, StreamCopy
from pyoco_server.errors import BackupFailed
from pyoco_server.ports.backups.folder import FolderArchive


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def finished(archive: FolderArchive) -> Manifest:
    """One stream, then the manifest."""
    file = await archive.keep("KV_runs", "stream.tar.s2", pieces(b"one", b"two"))
    copy = StreamCopy(name="KV_runs", config={"name": "KV_runs"}, state={"messages": 0, "last_seq": 0}, files=(file,))
    manifest = Manifest(backup_id="b1", made_at=1.5, made_by="tests", nats_version="2", streams=(copy,))
    await archive.finish(manifest)
    return manifest


def everything(path: Path) -> dict[str, int]:
    """Each file and folder below, with its mode."""
    return {str(each.relative_to(path)): stat.S_IMODE(each.stat().st_mode) for each in path.rglob("*")}


async def test_a_finished_backup_has_no_unfinished_file_left(tmp_path: Path) -> None:
    archive = FolderArchive(tmp_path / "new")
    await archive.begin()
    manifest = await finished(archive)
    assert everything(tmp_path) == {
        "new": 0o700,
        "new/backup.json": 0o600,
        "new/KV_runs": 0o700,
        "new/KV_runs/stream.tar.s2": 0o600,
    }
    assert await FolderArchive(tmp_path / "new").manifest() == manifest
    await archive.check("KV_runs", manifest.streams[0].files[0])


async def test_of_two_backups_into_one_folder_one_is_refused_and_the_other_comes_whole(tmp_path: Path) -> None:
    """The refused one takes nothing away, though it is told to tidy up."""
    first, second = FolderArchive(tmp_path / "new"), FolderArchive(tmp_path / "new")
    await first.begin()
    with pytest.raises(BackupFailed, match="new is not empty"):
        await second.begin()
    await second.discard()
    manifest = await finished(first)
    await second.discard()
    assert await first.manifest() == manifest
    await first.check("KV_runs", manifest.streams[0].files[0])


@pytest.mark.parametrize(
    ("is_quick", "says"), [(False, r"another backup is being made in .*new"), (True, r"new is not empty")]
)
async def test_of_two_that_begin_at_the_same_moment_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_quick: bool, says: str
) -> None:
    """Both have seen that the folder is empty; then one of them is late, perhaps so late that the other is done."""
    first, second = FolderArchive(tmp_path / "new"), FolderArchive(tmp_path / "new")
    look = second._check_empty

    def look_then_be_late() -> None:
        look()
        monkeypatch.setattr(second, "_check_empty", look)
        first._begin()
        if is_quick:
            asyncio.run(finished(first))

    monkeypatch.setattr(second, "_check_empty", look_then_be_late)
    with pytest.raises(BackupFailed, match=says):
        await second.begin()
    await second.discard()
    manifest = await (first.manifest() if is_quick else finished(first))
    assert await FolderArchive(tmp_path / "new").manifest() == manifest
    assert everything(tmp_path).keys() == {"new", "new/backup.json", "new/KV_runs", "new/KV_runs/stream.tar.s2"}


@pytest.mark.parametrize("when", ["begun", "half a file", "a file", "finished"])
async def test_after_a_failure_everything_is_as_it_was(tmp_path: Path, when: str) -> None:
    """Folders above that had to be made are gone again; one that was there has its mode back."""
    (tmp_path / "old").mkdir(mode=0o755)
    before = everything(tmp_path)
    for path in (tmp_path / "old", tmp_path / "old" / "years" / "monday"):
        archive = FolderArchive(path)
        await archive.begin()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        if when == "half a file":
            archive._open(path / "KV_runs" / "stream.tar.s2").close()
        elif when == "a file":
            await archive.keep("KV_runs", "stream.tar.s2", pieces(b"one"))
        elif when == "finished":
            await finished(archive)
        await archive.discard()
        await archive.discard()  # as often as one likes
        assert everything(tmp_path) == before


async def test_what_somebody_else_has_put_there_stays(tmp_path: Path) -> None:
    archive = FolderArchive(tmp_path / "new")
    await archive.begin()
    await archive.keep("KV_runs", "stream.tar.s2", pieces(b"one"))
    (tmp_path / "new" / "mine").write_text("x")
    (tmp_path / "new" / "KV_runs" / "mine").write_text("x")
    await archive.discard()
    assert everything(tmp_path).keys() == {"new", "new/mine", "new/KV_runs", "new/KV_runs/mine"}


async def test_nothing_is_written_after_it_was_given_up(tmp_path: Path) -> None:
    """By a thread that was at work when its caller was cancelled."""
    archive = FolderArchive(tmp_path / "new")
    await archive.begin()
    file = tmp_path / "new" / "KV_runs" / "stream.tar.s2"
    output = archive._open(file)
    await archive.discard()
    with pytest.raises(BackupFailed, match="given up"):
        archive._close(output, file)
    with pytest.raises(BackupFailed, match="given up"):
        await archive.keep("KV_runs", "changes.jsonl", pieces(b"one"))
    assert everything(tmp_path) == {}


async def test_a_folder_where_one_is_being_made_is_no_backup_yet(tmp_path: Path) -> None:
    archive = FolderArchive(tmp_path / "new")
    await archive.begin()
    with pytest.raises(BackupFailed, match=r"new has no backup\.json: it is still being made, or was interrupted"):
        await FolderArchive(tmp_path / "new").manifest()


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        archive = FolderArchive(path)
        with pytest.raises(BackupFailed, match=r"Not a directory|File exists"):
            await archive.begin()
        await archive.discard()
    assert everything(tmp_path).keys() == {"file"}
