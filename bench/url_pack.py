"""The url pack: 30 pages of a site on this machine, beside a loop that only downloads them.

The site, the pack and the loop are processes of their own. Everybody speaks TLS, with a certificate made here.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.report import heading, median, table
from bench.stack import Stack, free_port
from pyoco_server.config.packs import PackConfig
from pyoco_server.executors.packs.port import Context
from pyoco_server.wiring.packs import executors

_URLS = 30
_ROUNDS = 15
_LANES = 8
_PAGE = b"<!doctype html><title>A page</title><style>p{}</style>" + b"<p>Some words of <b>this</b> page.</p>\n" * 1_000
_HEADERS = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(_PAGE)).encode())]


async def app(scope: MutableMapping[str, Any], _receive: object, send: Callable[[Any], Awaitable[None]]) -> None:
    """A page of 40 KB, whatever is asked for."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": _PAGE})


def _make_certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "site.pem").write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def _context() -> Context:
    return Context(
        run_id="bench", tenant_id="bench", trace_id=None, deadline=time.monotonic() + 90, min_reliability_score=0.0,
        artifacts={},
    )  # fmt: skip


def _pack(port: int, ca_file: str) -> Callable[[], None]:
    """The whole pack: every hop parsed and checked, titles and excerpts read."""
    config = PackConfig(url_pack_ca_file=ca_file, url_pack_test_allow=f"127.0.0.1:{port}")
    execute = executors({"url": ""}, config)["url"]
    urls = _urls(port)

    def fetch() -> None:
        result = execute({"urls": urls}, _context())
        assert len(result.data["results"]) == _URLS, result.discard_log

    return fetch


def _urls(port: int) -> list[str]:
    return [f"https://127.0.0.1:{port}/{number}" for number in range(_URLS)]


def _loop(port: int, ca_file: str, lanes: int) -> Callable[[], None]:
    """An HTTP client and nothing more: bodies are downloaded and forgotten. A connection per page, as the pack has."""
    trust = ssl.create_default_context(cafile=ca_file)
    limits = httpx2.Limits(max_keepalive_connections=0)

    async def fetch() -> None:
        waiting = iter(_urls(port))

        async def lane(client: httpx2.AsyncClient) -> None:
            for url in waiting:
                assert (await client.get(url)).content == _PAGE

        async with httpx2.AsyncClient(verify=trust, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(lane(client) for _ in range(lanes)))

    return lambda: asyncio.run(fetch())


def _peak_megabytes() -> float:
    """Of this program. `getrusage` would count what its parent had when it was started, too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _child(what: str, port: int, ca_file: str) -> None:
    """One round per line that comes; answers with seconds, and the most memory so far in MB."""
    made: dict[str, Callable[[], Callable[[], None]]] = {
        "pack": lambda: _pack(port, ca_file),
        "loop": lambda: _loop(port, ca_file, 1),
        "lanes": lambda: _loop(port, ca_file, _LANES),
    }
    fetch = made[what]()
    fetch()
    for _ in sys.stdin:
        began = time.perf_counter()
        fetch()
        seconds = time.perf_counter() - began
        print(json.dumps([seconds, _peak_megabytes()]), flush=True)


def _serve(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uvicorn", "bench.url_pack:app", "--port", str(port), "--log-level", "error"]
    command += ["--ssl-certfile", str(folder / "site.pem"), "--ssl-keyfile", str(folder / "key.pem")]
    return subprocess.Popen([*command, "--no-access-log"])


def _until_up(port: int, ca_file: str) -> None:
    trust = ssl.create_default_context(cafile=ca_file)
    for _ in range(200):
        try:
            httpx2.get(f"https://127.0.0.1:{port}/", verify=trust, trust_env=False)
        except httpx2.TransportError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("the site does not answer")


def _measure(children: dict[str, subprocess.Popen[str]]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds per round, interleaved; and the most memory of each."""
    seconds: dict[str, list[float]] = {what: [] for what in children}
    megabytes: dict[str, float] = {}
    for _ in range(_ROUNDS):
        for what, child in children.items():
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            child.stdin.flush()
            took, megabytes[what] = json.loads(child.stdout.readline())
            seconds[what].append(took)
    return seconds, megabytes


def main(_: Stack) -> None:
    heading(f"url: {_URLS} pages of 40 KB on this machine, pages per second, a connection per page; higher is better")
    with tempfile.TemporaryDirectory() as text:
        folder, port = Path(text), free_port()
        _make_certificate(folder)
        ca_file = str(folder / "site.pem")
        site = _serve(folder, port)
        children = {}
        try:
            _until_up(port, ca_file)
            for what in ("pack", "loop", "lanes"):
                command = [sys.executable, "-m", "bench.url_pack", what, str(port), ca_file]
                children[what] = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )  # fmt: skip
            seconds, megabytes = _measure(children)
        finally:
            for child in children.values():
                child.communicate()
            site.terminate()
            site.wait(10)
    rates = {what: _URLS / median(values) for what, values in seconds.items()}
    names = {"pack": "url pack", "loop": "httpx2, one by one", "lanes": f"httpx2, {_LANES} at a time"}
    rows: list[tuple[str, ...]] = [("", "pages/s", "pack is", "peak MB")]
    rows += [
        (names[what], f"{rate:,.0f}", f"{rates['pack'] / rate:.2f}x", f"{megabytes[what]:.0f}")
        for what, rate in rates.items()
    ]
    table(rows)


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), sys.argv[3])
