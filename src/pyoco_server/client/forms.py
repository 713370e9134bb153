"""Encodes a multipart form around one file by hand, so that the file can be streamed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Form", "frame"]


@dataclass(frozen=True)
class Form:
    """The bytes before and after the file."""

    content_type: str
    file_name: str
    head: bytes
    tail: bytes

    def length(self, file_bytes: int) -> int:
        """Return the Content-Length for a file of this size."""
        return len(self.head) + file_bytes + len(self.tail)


def frame(fields: Mapping[str, str], name: str, file_name: str, file_type: str) -> Form:
    """Return the form. The fields come first, so that a streaming reader has them before the file."""
    boundary = secrets.token_hex(16)  # 128 random bits: does not occur in the file
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(key)}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    ]
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"; filename="{_quoted(file_name)}"\r\n'
        f"Content-Type: {file_type}\r\n\r\n"
    )
    head = "".join(parts).encode()
    tail = f"\r\n--{boundary}--\r\n".encode()
    return Form(f"multipart/form-data; boundary={boundary}", file_name, head, tail)


def _quoted(text: str) -> str:
    """Escape a name as browsers do, so that it cannot end its line."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
