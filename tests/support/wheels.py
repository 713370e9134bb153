"""Wheels for tests, made by hand: real ones that pip installs, and the parts to make broken ones of.

    file_name, content = build_wheel("my-tasks", "1.0", modules={"my_tasks/__init__.py": "..."})

For a broken one take `wheel_files`, change what you like, and `pack` it; `with_record` writes the RECORD that fits.
"""

from __future__ import annotations

import base64
import hashlib
import io
import random
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["build_wheel", "dist_info_of", "pack", "wheel_files", "with_record", "write_wheel"]

_ENTRY_POINTS: Mapping[str, Mapping[str, str]] = {}
#: What zip files of ours carry as their date, so that the same wheel has the same bytes each time.
_DATE = (2024, 1, 1, 0, 0, 0)


def build_wheel(
    package: str = "my-tasks",
    version: str = "1.0",
    *,
    modules: Mapping[str, str | bytes] | None = None,
    requires: Iterable[str] = (),
    entry_points: Mapping[str, Mapping[str, str]] = _ENTRY_POINTS,
    requires_python: str | None = None,
    tag: str = "py3-none-any",
    pad_bytes: int = 0,
) -> tuple[str, bytes]:
    """Returns file name and bytes. The same arguments give the same bytes.

    `modules`: path to content; the default is a package of the package's name that holds VERSION.
    `entry_points`: group to name to "module:object". `pad_bytes`: this many bytes that do not compress, as a file.
    """
    files = wheel_files(
        package,
        version,
        modules=modules,
        requires=requires,
        entry_points=entry_points,
        requires_python=requires_python,
        tag=tag,
        pad_bytes=pad_bytes,
    )
    return f"{_file_word(package)}-{version}-{tag}.whl", pack(with_record(files, dist_info_of(package, version)))


def write_wheel(directory: Path, package: str = "my-tasks", version: str = "1.0", **parts: Any) -> Path:
    """As `build_wheel`, into a file."""
    file_name, content = build_wheel(package, version, **parts)
    path = directory / file_name
    path.write_bytes(content)
    return path


def dist_info_of(package: str = "my-tasks", version: str = "1.0") -> str:
    return f"{_file_word(package)}-{version}.dist-info"


def wheel_files(
    package: str = "my-tasks",
    version: str = "1.0",
    *,
    modules: Mapping[str, str | bytes] | None = None,
    requires: Iterable[str] = (),
    entry_points: Mapping[str, Mapping[str, str]] = _ENTRY_POINTS,
    requires_python: str | None = None,
    tag: str = "py3-none-any",
    pad_bytes: int = 0,
) -> dict[str, bytes]:
    """Every file of a wheel but its RECORD, by path."""
    if modules is None:
        modules = {f"{_file_word(package)}/__init__.py": f'VERSION = "{version}"\n'}
    files = {path: text.encode() if isinstance(text, str) else text for path, text in modules.items()}
    if pad_bytes:
        files[f"{_file_word(package)}/padding.bin"] = random.Random(0).randbytes(pad_bytes)
    info = dist_info_of(package, version)
    lines = ["Metadata-Version: 2.1", f"Name: {package}", f"Version: {version}"]
    lines += [f"Requires-Python: {requires_python}"] if requires_python is not None else []
    lines += [f"Requires-Dist: {one}" for one in requires]
    files[f"{info}/METADATA"] = "\n".join([*lines, "", "Made by a test.\n"]).encode()
    python, abi, platform = tag.split("-")[-3:]
    tags = [f"{a}-{b}-{c}" for a in python.split(".") for b in abi.split(".") for c in platform.split(".")]
    build = [f"Build: {tag.split('-', maxsplit=1)[0]}"] if tag.count("-") > 2 else []
    wheel = [
        "Wheel-Version: 1.0",
        "Generator: tests",
        "Root-Is-Purelib: true",
        *(f"Tag: {one}" for one in tags),
        *build,
    ]
    files[f"{info}/WHEEL"] = "\n".join([*wheel, ""]).encode()
    if entry_points:
        groups = (
            [f"[{group}]", *(f"{k} = {v}" for k, v in names.items()), ""] for group, names in entry_points.items()
        )
        files[f"{info}/entry_points.txt"] = "\n".join(line for group in groups for line in group).encode()
    return files


def with_record(files: Mapping[str, bytes], dist_info: str) -> dict[str, bytes]:
    """The same files, and the RECORD that lists them all."""
    lines = [
        f"{_cell(path)},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for path, data in files.items()
    ]
    record = f"{dist_info}/RECORD"
    return {**files, record: "\n".join([*lines, f"{record},,", ""]).encode()}


def pack(files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive of them, in their order. A path that ends in a slash is a directory."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _DATE)
            entry.compress_type = compression
            entry.external_attr = 0o040755 << 16 | 0x10 if path.endswith("/") else 0o100644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def _file_word(package: str) -> str:
    """The name of a package as written in a file name."""
    return package.replace("-", "_").replace(".", "_").lower()


def _cell(path: str) -> str:
    return '"' + path.replace('"', '""') + '"' if "," in path or '"' in path else path
