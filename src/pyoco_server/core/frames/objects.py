"""Transfer of data that does not fit into one frame, in parts (sections 5.10 and 5.11)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Final, Self

from pyoco_server.core.frames.hello import TOKEN_CHARACTERS_MAX, without_none
from pyoco_server.core.frames.reading import Fields, bad_field, write_object
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import read_job_id

__all__ = ["PART_BYTES_MAX", "BinaryPart", "ObjectAck", "ObjectGet"]

#: The maximum data of one part.
PART_BYTES_MAX: Final = 1024 * 1024
_NAME_MAX = 255
_OBJECT_MAX = 1_024
_META_SIZE = struct.Struct("<H")
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ObjectGet:
    """A request for an object, from `offset` to its end."""

    job_id: str
    name: str
    offset: int = 0

    def to_payload(self) -> bytes:
        return write_object({"JobId": self.job_id, "Name": self.name, "Offset": self.offset})

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        fields = Fields.of(payload)
        return cls(
            job_id=read_job_id(fields.text("JobId")),
            name=fields.text("Name", _NAME_MAX),
            offset=fields.integer("Offset", 0),
        )


@dataclass(frozen=True, kw_only=True)
class ObjectAck:
    """Acknowledges the bytes received so far; `done`: the object is complete and stored as `object`."""

    job_id: str
    name: str
    received: int
    done: bool = False
    object: str | None = None

    def to_payload(self) -> bytes:
        return write_object(
            {
                "JobId": self.job_id,
                "Name": self.name,
                "Received": self.received,
                "Done": self.done,
                "Object": self.object,
            }
        )

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused."""
        fields = Fields.of(payload)
        return cls(
            job_id=read_job_id(fields.text("JobId")),
            name=fields.text("Name", _NAME_MAX),
            received=fields.integer("Received", 0),
            done=fields.flag("Done"),
            object=fields.text_or_none("Object", _OBJECT_MAX),
        )


@dataclass(frozen=True, kw_only=True)
class BinaryPart:
    """A part of an object: `metaLen` uint16, meta as JSON, data."""

    job_id: str
    name: str
    #: The offset of the first byte of `data`.
    offset: int
    #: The size of the complete object.
    size: int
    last: bool
    data: bytes = field(repr=False)
    #: The digest of the complete object; only in the last part.
    sha256: str | None = None
    #: The token of the attempt; set by a worker.
    token: str | None = field(default=None, repr=False)

    def to_payload(self) -> bytes:
        meta = write_object(
            without_none(
                {
                    "JobId": self.job_id,
                    "Token": self.token,
                    "Name": self.name,
                    "Offset": self.offset,
                    "Size": self.size,
                    "Last": self.last,
                    "Sha256": self.sha256,
                }
            )
        )
        return b"".join((_META_SIZE.pack(len(meta)), meta, self.data))

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Decode a payload. Raises GridRefused: BAD_OBJECT if the lengths do not add up, or the error of an invalid
        meta."""
        if len(payload) < _META_SIZE.size:
            raise GridRefused(Code.BAD_OBJECT, "a part begins with the length of its meta")
        (size,) = _META_SIZE.unpack_from(payload)
        start = _META_SIZE.size + size
        if start > len(payload):
            raise GridRefused(Code.BAD_OBJECT, "the meta passes the end of the part")
        fields = Fields.of(payload[_META_SIZE.size : start])
        job_id = read_job_id(fields.text("JobId"))
        try:
            part = cls._of(fields, job_id, payload[start:])
            part._check()
        except GridRefused as error:
            error.job_id = job_id
            raise
        return part

    @classmethod
    def _of(cls, fields: Fields, job_id: str, data: bytes) -> Self:
        return cls(
            job_id=job_id,
            name=fields.text("Name", _NAME_MAX),
            offset=fields.integer("Offset", 0),
            size=fields.integer("Size", 0),
            last=fields.flag("Last"),
            data=data,
            sha256=fields.text_or_none("Sha256"),
            token=fields.text_or_none("Token", TOKEN_CHARACTERS_MAX),
        )

    def _check(self) -> None:
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise bad_field("Sha256", "must be 64 hex digits in lower case")
        if self.last and self.sha256 is None:
            raise bad_field("Sha256", "is missing: this is the last part")
        if len(self.data) > PART_BYTES_MAX:
            raise GridRefused(Code.BAD_OBJECT, f"a part has at most {PART_BYTES_MAX} bytes of data")
        end = self.offset + len(self.data)
        if end > self.size or (self.last and end != self.size):
            raise GridRefused(Code.BAD_OBJECT, "the part does not fit into the size of its object")
