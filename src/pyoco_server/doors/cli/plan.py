"""Which processes `pyoco-server up` runs: options and settings in, parts out."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.config import NatsBackendConfig, grid_from_env, priced_from_env
from pyoco_server.core.names import host_word
from pyoco_server.doors.cli.banner import BannerFacts
from pyoco_server.doors.cli.claims import DataDir, check_port
from pyoco_server.doors.cli.own_nats import DOOR_DRAIN_SECONDS, nats_part, refuse_logins
from pyoco_server.doors.cli.served_app import check_one_source
from pyoco_server.doors.frames.settings import check_exposure, check_openness, is_loopback, is_open_beside_keys
from pyoco_server.embedded import EmbeddedNats, find_command
from pyoco_server.errors import UsageError
from pyoco_server.executors.program import SAMPLES
from pyoco_server.loops.supervisor import Part

__all__ = ["ProcessPlan", "UpOptions"]

#: The order in which parts are stopped: running work finishes while everything it needs is still running.
_WORKERS, _KEEPER, _GATEWAY, _NATS = range(4)
#: A user waits after Ctrl-C. Runs that take longer return to the queue.
_DRAIN_SECONDS = 20.0
_PACKAGE = Path(__file__).parents[2]
_BOOTSTRAP_PORTS = (4222, 8222)  # FLOW-456, FLOW-457


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """The options of the command line. None: the option was not given."""

    host: str
    port: int
    data_dir: str | None
    nats_url: str | None
    nats_listen_host: str | None
    nats_client_port: int | None
    nats_http_port: int | None
    with_nats_bootstrap: bool
    workers: int
    keeper: bool
    with_examples: bool
    flow_resolver: str | None
    #: module:app, instead of a resolver.
    app: str | None = None
    slots: int | None
    tags: str | None
    wheel_sync: bool
    dashboard_lang: str | None
    #: Whether the workers run programs, too: those of EXEC_DIR, or the samples.
    programs: bool = True
    #: The port of a door for frames over TCP. None: no door.
    frames_port: int | None = None
    #: That door may accept peers without a key although HTTP does not.
    open_frames: bool = False


class ProcessPlan:
    """Computes the processes to run from options and settings."""

    def __init__(self, options: UpOptions, config: NatsBackendConfig) -> None:
        """Raises UsageError for options that contradict each other."""
        self.options, self.config = options, config
        self._has_own_nats = options.with_nats_bootstrap or not (options.nats_url or os.environ.get("PYOCO_NATS_URL"))
        own = (options.nats_listen_host, options.nats_client_port, options.nats_http_port)
        if options.nats_url and (options.with_nats_bootstrap or any(value is not None for value in own)):
            raise UsageError(
                "--nats-url names a server that runs already; the other --nats options start one of our own"
            )
        if self._has_own_nats:
            refuse_logins(config, "--nats-url")
        check_one_source(options.app, options.flow_resolver)
        self._resolver, self._examples = options.flow_resolver or config.flow_resolver or None, None
        # `make up` always passes --with-examples; an explicit resolver takes precedence.
        if options.with_examples and self._resolver is None and options.app is None:
            self._resolver, self._examples = "examples.flows:resolve", _examples_home()

        if options.frames_port is not None:
            auth = grid_from_env().exec_auth
            check_exposure(
                options.host,
                has_keys=auth == "api_key",
                has_client_certificates=False,
                is_insecure=False,
                what="the door",
            )
            check_openness(auth, config.http_auth_mode, opens_frames=options.open_frames, what="the door")
        # Programs run on Linux only; everything else works elsewhere.
        self._has_programs = options.programs and sys.platform == "linux"
        self._has_samples = self._has_programs and "EXEC_DIR" not in os.environ

    def nats(self, data_dir: DataDir) -> EmbeddedNats | None:
        """Return our own server. None: another NATS is used. Raises UsageError if a port is taken or nats-server is
        missing."""
        if not self._has_own_nats:
            return None
        options = self.options
        ports = _BOOTSTRAP_PORTS if options.with_nats_bootstrap else (0, 0)
        port = options.nats_client_port if options.nats_client_port is not None else ports[0]
        http_port = options.nats_http_port if options.nats_http_port is not None else ports[1]
        host = options.nats_listen_host or "127.0.0.1"
        check_port(host, port, "--nats-client-port")
        check_port(host, http_port, "--nats-http-port")
        nats = EmbeddedNats(data_dir.path, self.config, host=host, port=port, http_port=http_port)
        self._nats_command(nats)
        return nats

    def _nats_command(self, nats: EmbeddedNats) -> Sequence[str | Path]:
        if not self.options.with_nats_bootstrap:
            return nats.command()
        program = find_command("nats-bootstrap")
        if program is None:
            raise UsageError("--with-nats-bootstrap needs that command; example: pip install 'pyoco-server[bootstrap]'")
        return [program, "up", "--nats-config", nats.prepare()]

    def facts(self, address: str, data_dir: Path, nats_url: str, frames: str | None = None) -> BannerFacts:
        local = self.options.host in {"127.0.0.1", "::1", "localhost"}
        return BannerFacts(
            config=self.config,
            address=address,
            data_dir=data_dir,
            nats_url=nats_url,
            has_examples=self._examples is not None and self.options.workers > 0,
            has_workers=self.options.workers > 0,
            has_wheels=self.config.wheel_sync_enabled and self.options.workers > 0,
            is_open_to_everyone=not local and self.config.http_auth_mode == "none",
            has_priced=priced_from_env()[0].priced_enabled,
            has_samples=self._has_samples and self.options.workers > 0,
            frames=frames,
            has_open_frames=frames is not None
            and is_open_beside_keys(grid_from_env().exec_auth, self.config.http_auth_mode),
        )

    def parts(
        self,
        data_dir: DataDir,
        http: socket.socket,
        nats: EmbeddedNats | None,
        until_ready: Callable[[], Awaitable[None]],
        frames: socket.socket | None = None,
    ) -> list[Part]:
        """Return the parts in the order in which they are started. `frames` is the socket of a door."""

        def environment() -> dict[str, str]:
            url = nats.url if nats is not None else self.config.nats_url
            given = {"PYOCO_NATS_URL": url, "PYOCO_DATA_DIR": str(data_dir.path)}
            if self.options.dashboard_lang is not None:
                given["PYOCO_DASHBOARD_LANG"] = self.options.dashboard_lang
            return {**os.environ, **given}

        parts = [] if nats is None else [self._nats_part(nats, data_dir)]
        parts.append(self._gateway_part("gateway", http, until_ready, environment))
        if self.options.keeper:
            parts.append(self._keeper_part(environment))
        if frames is not None:
            parts.append(self._door_part(frames, environment))
        return [*parts, *self._worker_parts(environment, data_dir.path)]

    def _gateway_part(
        self,
        name: str,
        http: socket.socket,
        until_ready: Callable[[], Awaitable[None]],
        environment: Callable[[], dict[str, str]],
    ) -> Part:
        return Part(
            name=name,
            command=lambda: [*_module("server"), "gateway", "--fd", str(http.fileno())],
            environment=lambda: {**environment(), **self._hosts()},
            inherit=[http.fileno()],
            until_ready=until_ready,
            stops=_GATEWAY,
            stop_seconds=15.0,
        )

    def _hosts(self) -> dict[str, str]:
        """Restrict the Host headers of a gateway that listens on loopback, against DNS rebinding.

        An empty setting counts as unset: a compose file passes on unset variables as empty.
        """
        if self.config.http_hosts or not is_loopback(self.options.host):
            return {}
        return {"PYOCO_HTTP_HOSTS": "localhost"}

    def _keeper_part(self, environment: Callable[[], dict[str, str]]) -> Part:
        command = _module("keeper")
        return Part(name="keeper", command=lambda: command, environment=environment, stops=_KEEPER, stop_seconds=15.0)

    def _worker_parts(
        self, environment: Callable[[], dict[str, str]], data_dir: Path, folder: Path | None = None
    ) -> list[Part]:
        """Return the parts of the workers. `folder`: their working directory; the user's own flows are found in
        ours."""
        drain = self._drain_seconds()

        def part(number: int) -> Part:
            command = self._worker_command(number, data_dir)
            return Part(
                name=f"worker-{number}",
                command=lambda: command,
                environment=lambda: self._worker_environment(environment(), drain, data_dir),
                folder=folder,
                stops=_WORKERS,
                stop_seconds=drain + 15.0 if drain else None,
            )

        return [part(number) for number in range(1, self.options.workers + 1)]

    def _door_part(self, frames: socket.socket, environment: Callable[[], dict[str, str]]) -> Part:
        fd, port = frames.fileno(), frames.getsockname()[1]
        command = [*_module("grid"), "leader", str(port), "--host", self.options.host, "--fd", str(fd)]
        if self.options.open_frames:
            command.append("--open-frames")
        drain = os.environ.get("EXEC_DRAIN_SEC", str(DOOR_DRAIN_SECONDS))
        return Part(
            name="door",
            command=lambda: command,
            environment=lambda: {**environment(), "EXEC_DRAIN_SEC": drain},
            inherit=[fd],
            stops=_WORKERS,
            stop_seconds=grid_from_env().exec_drain_sec + 15.0,
        )

    def _nats_part(self, nats: EmbeddedNats, data_dir: DataDir, name: str = "nats") -> Part:
        return nats_part(
            nats,
            data_dir,
            stops=_NATS,
            name=name,
            command=lambda: self._nats_command(nats),
            # nats-bootstrap stops its server on SIGINT, but leaves it running on SIGTERM.
            death=signal.SIGINT if self.options.with_nats_bootstrap else signal.SIGTERM,
        )

    def _worker_command(self, number: int, data_dir: Path) -> list[str]:
        # On a shared NATS, two machines must not use the same worker id.
        host = "worker" if self._has_own_nats else host_word(socket.gethostname())
        worker_id = f"{host}-{number}"
        command = [*_module("worker", safe_path=False), "--worker-id", worker_id]
        if self.config.wheel_sync_enabled:
            command.append("--wheel-sync")
            if "PYOCO_WHEEL_SYNC_DIR" not in os.environ:  # so that each worker finds its own wheels after a restart
                command += ["--wheel-sync-dir", str(data_dir / "wheels" / worker_id)]
        if self._has_samples:
            command += ["--exec-dir", str(SAMPLES)]
        for option, value in (
            ("--flow-resolver", None if self.options.app else self._resolver),
            ("--slots", self.options.slots),
            ("--tags", self.options.tags),
        ):
            if value is not None:
                command += [option, str(value)]
        return [*command, self.options.app] if self.options.app else command

    def _worker_environment(
        self, environment: Mapping[str, str], drain_seconds: float, data_dir: Path
    ) -> dict[str, str]:
        own = {
            "WORK_ROOT": environment.get("WORK_ROOT", str(data_dir / "jobs")),
            "PYOCO_DRAIN_TIMEOUT_SEC": str(drain_seconds),
            # Workers need no pepper. Empty, not absent: a dotenv file could set it again.
            "PYOCO_AUTH_PEPPER": "",
        }
        if self._examples is not None:
            own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self._examples), environment.get("PYTHONPATH")]))
        given = environment if self._has_programs else {k: v for k, v in environment.items() if k != "EXEC_DIR"}
        return {**given, **own}

    def _drain_seconds(self) -> float:
        """Return the drain time. 0, if configured explicitly: no limit."""
        given = self.config.drain_timeout_sec
        return given if given or "PYOCO_DRAIN_TIMEOUT_SEC" in os.environ else _DRAIN_SECONDS


def _module(name: str, *, safe_path: bool = True) -> list[str]:
    """Return the command of one of our modules.

    `-P`: a file in the working directory must not shadow our modules. Workers need the directory to find flows.
    """
    return [sys.executable, *(["-P"] if safe_path else []), "-m", f"pyoco_server.doors.cli.{name}"]


def _examples_home() -> Path:
    """Return the folder that `import examples` needs: that of the package, or of a checkout (CLI-19). Raises UsageError
    if there is none."""
    searched = (Path.cwd(), _PACKAGE / "with_examples", _PACKAGE.parents[1])
    for home in searched:
        if (home / "examples" / "flows.py").is_file():
            return home
    raise UsageError(
        f"--with-examples finds no examples below any of {', '.join(map(str, searched))}; "
        "example: pyoco-server up --flow-resolver your_module:resolve"
    )
