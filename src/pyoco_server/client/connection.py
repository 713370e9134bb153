"""Choose the server and the key: option, environment, profile, a server on this machine, default (FIND-4).

Used by `pyoco-client`, `pyoco-mcp` and clients that are created without an address.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pyoco_server.client.config_file import (
    ConfigFile,
    Profile,
    expanded,
    find_file,
    read_file,
    warnings_of,
)
from pyoco_server.discovery import HTTP, FoundServer, Need, find, find_in
from pyoco_server.errors import UsageError

__all__ = ["DEFAULT_SERVER", "Access", "Asked", "Connection", "access", "resolve", "shown_address"]

DEFAULT_SERVER = "http://127.0.0.1:8000"
_DEFAULT_HEADER = "X-API-Key"
_DEFAULT_TIMEOUT_SECONDS = 30.0
_KEY_FILE_BYTES_MAX = 4096

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VISIBLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class Asked:
    """The options before the subcommand. No file is read until a command needs a server; `--help` does not."""

    server: str | None = None
    api_key: str | None = field(default=None, repr=False)
    profile: str | None = None


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The effective settings."""

    server: str
    api_key: str | None = field(repr=False)
    api_key_header: str
    timeout_sec: float
    #: Where each of the four came from: `--server`, `PYOCO_API_KEY`, `profile staging`, `discovery …`, `default`.
    origins: Mapping[str, str]
    config_file: Path
    has_config_file: bool
    profile: str | None
    #: The local server that the address was taken from. None: the address has another origin.
    found: FoundServer | None = None
    #: Shown to the user.
    warnings: tuple[str, ...] = ()


def resolve(asked: Asked, environ: Mapping[str, str] | None = None, need: Need = HTTP) -> Connection:
    """Read the config file, if it exists, the key file, and the discovery files if no server is configured.

    Raises UsageError for an unusable file, SeveralServers, SettingError.
    """
    variables = os.environ if environ is None else environ
    name = asked.profile or variables.get("PYOCO_PROFILE") or None
    path, has_own_path = find_file(variables)
    read = read_file(path)
    if read is None and has_own_path:
        raise UsageError(f"PYOCO_CLIENT_CONFIG names {path}, and there is no such file")
    if read is None and name is not None:
        raise UsageError(f"there is no profile {name!r}: there is no file {path}")
    file, warnings = read or (ConfigFile(path, {}), [])
    profile = file.profile(name)
    origin = f"profile {name or 'default'}"

    named = (
        (asked.server, "--server"),
        (variables.get("PYOCO_SERVER_URL"), "PYOCO_SERVER_URL"),
        (profile.server, origin),
    )
    is_named = any(address for address, _ in named)
    found = None if is_named else _local_server(need, variables)
    if found is None and not is_named and (data_dir := variables.get("PYOCO_DATA_DIR")):
        warnings = [*warnings, f"no server runs in PYOCO_DATA_DIR={data_dir}; trying {DEFAULT_SERVER}"]
    local = (found.address, found.origin) if found is not None else (None, "")
    server, server_from = _first(*named, local, (DEFAULT_SERVER, "default"))
    address = _checked_address(server, server_from)
    # A profile's key is sent only to the profile's own server: `--server` may name any other.
    is_elsewhere = not _same_server(address, profile.server or DEFAULT_SERVER)
    key_of_profile, more = (None, []) if is_elsewhere else _key_of(profile, path)
    key, key_from = _first(
        (asked.api_key, "--api-key"),
        (variables.get("PYOCO_API_KEY"), "PYOCO_API_KEY"),
        (key_of_profile, origin),
        (None, _no_key(profile, origin, is_elsewhere)),
    )
    header, header_from = _first(
        (variables.get("PYOCO_HTTP_API_KEY_HEADER"), "PYOCO_HTTP_API_KEY_HEADER"),
        (profile.api_key_header, origin),
        (_DEFAULT_HEADER, "default"),
    )
    timeout, timeout_from = _first((profile.timeout_sec, origin), (_DEFAULT_TIMEOUT_SECONDS, "default"))
    return Connection(
        server=server,
        api_key=_checked_key(key, key_from),
        api_key_header=_checked_header(header, header_from),
        timeout_sec=_checked_timeout(timeout, timeout_from),
        origins={
            "server": server_from,
            "api_key": key_from,
            "api_key_header": header_from,
            "timeout_sec": timeout_from,
        },
        config_file=path,
        has_config_file=read is not None,
        profile=name or ("default" if "default" in file.profiles else None),
        found=found,
        warnings=(*warnings, *more),
    )


