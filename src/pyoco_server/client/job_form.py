"""Encodes the multipart form of a job by hand, so that its files can be streamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyoco_server.client.calls import words
from pyoco_server.client.files import Source
from pyoco_server.core.programs.names import check_file_names

__all__ = ["JobFile", "JobFiles", "JobForm", "named_files"]

#: An input file: its bytes or its path.
JobFile = bytes | bytearray | memoryview | str | os.PathLike[str]
#: Files by name; or paths, each under its own file name.
JobFiles = Mapping[str, JobFile] | Sequence[str | os.PathLike[str]]


def named_files(files: JobFiles | None) -> dict[str, JobFile]:
    """Return the files by name, in their order.

    Raises GridRefused for an invalid file name, ValueError for two paths with the same name, TypeError for a single
    path.
    """
    if files is None:
        return {}
    if isinstance(files, Mapping):
        named: dict[str, JobFile] = dict(files)
    else:
        if isinstance(files, str | bytes | os.PathLike):
            raise TypeError("a list of paths is expected, not one path")
        named = {Path(path).name: path for path in files}
        if len(named) != len(files):
            raise ValueError("two of the files have the same name")
    check_file_names(named)
    return named


class JobForm:
    """The form of one job. Its files stay open until `close`, and can be sent again from their start."""

    def __init__(self, fields: Mapping[str, str], args: Sequence[str], files: Mapping[str, JobFile]) -> None:
        """Raises OSError for a file that cannot be read."""
        self._boundary = secrets.token_hex(16)  # 128 random bits: does not occur in any file
        given = [*fields.items(), *(("arg", arg) for arg in words(args) or ())]
        self._head = "".join(self._part(name, "") + f"{value}\r\n" for name, value in given).encode()
        self._tail = f"--{self._boundary}--\r\n".encode()
        self._files: list[tuple[bytes, Source]] = []
        try:
            for name, data in files.items():
                self._files.append((self._part("file", name).encode(), Source(data)))
        except BaseException:
            self.close()
            raise

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self._boundary}"

    @property
    def length(self) -> int:
        files = sum(len(head) + (source.size or 0) + len(b"\r\n") for head, source in self._files)
        return len(self._head) + files + len(self._tail)

    def restart(self) -> None:
        for _, source in self._files:
            source.restart()

    def pieces(self) -> Iterator[bytes]:
        """Yield the complete form. Raises OSError, SourceChanged. Blocks while reading files."""
        yield self._head
        for head, source in self._files:
            yield head
            while chunk := source.read():
                yield chunk
            yield b"\r\n"
        yield self._tail

    def close(self) -> None:
        for _, source in self._files:
            source.close()

    def _part(self, name: str, file_name: str) -> str:
        """Return the head of a part. A file name cannot end its line: control characters are refused before."""
        file = ""
        if file_name:
            quoted = file_name.replace('"', '\\"')
            file = f'; filename="{quoted}"\r\nContent-Type: application/octet-stream'
        return f'--{self._boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
