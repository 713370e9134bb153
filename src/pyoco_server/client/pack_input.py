"""A file that a pack shall read, on this side of the wire."""

from __future__ import annotations

import mimetypes
import os
from pathlib import PurePath
from typing import TypeAlias

from pyoco_server.client.faults import AnswerDamaged
from pyoco_server.client.files import Readable
from pyoco_server.client.priced_results import PackInput

__all__ = ["Uploadable", "compared", "named_as"]

#: What can be uploaded, and sent once more when it has to be.
Uploadable: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str] | Readable


def named_as(data: Uploadable, name: str | None, content_type: str | None) -> tuple[str | None, str | None]:
    """Name and type of a file, as far as they are given or its path tells them."""
    if name is None and isinstance(data, str | os.PathLike):
        name = PurePath(data).name
    if content_type is None and name is not None:
        content_type = mimetypes.guess_type(name)[0]
    return name, content_type


def compared(stored: PackInput, sha256_hex: str) -> PackInput:
    """Raises AnswerDamaged when other bytes were stored than were sent."""
    if stored["sha256"] != sha256_hex:
        raise AnswerDamaged(f"a file was stored with the sha256 {stored['sha256']}, and {sha256_hex} was sent")
    return stored
