"""The upload of a pack's input file."""

from __future__ import annotations

import mimetypes
import os
from pathlib import PurePath
from typing import TypeAlias

from pyoco_server.client.faults import AnswerDamaged
from pyoco_server.client.files import Readable
from pyoco_server.client.priced_results import PackInput

__all__ = ["Uploadable", "compared", "named_as"]

#: What can be uploaded.
Uploadable: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str] | Readable


def named_as(data: Uploadable, name: str | None, content_type: str | None) -> tuple[str | None, str | None]:
    """Return the name and type of a file: as given, else as derived from its path; None where neither is known."""
    if name is None and isinstance(data, str | os.PathLike):
        name = PurePath(data).name
    if content_type is None and name is not None:
        content_type = mimetypes.guess_type(name)[0]
    return name, content_type


def compared(stored: PackInput, sha256_hex: str) -> PackInput:
    """Return `stored`. Raises AnswerDamaged if the stored bytes differ from those sent."""
    if stored["sha256"] != sha256_hex:
        raise AnswerDamaged(f"a file was stored with the sha256 {stored['sha256']}, and {sha256_hex} was sent")
    return stored
