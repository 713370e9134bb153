"""`pyoco-grid router` as a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli.grid import cli
from pyoco_server.doors.cli.grid.outward import tls_to_doors
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.doors.frames.tls import ServerTls, TlsFiles
from support.grid.fake_door import QUICK, fake_door
from support.grid.peers import ClientPeer
from support.grid.routers import open_router
from support.priced.url_sites import Authority


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "says"),
    [
        ([], {}, 1, "--backend g1="),
        (["--backend", "g1"], {}, 1, "--backend"),
        (["--backend", "g1=127.0.0.1:1", "--rule", "exec=*:g2"], {}, 1, "g2"),
        (["--backend", "g1=127.0.0.1:1", "--tls-cert", "x"], {}, 1, "--tls-key"),
        (["--backend", "g1=127.0.0.1:1", "--backend-tls-cert", "x"], {}, 1, "--backend-tls-key"),
        (["--backend", "g1=127.0.0.1:1", "--backend-tls-ca", "none.pem"], {}, 1, "--backend-tls-ca"),
        (["--backend", "g1=127.0.0.1:1", "--backend-tls-ca", ""], {}, 1, "--backend-tls-ca"),
        (["--backend", "g1=127.0.0.1:1"], {"EXEC_TLS_BIND_CN": "1"}, 1, "EXEC_TLS_BIND_CN"),
        (["--backend", "g1=127.0.0.1:1", "--host", "0.0.0.0"], {}, 3, "EXEC_AUTH=api_key"),
    ],
    ids=str,
)
def test_a_mistake_is_named_with_an_exit_code_of_its_own(
    arguments: list[str],
    variables: dict[str, str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """GRID-134, GRID-165, GRID-166, section 25.3"""
    monkeypatch.setattr("pyoco_server.logs.configure_logging", lambda _: None)
    monkeypatch.setenv("PYOCO_NATS_URL", "nats://127.0.0.1:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert outcome(cli, "pyoco-grid", ["router", "0", *arguments]) == code
    said = capsys.readouterr()
    assert says in said.err
    assert "READY" not in said.out


@pytest.mark.asyncio(loop_scope="module")
async def test_doors_that_ask_for_certificates_take_a_router_that_has_one(
    names: NatsBackendConfig, tmp_path: Path
) -> None:
    """GRID-134, GRID-166"""
    authority = Authority(tmp_path)
    chain = authority.chain("127.0.0.1")
    asking = ServerTls(TlsFiles(chain, chain, authority.ca_file)).context
    own = {"ca": authority.ca_file, "cert": chain, "key": chain}
    given = {"backend_tls": False} | {f"backend_tls_{name}": str(file) for name, file in own.items()}
    settings = replace(QUICK, tls=tls_to_doors(given, "--backend-tls"))
    async with (
        fake_door("g1", tls=asking) as door,
        open_router(names, {"g1": door.address}, settings=settings) as router,
        await ClientPeer.connect(router.port) as client,
    ):
        await client.hello()
        await client.accepted()
