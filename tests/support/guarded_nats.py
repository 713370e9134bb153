"""A NATS that speaks TLS alone and knows five users, with the rights that `nats-permissions` prints; and our processes,
each of them as the user of its role.

    with guarded_site(tmp_path) as site:
        site.admin("prepare")
        gateway = site.start("gateway", "pyoco-server", "gateway", "--port", "0")
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.nats.permissions import Role, inbox_prefix
from support.configured_nats import ConfiguredNats, configured_nats
from support.priced.url_sites import Authority
from support.servers import quick_folder
from support.surroundings import variables_without
from support.warm_processes import begun, ran

__all__ = ["GuardedSite", "RoleProcess", "guarded_site", "tls_block"]

_BIN = Path(sys.executable).parent
_VIOLATION = re.compile(r'"\w+/user:(\w+)" - (Publish|Subscription) Violation - Subject "([^"]+)"')
#: So that a test sees duties within seconds that take their time in a deployment.
_QUICK = {
    "PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC": "0.5",
    "PYOCO_RUN_HEARTBEAT_INTERVAL_SEC": "0.2",
    "PYOCO_CANCEL_GRACE_PERIOD_SEC": "0.5",
}


def tls_block(authority: Authority, chain: Path, *, mutual: bool = False) -> str:
    """For a nats.conf; with `mutual`, clients must show a certificate."""
    ca = f'ca_file: "{authority.ca_file}", verify: true' if mutual else ""
    return f'tls {{ cert_file: "{chain}", key_file: "{chain}", {ca} }}\n'


class RoleProcess:
    """One of our commands, as the user of a role."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self.name, self._out = name, folder / f"{name}.out"
        with self._out.open("wb") as out:
            self.process = begun(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(environment), cwd=folder
            )

    @property
    def said(self) -> str:
        return self._out.read_text(errors="replace")

    def until_said(self, words: str, seconds: float = 120.0) -> RoleProcess:
        deadline = time.monotonic() + seconds
        while words not in self.said:
            assert self.process.poll() is None, f"{self.name} ended: {self.said[-3000:]}"
            assert time.monotonic() < deadline, f"{self.name} did not say {words!r}: {self.said[-3000:]}"
            time.sleep(0.05)
        return self

    def ended(self, seconds: float = 120.0) -> int:
        return self.process.wait(seconds)


@dataclass
class GuardedSite:
    folder: Path
    nats: ConfiguredNats
    authority: Authority
    common: dict[str, str]
    processes: list[RoleProcess] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"tls://127.0.0.1:{self.nats.port}"

    @property
    def nats_log(self) -> str:
        return (self.folder / "nats" / "log.txt").read_text()

    def violations(self) -> list[tuple[str, str, str]]:
        """What NATS has refused so far: user, act, subject."""
        return _VIOLATION.findall(self.nats_log)

    def reload(self, password_of: Mapping[str, str]) -> None:
        """Other passwords, as an operator changes them."""
        _write_passwords(self.folder / "nats", password_of)
        self.nats.process.send_signal(1)  # SIGHUP

    def variables(self, role: str) -> dict[str, str]:
        """What a process of that role has to be told."""
        return {
            "PYOCO_NATS_URL": self.url,
            "PYOCO_NATS_TLS_CA": str(self.authority.ca_file),
            "PYOCO_NATS_USER": role,
            "PYOCO_NATS_PASSWORD_FILE": str(self.folder / f"{role}.password"),
            "PYOCO_NATS_INBOX_PREFIX": inbox_prefix(Role(role)),
        }

    def config(self, role: str) -> NatsBackendConfig:
        data_dir = str(self.folder / f"data-{role}-here")
        return NatsBackendConfig.from_env({"PYOCO_LOAD_DOTENV": "0", **self.variables(role)}, data_dir=data_dir)

    def environment(self, role: str, name: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"PYOCO_DATA_DIR": str(self.folder / f"data-{name}"), **self.variables(role)}
        return {**self.common, **own, **(more or {})}

    def start(self, role: str, *command: str, name: str = "", env: Mapping[str, str] | None = None) -> RoleProcess:
        name = name or f"{role}-{len(self.processes)}"
        program, *options = command
        started = RoleProcess(name, [str(_BIN / program), *options], self.environment(role, name, env), self.folder)
        self.processes.append(started)
        return started

    def admin(self, *words: str) -> str:
        """What `pyoco-server-admin` printed, as the operator."""
        command = [str(_BIN / "pyoco-server-admin"), *words]
        done = ran(command, env=self.environment("admin", "admin"), timeout=200, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def admin_json(self, *words: str) -> Any:
        return json.loads(self.admin(*words))


@contextlib.contextmanager
def guarded_site(folder: Path, *, mutual: bool = False) -> Iterator[GuardedSite]:
    """The server, with the account that the command prints. What was started is killed at the end."""
    authority = Authority(folder)
    passwords = {role.value: f"{role.value}-{os.urandom(12).hex()}" for role in Role}
    for role, password in passwords.items():
        (folder / f"{role}.password").write_text(f"{password}\n")
    common = _environment(folder)
    rights = subprocess.run(
        [_BIN / "pyoco-server-admin", "nats-permissions"], env=common, capture_output=True, text=True, check=True
    ).stdout
    with quick_folder() as quick:
        (folder / "nats").symlink_to(quick)
        (quick / "permissions.conf").write_text(rights)
        _write_passwords(quick, passwords)
        block = tls_block(authority, authority.chain("127.0.0.1"), mutual=mutual) + 'include "permissions.conf"\n'
        with configured_nats(quick, block) as nats:
            site = GuardedSite(folder, nats, authority, common)
            try:
                yield site
            finally:
                for each in site.processes:
                    each.process.kill()
                    each.process.wait(60)


def _write_passwords(folder: Path, passwords: Mapping[str, str]) -> None:
    lines = [f'{role.upper()}_PASSWORD: "{password}"\n' for role, password in passwords.items()]
    (folder / "passwords.conf").write_text("".join(lines))


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a user who has set only what all these processes share."""
    clean = variables_without("PYOCO_", "EXEC_", "AWS_")
    shared = {
        "PYOCO_LOAD_DOTENV": "false",
        "PYOCO_LEDGER_URL": f"sqlite:///{folder / 'ledger.db'}",
        "EXEC_QUEUE_MAX_BYTES": str(64 * 2**20),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    return {**clean, **_QUICK, **shared}
