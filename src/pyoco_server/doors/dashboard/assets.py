"""The files of the dashboard, read once. What is asked for is looked up by name and never touches the disk again."""

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

#: What is served, by suffix. Whatever else lies in the folder is not there for anybody.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "application/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
#: The templates of the pages at `/` and `/docs`. They are served with the settings in them, and not as assets.
PAGE, DOCS = "index.html", "docs.html"
#: Their addresses begin with this and the version: `v-<version>/main.js`.
_VERSIONED = "v-"
#: Of a digest: a change that keeps all of these does not happen.
_DIGITS = 16


@dataclass(frozen=True)
class Asset:
    """One file, in the forms in which it is sent."""

    content: bytes = field(repr=False)
    media_type: str
    #: Of the content, without quotes.
    digest: str
    #: The content, packed; None when that is no smaller.
    gzipped: bytes | None = field(repr=False)


def make_asset(content: bytes, media_type: str) -> Asset:
    """O(bytes): the digest, and one try to pack it."""
    packed = gzip.compress(content, 9, mtime=0)  # no instant in it: the same content is the same bytes everywhere
    smaller = packed if len(packed) < len(content) else None
    return Asset(content, media_type, hashlib.sha256(content).hexdigest()[: 2 * _DIGITS], smaller)


@dataclass(frozen=True)
class Assets:
    """All files by their names within the folder, with slashes."""

    files: dict[str, Asset] = field(default_factory=dict)
    #: The page's template; None when the dashboard is not installed.
    template: str | None = None
    #: That of the page about the API; None likewise.
    docs: str | None = None
    #: Another one whenever any file is another one.
    version: str = ""

    @property
    def folder(self) -> str:
        """Where the files are, below `/static/`: an address that never shows other content (see `find`)."""
        return f"{_VERSIONED}{self.version}"

    def find(self, path: str) -> tuple[Asset, bool] | None:
        """The file at `/static/{path}`, and whether it stays as it is for ever. One dictionary lookup.

        With the address of another version the file of today is given: a page that was loaded before an upgrade goes
        on working, as far as the two versions understand each other. None: there is no such file.
        """
        folder, slash, name = path.partition("/")
        if slash and folder.startswith(_VERSIONED) and name in self.files:
            return self.files[name], folder == self.folder
        found = self.files.get(path)
        return None if found is None else (found, False)


def read_assets(folder: Path) -> Assets:
    """Everything in the folder that has a known suffix: a few hundred kilobytes, a few dozen milliseconds.

    A link leads out of the folder, so none is followed. A folder that cannot be read is one that is not there: the API
    does not need it (FLOW-246).
    """
    try:
        contents = dict(sorted(_contents(folder)))
    except OSError as error:
        log.warning("the dashboard's files cannot be read; there is none", error=error)
        return Assets()
    pages = {name: content.decode() for name in (PAGE, DOCS) if (content := contents.pop(name, None)) is not None}
    files = {name: make_asset(content, MEDIA_TYPES[_suffix(name)]) for name, content in contents.items()}
    lines = "".join(f"{asset.digest} {name}\n" for name, asset in files.items())
    version = hashlib.sha256(lines.encode()).hexdigest()[:_DIGITS]
    return Assets(files, pages.get(PAGE), pages.get(DOCS), version)


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Raises OSError, also for a folder within that cannot be looked into: half a dashboard helps nobody."""

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
