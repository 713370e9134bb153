"""Verify that a backup is complete."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyoco_server.core.backup import LEDGER, Manifest
from pyoco_server.errors import BackupFailed
from pyoco_server.ports.backups.port import Archive

__all__ = ["verify_backup"]


async def verify_backup(
    archive: Archive, only: Collection[str] = (), report: Callable[[str], None] = lambda _: None
) -> Manifest:
    """Check that every file exists with its recorded size and digest. Reads all of them, and contacts no server.

    Raises BackupFailed with all problems, not only the first.
    """
    manifest = await archive.manifest()
    problems = []
    places = [(stream.name, stream.files) for stream in manifest.only(only)]
    ledger = manifest.ledger_if(only)
    if ledger is not None:
        places.append((LEDGER, (ledger,)))
    for place, files in places:
        for file in files:
            try:
                await archive.check(place, file)
            except BackupFailed as error:
                problems.append(str(error))
        report(place)
    if problems:
        raise BackupFailed("the backup is damaged: " + "; ".join(problems))
    return manifest
