"""The manifest of a backup: its streams with their configuration, the ledger, and the digest of every file."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyoco_server.errors import BackupFailed

__all__ = [
    "CHANGES",
    "DATA",
    "FORMAT",
    "LEDGER",
    "LEDGER_FILE",
    "Manifest",
    "StoredFile",
    "StreamCopy",
    "decode_manifest",
    "encode_manifest",
    "with_replicas",
]

#: Increased when an older pyoco-server can no longer read the backup.
FORMAT = 1
#: The files of a stream: its messages, and the changes that arrived while it was copied.
DATA, CHANGES = "stream.tar.s2", "changes.jsonl"
#: The ledger of priced runs: its directory, which is also the name by which it is selected, and its file.
LEDGER, LEDGER_FILE = "ledger", "ledger.db"
#: Unix seconds: the upper limit for the time of a backup.
_YEAR_3000 = 32_503_680_000

#: A stream's name is used as a directory name, so it must be safe as one. NATS does not allow more than this either.
_NAME = re.compile(r"[^\s./\\*>]{1,200}")
_ID = re.compile(r"[0-9A-Za-z_-]{1,100}")
_FILE_NAME = re.compile(r"[a-z][a-z0-9.]{0,40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredFile:
    """One file in the directory of its stream."""

    name: str
    size_bytes: int
    sha256_hex: str


@dataclass(frozen=True, kw_only=True)
class StreamCopy:
    """One stream or bucket in a backup."""

    name: str
    #: As JetStream reported it when the copy began.
    config: Mapping[str, Any]
    state: Mapping[str, Any]
    #: Consumers that a restore creates anew, starting at the first message: those of a queue.
    consumers: tuple[Mapping[str, Any], ...] = ()
    #: Messages that arrived while the backup was made; they are in a file of their own.
    changes: int = 0
    files: tuple[StoredFile, ...] = ()

    @property
    def messages(self) -> int:
        """The number of messages when the copy began, plus those that arrived later."""
        return int(self.state["messages"]) + self.changes

    @property
    def last_sequence(self) -> int:
        """The last sequence of the copy; the changes follow it."""
        return int(self.state["last_seq"])

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_keyed(self) -> bool:
        """Whether this is a key-value bucket: it keeps only the newest message of each key."""
        return self.config.get("max_msgs_per_subject") == 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The complete backup. Written last: a directory without it is not a backup."""

    backup_id: str
    #: Unix seconds: when the backup was finished.
    made_at: float
    #: The versions of pyoco-server and of the NATS server.
    made_by: str
    nats_version: str
    streams: tuple[StreamCopy, ...]
    #: Streams of the installation that did not exist and are therefore not in the backup.
    missing: tuple[str, ...] = ()
    #: The ledger, if it is a file. A ledger in PostgreSQL is backed up with that database's own tools.
    ledger: StoredFile | None = None

    @property
    def size_bytes(self) -> int:
        ledger = self.ledger.size_bytes if self.ledger is not None else 0
        return ledger + sum(stream.size_bytes for stream in self.streams)

    def only(self, names: Iterable[str]) -> tuple[StreamCopy, ...]:
        """Return these streams, in the order of the backup; all of them if no names are given.

        Raises BackupFailed for a name that the backup does not contain.
        """
        wanted, known = set(names), {stream.name for stream in self.streams}
        if self.ledger is not None:
            known.add(LEDGER)
        if wanted - known:
            missing = ", ".join(sorted(wanted - known))
            raise BackupFailed(f"the backup has no {missing}; it has {', '.join(sorted(known))}")
        return tuple(stream for stream in self.streams if not wanted or stream.name in wanted)

    def ledger_if(self, names: Collection[str]) -> StoredFile | None:
        """Return the ledger's file if the backup has one and it is selected by name, or if no names are given."""
        return self.ledger if not names or LEDGER in names else None


