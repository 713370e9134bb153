"""Wheels to measure with: true ones, as large as asked for."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

__all__ = ["make_wheel"]

_PIECE = 1 << 20


def make_wheel(directory: Path, package: str, version: str, size_bytes: int = 0) -> Path:
    """A wheel with one module, and random bytes beside it: nothing that could be compressed."""
    path = directory / f"{package}-{version}-py3-none-any.whl"
    info = f"{package}-{version}.dist-info"
    files = {
        f"{package}/__init__.py": f"VERSION = {version!r}\n\n\ndef version() -> str:\n    return VERSION\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
            lines.append(_line(name, hashlib.sha256(data), len(data)))
        if size_bytes:
            digest = hashlib.sha256()
            with archive.open(f"{package}/data.bin", "w", force_zip64=True) as member:
                for start in range(0, size_bytes, _PIECE):
                    piece = os.urandom(min(_PIECE, size_bytes - start))
                    digest.update(piece)
                    member.write(piece)
            lines.append(_line(f"{package}/data.bin", digest, size_bytes))
        archive.writestr(f"{info}/RECORD", "".join(lines) + f"{info}/RECORD,,\n")
    return path


def _line(name: str, digest: hashlib._Hash, size_bytes: int) -> str:
    text = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return f"{name},sha256={text},{size_bytes}\n"
