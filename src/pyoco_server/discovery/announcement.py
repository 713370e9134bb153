"""A server that starts on this machine writes its discovery file (`discovery.server_file`). It serves within a block:

    with announced(command="up", data_dir=path, config=config, http=[address], nats=[url]):
        ...

The file is removed at its end.
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
    """Write the discovery file for the time of the block. Enter it once the server accepts work.

    `nats` may be addresses with commas; credentials in addresses are left out. A place that cannot be written is one
    warning, and the server goes on (FIND-2). Yields None when PYOCO_DISCOVERY is off. After a kill -9 the files stay:
    readers see that the process is gone, and the next server of this user removes them. Raises SettingError.
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
    """FIND-3: the user, password or token before an `@` is left out, and whatever follows a `?` or `#`."""
    return re.split(r"[?#]", _USERINFO.sub(r"\1", address), maxsplit=1)[0]


def _places(server: LocalServer, variables: Mapping[str, str]) -> list[Path]:
    """A door may use the data directory of `up`, whose file has to stay: clients over HTTP find their gateway by it."""
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
    """Make the folder, and those above it that are missing, with mode 0700. Raises OSError when it is not ours."""
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
    """Readers see the old file or the whole new one. A link in the place of the file is replaced, not followed."""
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
    """Only the file of this server."""
    with contextlib.suppress(OSError):
        if place.read_bytes() == encode(server):
            place.unlink()


def _remove_stale(variables: Mapping[str, str]) -> None:
    """Files of this user whose server is gone (FIND-6).

    Those of other machines stay, though they are stale here: the home directory may be shared, and the server runs.
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