def encode_manifest(manifest: Manifest) -> bytes:
    document = {
        "format": FORMAT,
        "backup_id": manifest.backup_id,
        "made_at": manifest.made_at,
        "made_by": manifest.made_by,
        "nats_version": manifest.nats_version,
        "streams": [
            {
                "name": stream.name,
                "config": stream.config,
                "state": stream.state,
                "consumers": list(stream.consumers),
                "changes": stream.changes,
                "files": [_written(file) for file in stream.files],
            }
            for stream in manifest.streams
        ],
        "missing": list(manifest.missing),
        "ledger": _written(manifest.ledger) if manifest.ledger is not None else None,
    }
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def _written(file: StoredFile) -> dict[str, Any]:
    return {"name": file.name, "bytes": file.size_bytes, "sha256": file.sha256_hex}


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raises BackupFailed if it is not a manifest, has a newer format, or is damaged.

    Everything that a restore uses is validated: all members exist, and no text can send control sequences to a
    terminal.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BackupFailed(f"backup.json cannot be read: {error}") from error
    if not isinstance(document, dict) or "format" not in document:
        raise BackupFailed("backup.json is not one of a pyoco-server backup")
    if document["format"] != FORMAT:
        raise BackupFailed(
            f"the backup has format {_shown(document['format'])}, and this pyoco-server reads format {FORMAT}: "
            f"restore it with the version that made it, {_shown(document.get('made_by', 'a newer one'))}"
        )
    try:
        manifest = Manifest(
            backup_id=_matching(_ID, document["backup_id"]),
            made_at=_instant(document["made_at"]),
            made_by=_text(document["made_by"]),
            nats_version=_text(document["nats_version"]),
            streams=tuple(map(_stream, _list(document["streams"]))),
            missing=tuple(_matching(_NAME, name) for name in _list(document.get("missing", []))),
            ledger=_ledger(document.get("ledger")),
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise BackupFailed(f"backup.json is damaged: {reason}") from error
    names = [stream.name for stream in manifest.streams]
    if not names or len(set(names)) < len(names):
        raise BackupFailed("backup.json is damaged: it names no stream, or one twice")
    return manifest


def _stream(value: Any) -> StreamCopy:
    config, state = _object(value["config"]), _object(value["state"])
    name = _matching(_NAME, value["name"])
    if config.get("name") != name:
        raise ValueError(f"the configuration of {name} belongs to {_shown(config.get('name'))}")
    _object(config.get("metadata") or {})
    for figure in ("messages", "last_seq"):
        _count(state[figure])
    changes, files = _count(value["changes"]), tuple(map(_file, _list(value["files"])))
    _check_files(name, changes, [file.name for file in files])
    return StreamCopy(
        name=name,
        config=config,
        state=state,
        consumers=tuple(map(_consumer, _list(value["consumers"]))),
        changes=changes,
        files=files,
    )


def _check_files(stream: str, changes: int, names: list[str]) -> None:
    """Require the files that a restore needs, each exactly once."""
    if len(set(names)) < len(names):
        raise ValueError(f"{stream} has a file twice")
    if DATA not in names:
        raise ValueError(f"{stream} has no {DATA}")
    if (CHANGES in names) != (changes > 0):
        raise ValueError(f"{stream} has {changes} changes, and {'a' if CHANGES in names else 'no'} {CHANGES}")


def _consumer(value: Any) -> dict[str, Any]:
    _matching(_NAME, _object(value)["durable_name"])
    return _object(value)


def _file(value: Any) -> StoredFile:
    return StoredFile(_matching(_FILE_NAME, value["name"]), _count(value["bytes"]), _matching(_SHA256, value["sha256"]))


def _ledger(value: Any) -> StoredFile | None:
    if value is None:  # as in every backup that was made before ledgers were included
        return None
    file = _file(_object(value))
    if file.name != LEDGER_FILE:
        raise ValueError(f"the ledger's file is called {_shown(file.name)}")
    return file


def _matching(form: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not form.fullmatch(value):
        raise ValueError(f"{_shown(value)} is not a name it could have")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 200:
        raise TypeError(f"{_shown(value)} is not a short, plain text")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{_shown(value)} is not a list")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{_shown(value)} is not an object")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{_shown(value)} is not a count")
    return value


def _instant(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _YEAR_3000:
        raise ValueError(f"{_shown(value)} is not a time")
    return float(value)


def _shown(value: Any) -> str:
    """Return the start of the value, safe to print on a terminal."""
    return repr(str(value)[:80])


def with_replicas(config: Mapping[str, Any], replicas: int | None) -> dict[str, Any]:
    """Return the stream configuration with this number of replicas; None keeps the original number."""
    return dict(config) if replicas is None else {**config, "num_replicas": replicas}
