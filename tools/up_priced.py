"""`make up-priced`: the whole priced stack on servers of its own, without containers, for a try.

PostgreSQL, Valkey and an emulator of S3 and SQS come from the packages that the tests use, NATS from our own; a
gateway, a keeper and a worker run beside them. A tenant, a key and a budget are made. Ctrl-C ends everything, and no
process of it outlives a kill -9 of this one. Nothing is kept: every start begins with empty stores.
"""
# ruff: noqa: INP001, S603, T201  (a script, which starts what it names itself, and talks)

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pyoco_server.embedded import die_with, free_ports  # noqa: E402
from support.priced.servers import MotoServer, PostgresServer, ValkeyServer, is_alive  # noqa: E402

TENANT, USD = "demo", "10.0000"
_FOLDER = "pyoco-up-priced-"
_READY_SECONDS = 120.0
_STOP_SECONDS = 45.0
_LOG_TAIL = 20
_SCRIPTS = Path(sys.executable).parent
_INPUTS = {"question": "When do we ship?", "context": "Invoices go out on Monday. We ship on Friday."}


class Stopped(Exception):
    """Ctrl-C or SIGTERM."""


class Failed(Exception):
    """Something did not start, or ended. The text says what, with the end of its log."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make up-priced", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000, help="of the gateway [default: 8000]")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        with _folder() as folder, contextlib.ExitStack() as servers:
            _run(folder, servers, options.port)
    except Stopped:
        print("stopped; nothing is left", flush=True)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(folder: Path, servers: contextlib.ExitStack, port: int) -> NoReturn:
    """Raises Stopped, Failed."""
    _refuse_taken(port)
    print("starting PostgreSQL, Valkey, and an emulator of S3 and SQS ...", flush=True)
    stores = _stores(folder, servers)
    [nats_port] = free_ports(1)
    variables = _environment(stores, f"nats://127.0.0.1:{nats_port}", folder)
    print("starting NATS, a gateway, a keeper and a worker ...", flush=True)
    up = servers.enter_context(_up(folder, variables, port, nats_port))
    url = f"http://127.0.0.1:{port}"
    log = folder / "up.log"
    _until_ready(up, url, log)
    key = _seed(variables)
    _until_packs(up, url, key, log)
    print(_banner(url, key, stores, variables["PYOCO_NATS_URL"], log), flush=True)
    up.wait()
    raise Failed(f"pyoco-server ended\n{_tail(log)}")


def _stop(_: int, __: FrameType | None) -> NoReturn:
    """Once: while everything is being stopped, another Ctrl-C ends this process, and all others die with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    print("stopping", flush=True)
    raise Stopped


