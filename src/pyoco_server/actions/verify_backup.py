"""Read a backup and say whether it is whole."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyoco_server.core.backup import LEDGER, Manifest
from pyoco_server.errors import BackupFailed
from pyoco_server.ports.backups.port import Archive

__all__ = ["verify_backup"]


async def verify_backup(
    archive: Archive, only: Collection[str] = (), report: Callable[[str], None] = lambda _: None
) -> Manifest:
    """Every file is there, as long as it was, with the digest it had. Reads all of it, and asks no server.

    Raises BackupFailed with everything that is wrong, not the first thing only.
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
