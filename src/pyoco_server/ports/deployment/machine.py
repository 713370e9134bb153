"""Facts about this machine: its disks, and the NATS server that `pyoco-server up` runs on it."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyoco_server.core.diagnosis.facts import Disk, OwnNats, Unknown

__all__ = ["Place", "disks_of", "own_nats_of", "temporary_place"]

#: A lost network disk never answers.
_DISK_SECONDS = 3.0
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

#: Purpose, path, and whether it is the store of NATS.
Place = tuple[str, Path, bool]


def temporary_place() -> Place:
    return ("temporary files", Path(tempfile.gettempdir()), False)


def disks_of(places: Sequence[Place]) -> tuple[Disk | Unknown, ...]:
    """Return the disk of each place, or of its nearest existing parent folder.

    Bounded: a check that does not return in time is abandoned in its thread.
    """
    found: dict[str, Disk | Unknown] = {}
    for purpose, path, is_store in places:
        found[purpose] = Unknown(f"{path} does not answer within {_DISK_SECONDS:.0f} s")

        def look(purpose: str = purpose, path: Path = path, is_store: bool = is_store) -> None:
            try:
                found[purpose] = _disk(purpose, path, is_store)
            except OSError as error:
                found[purpose] = Unknown(f"{path}: {error.strerror}")

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        looking.join(_DISK_SECONDS)
    return tuple(found.values())


def _disk(purpose: str, path: Path, is_store: bool) -> Disk:
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    stat = os.statvfs(path)
    return Disk(
        purpose=purpose,
        path=str(path),
        free_bytes=stat.f_bavail * stat.f_frsize,
        total_bytes=stat.f_blocks * stat.f_frsize,
        free_files=stat.f_favail if stat.f_files else None,  # some file systems do not count them
        is_store=is_store,
    )


def own_nats_of(data_dir: Path) -> OwnNats | None:
    """Read the configuration that `pyoco-server up` wrote at its last start.

    None: there is none, or it cannot be read.
    """
    folder = data_dir / "nats"
    try:
        written = (folder / "nats.conf").read_text(encoding="utf-8")
        options: dict[str, Any] = json.loads("{" + re.sub(r"^#.*$", "", written, flags=re.MULTILINE) + "}")
        store = options["jetstream"]
        port = int(options["port"])
        if port < 0:  # chosen by the server, which then wrote it to a file
            port = int((folder / "port").read_text())
        return OwnNats(
            server_name=str(options["server_name"]),
            host=str(options["host"]),
            port=port,
            sync_seconds=_seconds(str(store["sync_interval"])),
            store_dir=str(store["store_dir"]),
            storage_bytes_max=int(store["max_file_store"]),
            monitor_url=f"http://{options['http']}" if options.get("http") else "",
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _seconds(text: str) -> float:
    """Parse `always`, or a duration such as `500ms`. Raises ValueError or KeyError for anything else."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return 0.0 if text == "always" else float(number) * _UNITS[text.removeprefix(number)]
