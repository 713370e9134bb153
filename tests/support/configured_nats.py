"""A nats-server with a configuration of its own, which `tests/support/servers.py` does not offer."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.servers import _answers, _die_with_parent

__all__ = ["ConfiguredNats", "configured_nats"]

_START_SECONDS = 60.0


@dataclass(frozen=True)
class ConfiguredNats:
    port: int
    #: 0: it has no monitoring port.
    http_port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def freeze(self) -> None:
        """Suspend it: it keeps its connections and answers no request. Returns once all its threads are stopped."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        deadline = time.monotonic() + _START_SECONDS
        while any(_state(task / "stat") != "T" for task in tasks.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.005)


def _state(stat: Path) -> str:
    return stat.read_text().rpartition(") ")[2][0]


@contextlib.contextmanager
def configured_nats(folder: Path, configuration: str = "", *, jetstream: str = "") -> Iterator[ConfiguredNats]:
    """`configuration` as in a nats.conf; `jetstream` stands below that word. Returns once it accepts connections."""
    store = f'jetstream {{ store_dir: "{folder / "store"}"\n{jetstream} }}\n' if jetstream != "off" else ""
    file = folder / "nats.conf"
    file.write_text(f'host: "127.0.0.1"\nport: -1\nports_file_dir: "{folder}"\n{store}{configuration}\n')
    binary = Path(sysconfig.get_path("scripts")) / "nats-server"
    with (folder / "log.txt").open("wb") as output:
        process = subprocess.Popen(
            [binary, "--config", file],
            stdout=output,
            stderr=output,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (it takes no lock)
        )
    try:
        yield _ready(process, folder)
    finally:
        process.kill()
        process.wait(60)


def _ready(process: subprocess.Popen[bytes], folder: Path) -> ConfiguredNats:
    ports_file = folder / f"nats-server_{process.pid}.ports"
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "log.txt").read_text()
        if ports_file.exists() and (written := ports_file.read_text()):
            ports = json.loads(written)
            port, http = (int(ports[key][0].rsplit(":", 1)[1]) if key in ports else 0 for key in ("nats", "monitoring"))
            if _answers(port):
                return ConfiguredNats(port, http, process)
        time.sleep(0.02)
    raise AssertionError(f"nats-server did not start: {(folder / 'log.txt').read_text()}")
