"""The cluster of NATS in `deploy/nats`: its file, its users and its certificates, on the real server."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli.server import cli as server
from pyoco_server.errors import UsageError
from pyoco_server.ports.nats.access import access_of
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.nats.permissions import ROLES
from support.chaos import free_port
from support.servers import _die_with_parent, quick_folder
from support.surroundings import variables_without

DEPLOY = Path(__file__).parents[2] / "deploy"
NATS_SERVER = Path(sysconfig.get_path("scripts")) / "nats-server"


#: Of "admin-pw", as `htpasswd` makes them.
_HASH = "$2y$04$D6fsyKMemGyog69HjL/KC..1zpvA04dDTWHQCxVl3FbFptA2y1LMi"


class _Nodes:
    """Three nodes from `deploy/nats/nats.conf`, as it is but for places and ports."""

    def __init__(self, folder: Path, permissions: str) -> None:
        self.folder, self._permissions = folder, permissions
        self.ports, self._routes = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
        self._processes: list[subprocess.Popen[bytes]] = []
        script = DEPLOY / "make-certificates.sh"
        subprocess.run([script, folder / "tls", "127.0.0.1"], capture_output=True, check=True)

    @property
    def ca_file(self) -> Path:
        return self.folder / "tls" / "ca.crt"

    def write(self, number: int) -> tuple[Path, dict[str, str]]:
        home = self.folder / f"n{number}"
        shutil.copytree(self.folder / "tls" / "127.0.0.1", home / "tls")
        text = (DEPLOY / "nats" / "nats.conf").read_text()
        for old, new in (
            ("/etc/nats/", f"{home}/"),
            ("/var/lib/nats", str(home / "store")),
            ("0.0.0.0:4222", f"127.0.0.1:{self.ports[number]}"),
            ("0.0.0.0:6222", f"127.0.0.1:{self._routes[number]}"),
            ("127.0.0.1:8222", "127.0.0.1:-1"),
            ("100G", "1G"),
        ):
            assert old in text
            text = text.replace(old, new)
        (home / "nats.conf").write_text(text)
        (home / "permissions.conf").write_text(self._permissions)
        hashes = (DEPLOY / "nats" / "passwords.conf.example").read_text().replace("$2y$11$replace-this-hash", _HASH)
        (home / "passwords.conf").write_text(hashes)
        example = (DEPLOY / "nats" / "nats.env.example").read_text().replace("NODE_NAME=n1", f"NODE_NAME=n{number}")
        for at, route in enumerate(self._routes, 1):
            example = example.replace(f"n{at}.example:6222", f"127.0.0.1:{route}")
        return home / "nats.conf", {**os.environ, **dict(line.split("=", 1) for line in example.splitlines())}

    def start(self, number: int) -> None:
        conf, environment = self.write(number)
        checked = subprocess.run(
            [NATS_SERVER, "-t", "-c", conf], env=environment, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr
        with (conf.parent / "log.txt").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [NATS_SERVER, "--config", conf],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_die_with_parent,  # noqa: PLW1509  (it takes no lock)
                )
            )

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("n*/log.txt"))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(60)


@contextlib.contextmanager
def _cluster(folder: Path, permissions: str) -> Iterator[_Nodes]:
    nodes = _Nodes(folder, permissions)
    try:
        for number in range(3):
            nodes.start(number)
        yield nodes
    finally:
        nodes.end()


async def test_the_cluster_comes_up_from_the_shipped_file_and_takes_what_prepare_makes(tmp_path: Path) -> None:
    """TLS between nodes and to clients by certificates that the script made, users with their rights and hashed
    passwords, three replicas."""
    scripts = Path(sys.executable).parent
    clean = variables_without("PYOCO_", "EXEC_")
    own = {**clean, "PYOCO_LOAD_DOTENV": "0", "PYOCO_PRICED_ENABLED": "1", "EXEC_QUEUE_MAX_BYTES": str(2**24)}
    printed = subprocess.run(
        [scripts / "pyoco-server-admin", "nats-permissions"], env=own, capture_output=True, text=True, check=True
    )
    (tmp_path / "password").write_text("admin-pw\n")
    with quick_folder() as quick, _cluster(quick, printed.stdout) as nodes:
        variables = {
            "PYOCO_NATS_URL": ",".join(f"tls://127.0.0.1:{port}" for port in nodes.ports),
            "PYOCO_NATS_TLS_CA": str(nodes.ca_file),
            "PYOCO_NATS_USER": "admin",
            "PYOCO_NATS_PASSWORD_FILE": str(tmp_path / "password"),
            "PYOCO_NATS_INBOX_PREFIX": "_INBOX_admin",
            "PYOCO_JETSTREAM_REPLICAS": "3",
        }
        made = _prepared([scripts / "pyoco-server-admin", "prepare"], own | variables, nodes)
        assert "KV_pyoco_auth" in made
        assert "OBJ_dpp-results" in made
        settings = NatsBackendConfig.from_env({"PYOCO_LOAD_DOTENV": "0", **variables})
        link = await open_link(access_of(settings), "tests")
        try:
            info = await link.insist("STREAM.INFO.KV_pyoco_runs", {}, dict[str, Any])
        finally:
            await link.close()
    assert info["config"]["num_replicas"] == 3
    assert len(info["cluster"]["replicas"]) == 2


def test_the_certificates_stand_before_the_strictest_reader(tmp_path: Path) -> None:
    """As newer Pythons are by themselves: an authority must say what its key is for."""
    folder = tmp_path / "tls"
    subprocess.run([DEPLOY / "make-certificates.sh", folder, "127.0.0.1"], capture_output=True, check=True)
    node = folder / "127.0.0.1"
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(node / "node.crt", node / "node.key")
    asking = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(there, here, server_side=True)
    client = asking.wrap_bio(here, there, server_hostname="127.0.0.1")
    for side in (client, server, client):  # the last word of the client's is that it trusts
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.getpeercert()


def _prepared(command: list[Any], environment: dict[str, str], nodes: _Nodes, seconds: float = 200.0) -> str:
    """Again until the nodes have found each other."""
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
        if done.returncode == 0:
            return done.stdout
        assert time.monotonic() < deadline, f"{done.stderr}\n{nodes.logs()}"


def test_each_role_may_have_two_users_while_passwords_change(tmp_path: Path) -> None:
    printed = subprocess.run(
        [Path(sys.executable).parent / "pyoco-server-admin", "nats-permissions", "--suffix", "", "--suffix=-b"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tmp_path / "permissions.conf").write_text(printed)
    users = [f"{role}{suffix}" for role in ROLES for suffix in ("", "-b")]
    assert [f'user: "{user}"' in printed for user in users] == [True] * len(users)
    lines = [f'{user.upper().replace("-", "_")}_PASSWORD: "$2a$04$hash-of-{user}"\n' for user in users]
    (tmp_path / "passwords.conf").write_text("".join(lines))
    (tmp_path / "nats.conf").write_text('include "permissions.conf"\n')
    subprocess.run([NATS_SERVER, "-t", "-c", tmp_path / "nats.conf"], capture_output=True, check=True)
    (tmp_path / "passwords.conf").write_text("".join(lines[1:]))
    missing = subprocess.run(
        [NATS_SERVER, "-t", "-c", tmp_path / "nats.conf"], capture_output=True, text=True, check=False
    )
    assert "GATEWAY_PASSWORD" in missing.stderr


def test_up_with_a_nats_of_its_own_takes_no_users_and_certificates(tmp_path: Path) -> None:
    """It has none; to ignore them would look like protection."""
    given = {"PYOCO_LOAD_DOTENV": "0", "PYOCO_NATS_TLS_CA": "ca.crt", "PYOCO_NATS_URL": None}
    done = CliRunner().invoke(server, ["up", "--data-dir", str(tmp_path)], env=given)
    assert isinstance(done.exception, UsageError)
    assert "--nats-url" in str(done.exception)
