"""Local servers as commands find them: discovery files in a state directory of the test's own."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyoco_server.discovery.server_file import FILE_NAME, LocalServer, encode, started_at
from support.surroundings import variables_without

__all__ = ["Machine", "a_server"]


def a_server(folder: Path, **members: object) -> LocalServer:
    """A server whose process is this one, with its data in `folder/.pyoco`."""
    began = started_at(os.getpid())
    assert began is not None
    server = LocalServer(
        id=secrets.token_hex(16),
        command="up",
        version="0.7.0",
        pid=os.getpid(),
        pid_started_at=began,
        hostname=os.uname().nodename,
        started_at=time.time(),
        http=("http://127.0.0.1:8123",),
        nats=("nats://127.0.0.1:4333",),
        frames="127.0.0.1:5123",
        data_dir=str(folder / ".pyoco"),
        auth_mode="none",
        pepper_fingerprint="none",
    )
    return replace(server, **members)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Machine:
    """A user's folders. `variables` are those of a process that finds servers there and nowhere else."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state" / "pyoco" / "servers"

    @property
    def variables(self) -> Mapping[str, str]:
        return {
            **variables_without("PYOCO_", "XDG_"),
            "PYOCO_DISCOVERY": "1",
            "PYOCO_LOAD_DOTENV": "0",
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }

    def place(self, name: str) -> Path:
        """A directory to work in."""
        made = self.folder / name
        made.mkdir(exist_ok=True)
        return made

    def announce(self, server: LocalServer, *, state: bool = True, data_dir: bool = True) -> Path:
        """Write its files as the server does; returns the one in the state directory."""
        self.state.mkdir(parents=True, exist_ok=True)
        places = [self.state / f"{server.id}.json"] if state else []
        if data_dir:
            Path(server.data_dir).mkdir(parents=True, exist_ok=True)
            places.append(Path(server.data_dir, FILE_NAME))
        for place in places:
            place.write_bytes(encode(server))
            place.chmod(0o600)
        return self.state / f"{server.id}.json"
