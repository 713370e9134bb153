"""A multipart form around one file, framed by hand: the file's bytes pass by and are never held."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Form", "frame"]


@dataclass(frozen=True)
class Form:
    """What goes before the file's bytes, and what goes after them."""

    content_type: str
    file_name: str
    head: bytes
    tail: bytes

    def length(self, file_bytes: int) -> int:
        """The Content-Length, when the file's size is known."""
        return len(self.head) + file_bytes + len(self.tail)


def frame(fields: Mapping[str, str], name: str, file_name: str, file_type: str) -> Form:
    """The fields come first: whoever reads the form as it arrives knows them before the file."""
    boundary = secrets.token_hex(16)  # 128 random bits: not in the file
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
    """As browsers do it: a name cannot end its line."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
