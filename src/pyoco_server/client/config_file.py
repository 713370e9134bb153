"""`client.toml`: named servers and their keys, so that no key appears on a command line (FLOW-539).

    [default]
    server = "http://127.0.0.1:8000"

    [profiles.staging]
    server = "https://pyoco.example.org"
    api_key_file = "staging.key"

Profiles do not inherit: a missing setting has the built-in default, never another profile's value. Unknown settings are
refused: an API key under a misspelt name would silently never be sent.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pyoco_server.errors import UsageError

__all__ = ["ConfigFile", "Profile", "expanded", "find_file", "read_file", "warnings_of"]

#: More than any hand-written file; limits the memory that a wrong path can use.
_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One server and its credentials."""

    server: str | None = None
    api_key: str | None = field(default=None, repr=False)
    #: A file that contains only the key; relative to the directory of the config file.
    api_key_file: str | None = None
    api_key_header: str | None = None
    timeout_sec: float | None = None


_KEYS = tuple(each.name for each in fields(Profile))


@dataclass(frozen=True)
class ConfigFile:
    """The parsed config file."""

    path: Path
    #: By name; `default` is used unless another one is selected.
    profiles: Mapping[str, Profile]

    def profile(self, name: str | None) -> Profile:
        """Return a profile by name; None selects `[default]`, which may be missing. Raises UsageError."""
        if name is None:
            return self.profiles.get("default", Profile())
        if name not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise UsageError(f"there is no profile {name!r} in {self.path}; there: {known}")
        return self.profiles[name]


def find_file(environ: Mapping[str, str]) -> tuple[Path, bool]:
    """Return the path of the file, and whether it was set explicitly; then it must exist."""
    named = environ.get("PYOCO_CLIENT_CONFIG")
    if named:
        return expanded(named, "PYOCO_CLIENT_CONFIG"), True
    base = environ.get("XDG_CONFIG_HOME")
    # As the XDG standard demands, relative paths are ignored: they would depend on the working directory.
    home = Path(base) if base and Path(base).is_absolute() else Path("~/.config")
    with contextlib.suppress(RuntimeError):  # a user without a home has no file, and needs none
        home = home.expanduser()
    return home / "pyoco" / "client.toml", False


def expanded(path: str, origin: str) -> Path:
    """Expand `~` and `~name`. Raises UsageError if there is no such home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{origin} names {path}: {error}") from error


def read_file(path: Path) -> tuple[ConfigFile, list[str]] | None:
    """Return the parsed file and warnings for its owner. None: the file does not exist."""
    if path.parts[:1] == ("~",):  # no home directory; do not read a directory that is named ~
        return None
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if len(content) > _BYTES_MAX:
        raise UsageError(f"cannot read {path}: it has more than {_BYTES_MAX} bytes")
    found = ConfigFile(path, _profiles(_parsed(content, path), path))
    holds_key = any(profile.api_key for profile in found.profiles.values())
    return found, warnings_of(path, mode) if holds_key else []


def warnings_of(path: Path, mode: int) -> list[str]:
    """Return warnings about the permissions of a file that holds a key."""
    if os.name != "posix" or not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return []
    return [f"warning: other users of this machine may read {path}, which holds an API key: chmod 600 {path}"]


def _parsed(content: bytes, path: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only needed if there is a file

    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def _profiles(document: dict[str, Any], path: Path) -> dict[str, Profile]:
    for name in document:
        if name not in {"default", "profiles"}:
            raise UsageError(f"{path}: [{name}] is not known; write [default] or [profiles.{name}]")
    named = document.get("profiles", {})
    if not isinstance(named, dict):
        raise UsageError(f"{path}: profiles must be tables, for example [profiles.staging]")
    if "default" in named:
        raise UsageError(f"{path}: write [default] instead of [profiles.default]")
    tables = {"default": document["default"]} if "default" in document else {}
    return {name: _profile(name, table, path) for name, table in {**tables, **named}.items()}


def _profile(name: str, table: Any, path: Path) -> Profile:
    place = "[default]" if name == "default" else f"[profiles.{name}]"
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {name} must be a table: {place}")
    for key, value in table.items():
        if key not in _KEYS:
            meant = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"; did you mean {meant[0]}?" if meant else f"; known: {', '.join(_KEYS)}"
            raise UsageError(f"{path}: {place} has no setting {key!r}{hint}")
        wanted = "a number" if key == "timeout_sec" else "text"
        fits = isinstance(value, int | float) and value is not True and value is not False
        if not (fits if key == "timeout_sec" else isinstance(value, str)):
            raise UsageError(f"{path}: {key} of {place} must be {wanted}")
    if "api_key" in table and "api_key_file" in table:
        raise UsageError(f"{path}: {place} has both api_key and api_key_file; leave one of them")
    return Profile(**table)