def _refuse_taken(port: int) -> None:
    """Before anything is started: otherwise somebody else's gateway would be asked whether ours is ready."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            why = error.strerror or str(error)
            raise Failed(f'port {port}: {why}; choose another: make up-priced ARGS="--port 9000"') from None


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """For everything that is written. Those of processes that were killed are deleted first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = left.name.removeprefix(_FOLDER).partition("-")[0]
        if left.stat().st_uid == os.getuid() and owner.isdigit() and not _runs(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _stores(folder: Path, servers: contextlib.ExitStack) -> Mapping[str, str]:
    """The settings that name them."""
    postgres, valkey, moto = PostgresServer(), ValkeyServer(folder / "valkey"), MotoServer(folder / "moto")
    servers.callback(postgres.end)
    postgres.start()
    for server in (valkey, moto):
        server.start()
        servers.callback(server.kill)
    return {
        "PYOCO_LEDGER_URL": postgres.new_database(),
        "PYOCO_BUDGET_URL": valkey.url,
        "PYOCO_PACK_QUEUE_URL": "sqs://dpp-runs",
        "PYOCO_RESULTS_URL": "s3://dpp-results",
        **moto.empty().environment,
    }


def _environment(stores: Mapping[str, str], nats_url: str, folder: Path) -> dict[str, str]:
    own = {
        "PYOCO_LOAD_DOTENV": "false",
        "PYOCO_DATA_DIR": str(folder / "data"),
        "PYOCO_NATS_URL": nats_url,
        "PYOCO_HTTP_AUTH_MODE": "api_key",
        "PYOCO_AUTH_PEPPER": secrets.token_urlsafe(32),
        "PYOCO_PRICED_ENABLED": "1",
    }
    return {**os.environ, **own, **stores}


@contextlib.contextmanager
def _up(folder: Path, variables: Mapping[str, str], port: int, nats_port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`pyoco-server up`, with a NATS of its own. It ends its own children, also when it is killed."""
    command = [_SCRIPTS / "pyoco-server", "up", "--with-examples", "--port", str(port)]
    command += ["--nats-client-port", str(nats_port)]
    environment = {name: value for name, value in variables.items() if name != "PYOCO_NATS_URL"}
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is ours: we end it in order
            preexec_fn=die_with(os.getpid(), signal.SIGKILL),  # noqa: PLW1509  (it takes no lock)
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(up: subprocess.Popen[bytes], url: str, log: Path) -> None:
    _until(up, log, lambda: _asked(f"{url}/readyz") is not None)


def _until_packs(up: subprocess.Popen[bytes], url: str, key: str, log: Path) -> None:
    """Some worker has told that it takes priced runs. Raises Failed."""

    def is_taken() -> bool:
        listed = _asked(f"{url}/v1/packs", key)
        return listed is not None and any(each["available"] for each in listed["items"])

    _until(up, log, is_taken)


def _until(up: subprocess.Popen[bytes], log: Path, holds: Any) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not holds():
        if up.poll() is not None:
            raise Failed(f"pyoco-server ended\n{_tail(log)}")
        if time.monotonic() > deadline:
            raise Failed(f"it is not ready after {_READY_SECONDS:g} s\n{_tail(log)}")
        time.sleep(0.1)


def _asked(url: str, key: str | None = None) -> Any:
    """None: no answer, or a refusal."""
    request = urllib.request.Request(url, headers={} if key is None else {"X-API-Key": key})  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own
            return json.load(answer)
    except (OSError, urllib.error.HTTPError, ValueError):
        return None


def _seed(variables: Mapping[str, str]) -> str:
    """A key and a budget; the key. Raises Failed."""
    made = _admin(variables, "api-key", "create", "--tenant", TENANT)
    _admin(variables, "budget", "credit", "--tenant", TENANT, "--usd", USD)
    return str(json.loads(made)["api_key"])


def _admin(variables: Mapping[str, str], *words: str) -> str:
    command: Sequence[Path | str] = [_SCRIPTS / "pyoco-server-admin", *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"pyoco-server-admin {shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _banner(url: str, key: str, stores: Mapping[str, str], nats_url: str, log: Path) -> str:
    inputs = [word for name, text in _INPUTS.items() for word in ("--input", f"{name}={text}")]
    submit = ["pyoco-client", "price", "submit", "decision", *inputs, "--max-cost-usd", "0.2500", "--result"]
    return f"""
The priced stack is up

  open     {url}/
  API      {url}/v1
  ledger   {stores["PYOCO_LEDGER_URL"]}
  budget   {stores["PYOCO_BUDGET_URL"]}
  S3, SQS  {stores["AWS_ENDPOINT_URL"]}
  NATS     {nats_url}
  log      {log}

  tenant   {TENANT}, with {USD} USD
  key      {key}   (shown this once)

Paste into another terminal:
  PYOCO_SERVER_URL={url} PYOCO_API_KEY={key} {_SCRIPTS}/{shlex.join(submit)}

Ctrl-C stops everything. Nothing is kept.
"""


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LOG_TAIL:])


if __name__ == "__main__":
    sys.exit(main())
