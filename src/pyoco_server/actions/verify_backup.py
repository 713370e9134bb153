"""Read a backup and say whether it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyoco_server.core.backup import Manifest
from pyoco_server.errors import BackupFailed
from pyoco_server.ports.backups.port import Archive

__all__ = ["verify_backup"]


async def verify_backup(
    archive: Archive, only: Iterable[str] = (), report: Callable[[str], None] = lambda _: None
) -> Manifest:
    """Every file is there, as long as it was, with the digest it had. Reads all of it, and asks no server.

    Raises BackupFailed with everything that is wrong, not the first thing only.
    """
    manifest = await archive.manifest()
    problems = []
    for stream in manifest.only(only):
        for file in stream.files:
            try:
                await archive.check(stream.name, file)
            except BackupFailed as error:
                problems.append(str(error))
        report(stream.name)
    if problems:
        raise BackupFailed("the backup is damaged: " + "; ".join(problems))
    return manifest
