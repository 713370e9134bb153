"""Write the discovery file (`discovery.server_file`) of a server on this machine. The server runs within a block:

    with announced(command="up", data_dir=path, config=config, http=[address], nats=[url]):
        ...

The file is removed at the end of the block.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import pepper_fingerprint
from pyoco_server.discovery.server_file import (
    FILE_NAME,
    LocalServer,
    encode,
    is_enabled,
    is_running,
    read,
    started_at,
    state_files,
    state_folder,
)
from pyoco_server.logs import get_logger

__all__ = ["announced", "without_credentials"]

log = get_logger(__name__)

_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?.*@", re.DOTALL)


@contextlib.contextmanager
def announced(
    *,
    command: str,
    data_dir: Path,
    config: NatsBackendConfig,
    http: Sequence[str] = (),
    nats: Sequence[str] = (),
    frames: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[LocalServer | None]:
    """Write the discovery file for the duration of the block. Enter the block once the server accepts work.

    `nats` may contain addresses separated by commas; credentials in addresses are removed. A path that cannot be
    written causes one warning, and the server continues (FIND-2). Yields None if PYOCO_DISCOVERY is off. After a kill
    -9 the files remain: readers detect that the process has exited, and the next server of this user removes them.
    Raises SettingError.
    """
    variables = os.environ if environ is None else environ
    if not is_enabled(variables):
        yield None
        return
    server = LocalServer(
        id=secrets.token_hex(16),
        command=command,
        version=metadata.version("pyoco-server"),
        pid=os.getpid(),
        pid_started_at=started_at(os.getpid()) or time.time(),
        hostname=os.uname().nodename,
        started_at=time.time(),
        http=tuple(map(without_credentials, http)),
        nats=tuple(without_credentials(each.strip()) for addresses in nats for each in addresses.split(",")),
        frames=frames,
        data_dir=str(data_dir.resolve()),
        auth_mode=config.http_auth_mode,
        pepper_fingerprint=pepper_fingerprint(config.auth_pepper),
    )
    _remove_stale(variables)
    written = [place for place in _places(server, variables) if _write(place, server)]
    try:
        yield server
    finally:
        for place in written:
            _remove(place, server)


def without_credentials(address: str) -> str:
    """FIND-3: remove user, password or token before an `@`, and everything after a `?` or `#`."""
    return re.split(r"[?#]", _USERINFO.sub(r"\1", address), maxsplit=1)[0]


def _places(server: LocalServer, variables: Mapping[str, str]) -> list[Path]:
    """Return the paths to write.

    A door may use the data directory of `up`, whose file must not be overwritten: HTTP clients find their gateway with
    it.
    """
    here = Path(server.data_dir, FILE_NAME)
    other = read(here)
    places = [here] if other is None or not is_running(other) else []
    folder = state_folder(variables)
    if folder is not None:
        places.append(folder / f"{server.id}.json")
    return places


def _write(place: Path, server: LocalServer) -> bool:
    is_in_data_dir = place.name == FILE_NAME
    try:
        if is_in_data_dir:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            _make_private(place.parent.parent)
            _make_private(place.parent)
        _replace(place, encode(server))
    except OSError as error:
        log.warning(
            "discovery file not written; other commands need the address of this server",
            path=str(place),
            reason=error.strerror or str(error),
        )
        return False
    return True


def _make_private(folder: Path) -> None:
    """Create the folder and its missing parents with mode 0700. Raises OSError if another user owns it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a directory of this user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)


def _replace(place: Path, content: bytes) -> None:
    """Write atomically: readers see the old or the complete new file. A symbolic link is replaced, not followed."""
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
        temporary.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _remove(place: Path, server: LocalServer) -> None:
    """Remove the file if it is still the one of this server."""
    with contextlib.suppress(OSError):
        if place.read_bytes() == encode(server):
            place.unlink()


def _remove_stale(variables: Mapping[str, str]) -> None:
    """Remove files of this user whose server is no longer running (FIND-6).

    Files of other machines stay: the home directory may be shared, and their servers may be running.
    """
    for path in state_files(variables):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                continue
            server = read(path)
            is_elsewhere = server is not None and server.hostname != os.uname().nodename
            if not is_elsewhere and (server is None or not is_running(server)):
                path.unlink()