def _local_server(need: Need, variables: Mapping[str, str]) -> FoundServer | None:
    """Raises SeveralServers, SettingError."""
    data_dir = variables.get("PYOCO_DATA_DIR")
    return find_in(data_dir, need, variables) if data_dir else find(need, environ=variables)


@dataclass(frozen=True)
class Access:
    """The address and the API key of a library client."""

    base_url: str
    api_key: str | None = field(repr=False)
    api_key_header: str


def access(base_url: str | None, api_key: str | None, api_key_header: str) -> Access:
    """Return the arguments. Without an address, use the address and key that `pyoco-client` would use.

    A given key takes precedence. Raises UsageError, SeveralServers, SettingError.
    """
    import logging  # noqa: PLC0415 - not for the help of commands

    log = logging.getLogger(__name__)
    if base_url is not None:
        return Access(base_url, api_key, api_key_header)
    connection = resolve(Asked(api_key=api_key), need=Need("http", "base_url"))
    for warning in connection.warnings:
        log.warning("%s", warning)
    if connection.found is not None:
        log.info("%s", connection.found.line)
    header = connection.api_key_header if api_key_header == _DEFAULT_HEADER else api_key_header
    return Access(connection.server, connection.api_key, header)


def _first(*candidates: tuple[Any, str]) -> tuple[Any, str]:
    """Return the first candidate with a value, or the last one. An empty string counts as missing, as for variables."""
    return next((each for each in candidates if each[0] not in (None, "")), candidates[-1])


def _no_key(profile: Profile, origin: str, is_elsewhere: bool) -> str:
    if is_elsewhere and (profile.api_key or profile.api_key_file):
        return f"none: the key of {origin} belongs to {shown_address(profile.server or DEFAULT_SERVER)}"
    return "none"


def _key_of(profile: Profile, path: Path) -> tuple[str | None, list[str]]:
    if profile.api_key_file is None:
        return profile.api_key, []
    place = path.parent / expanded(profile.api_key_file, f"api_key_file in {path}")
    try:
        with place.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_KEY_FILE_BYTES_MAX)
        return content.decode().strip(), warnings_of(place, mode)
    except (OSError, ValueError) as error:
        # Do not show a decoding error: its text contains a part of the key.
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read the key in {place}: {reason}") from None


def _checked_address(server: str, origin: str) -> SplitResult:
    try:
        parts = urlsplit(server)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        is_usable = is_usable and not (parts.query or parts.fragment) and not re.search(r"\s", server)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UsageError(
            f"{_shown_text(server)!r} ({origin}) is not the address of a server; example: --server {DEFAULT_SERVER}"
        )
    return parts


def _same_server(one: SplitResult, other: str) -> bool:
    def name(address: SplitResult) -> tuple[str, str | None, int | None, str]:
        port = address.port or {"http": 80, "https": 443}.get(address.scheme)
        return address.scheme, address.hostname, port, address.path.rstrip("/")

    try:
        return name(one) == name(urlsplit(other))
    except ValueError:
        return False


def shown_address(server: str) -> str:
    """Mask user name and password in an address. The password may contain an @."""
    return re.sub(r"//[^/?#]*@", "//***@", server)


def _shown_text(text: str) -> str:
    """Mask everything before the last @ of an invalid address, since the end of a password cannot be determined."""
    return re.sub(r"^([a-z]+://)?.*@", r"\1***@", text, flags=re.DOTALL | re.IGNORECASE)


def _checked_key(key: str | None, origin: str) -> str | None:
    if key is not None and not _VISIBLE.fullmatch(key):
        raise UsageError(f"the API key ({origin}) may hold visible ASCII characters only, and no spaces")
    return key


def _checked_header(name: str, origin: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise UsageError(f"{name!r} ({origin}) is not the name of a header; example: {_DEFAULT_HEADER}")
    return name


def _checked_timeout(seconds: float, origin: str) -> float:
    if not (math.isfinite(seconds) and 0 < seconds <= 86_400):
        raise UsageError(f"timeout_sec of {origin} must be above 0 and at most 86400")
    return float(seconds)
