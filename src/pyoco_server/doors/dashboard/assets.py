"""The files of the dashboard, read once at startup. Requests are looked up by name and never touch the disk."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pyoco_server.logs import get_logger

__all__ = ["MEDIA_TYPES", "PAGE", "Asset", "Assets", "make_asset", "read_assets"]

log = get_logger(__name__)

#: Served file types by suffix. Other files in the folder are not served.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "application/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
#: Templates of the pages at `/` and `/docs`. They are served with the settings filled in, and not as assets.
PAGE, DOCS = "index.html", "docs.html"
#: Prefix of the versioned URLs: `v-<version>/main.js`.
_VERSIONED = "v-"
#: Hex digits of the version, bytes of a digest; enough to rule out collisions.
_DIGITS = 16


@dataclass(frozen=True)
class Asset:
    """One file, in the representations in which it is served."""

    content: bytes = field(repr=False)
    media_type: str
    #: Digest of the content, without quotes.
    digest: str
    #: The gzipped content, or None if that is not smaller.
    gzipped: bytes | None = field(repr=False)


def make_asset(content: bytes, media_type: str) -> Asset:
    """O(bytes): computes the digest and tries to compress once."""
    packed = gzip.compress(content, 9, mtime=0)  # no timestamp, so the same content gives the same bytes everywhere
    smaller = packed if len(packed) < len(content) else None
    return Asset(content, media_type, hashlib.sha256(content).hexdigest()[: 2 * _DIGITS], smaller)


@dataclass(frozen=True)
class Assets:
    """All files by their path within the folder, with slashes."""

    files: dict[str, Asset] = field(default_factory=dict)
    #: The page's template, or None if the dashboard is not installed.
    template: str | None = None
    #: The template of the API page, or None likewise.
    docs: str | None = None
    #: Changes whenever any file changes.
    version: str = ""

    @property
    def folder(self) -> str:
        """The folder below `/static/` whose content never changes (see `find`)."""
        return f"{_VERSIONED}{self.version}"

    def find(self, path: str) -> tuple[Asset, bool] | None:
        """Return the file at `/static/{path}`, and whether its content never changes. One dictionary lookup.

        A URL of another version returns the current file: a page loaded before an upgrade keeps working, as far as the
        two versions are compatible. Returns None if there is no such file.
        """
        folder, slash, name = path.partition("/")
        if slash and folder.startswith(_VERSIONED) and name in self.files:
            return self.files[name], folder == self.folder
        found = self.files.get(path)
        return None if found is None else (found, False)


def read_assets(folder: Path) -> Assets:
    """Read every file in the folder that has a known suffix: a few hundred kilobytes in a few dozen milliseconds.

    Symbolic links are not followed, because they lead out of the folder. An unreadable folder counts as missing: the
    API does not need it (FLOW-246).
    """
    try:
        contents = dict(sorted(_contents(folder)))
    except OSError as error:
        log.warning("cannot read the dashboard's files; dashboard disabled", error=error)
        return Assets()
    pages = {name: content.decode() for name in (PAGE, DOCS) if (content := contents.pop(name, None)) is not None}
    files = {name: make_asset(content, MEDIA_TYPES[_suffix(name)]) for name, content in contents.items()}
    lines = "".join(f"{asset.digest} {name}\n" for name, asset in files.items())
    version = hashlib.sha256(lines.encode()).hexdigest()[:_DIGITS]
    return Assets(files, pages.get(PAGE), pages.get(DOCS), version)


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Raises OSError, also for an unreadable subfolder: an incomplete dashboard is of no use."""

    def stop(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for place, _, names in os.walk(folder, onerror=stop, followlinks=False):
        for name in names:
            path = Path(place, name)
            if _suffix(name) in MEDIA_TYPES and path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), path.read_bytes()


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix
