"""Lines that programs print, on their way from a worker to a door (LOG-30)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from pyoco_server.core.frames.hello import TOKEN_CHARACTERS_MAX
from pyoco_server.core.frames.reading import Fields, bad_field, write_object
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import read_job_id
from pyoco_server.core.run_log.shipment import BYTES_MAX, LINES_MAX, Shipment

__all__ = ["LOG_CREDITS", "LOG_DATA_BYTES_MAX", "LogChunk", "LogCredit", "LogOutcome"]

#: How many LogChunks of a connection may be unanswered.
LOG_CREDITS: Final = 2
#: The maximum size of a batch, compressed. It is stored as one message, for which NATS has a limit of 1 MiB.
LOG_DATA_BYTES_MAX: Final = 768 * 1024
_META_SIZE = struct.Struct("<H")
#: A record with an exception, or one line, may be larger than what batches are divided by.
_SIZE_MAX = 2 * BYTES_MAX


@dataclass(frozen=True, kw_only=True)
class LogChunk:
    """A batch of lines of one attempt: `metaLen` uint16, meta as JSON, the batch as it is stored."""

    job_id: str
    token: str = field(repr=False)
    shipment: Shipment

    def to_payload(self) -> bytes:
        shipment = self.shipment
        stdout, stderr, *_ = shipment.streams
        meta = write_object(
            {
                "JobId": self.job_id,
                "Token": self.token,
                "First": shipment.first,
                "Stdout": stdout,
                "Stderr": stderr,
                "Before": shipment.before,
                "Size": shipment.size,
                "Tail": shipment.is_tail,
                "Last": shipment.is_last,
            }
        )
        return b"".join((_META_SIZE.pack(len(meta)), meta, shipment.payload))

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused. The batch itself is not decoded."""
        if len(payload) < _META_SIZE.size:
            raise GridRefused(Code.BAD_OBJECT, "a chunk begins with the length of its meta")
        start = _META_SIZE.size + _META_SIZE.unpack_from(payload)[0]
        if not start < len(payload) <= start + LOG_DATA_BYTES_MAX:
            raise GridRefused(Code.BAD_OBJECT, f"a chunk has 1 to {LOG_DATA_BYTES_MAX} bytes after its meta")
        fields = Fields.of(payload[_META_SIZE.size : start])
        stdout, stderr = fields.integer("Stdout", 0, LINES_MAX), fields.integer("Stderr", 0, LINES_MAX)
        size = fields.integer("Size", 0, _SIZE_MAX)
        if stdout + stderr > size:
            raise bad_field("Size", "is less than one byte for each line")
        shipment = Shipment(
            first=fields.integer("First", 1),
            count=stdout + stderr,
            before=fields.integer("Before", 0),
            size=size,
            is_tail=fields.flag("Tail"),
            is_last=fields.flag("Last"),
            payload=payload[start:],
            streams=(stdout, stderr, 0, 0),
        )
        return cls(
            job_id=read_job_id(fields.text("JobId")),
            token=fields.text("Token", TOKEN_CHARACTERS_MAX),
            shipment=shipment,
        )


class LogOutcome(StrEnum):
    """What became of a LogChunk."""

    #: It is stored, or a gap says that its lines are missing.
    STORED = "stored"
    #: The attempt is not this worker's. The chunk was dropped.
    STALE = "stale"
    #: It was not taken: send it again, after a while.
    LATER = "later"


@dataclass(frozen=True)
class LogCredit:
    """The answer to a LogChunk: there is room for another one."""

    outcome: LogOutcome

    def to_payload(self) -> bytes:
        return write_object({"Outcome": self.outcome.value})

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        outcome = Fields.of(payload).text("Outcome")
        if outcome not in list(LogOutcome):
            raise bad_field("Outcome", f"must be one of {', '.join(LogOutcome)}")
        return cls(LogOutcome(outcome))
