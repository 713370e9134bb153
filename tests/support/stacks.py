"""A complete `pyoco-server up` with the demo flows, as users of its dashboard have it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
import psutil

from support.surroundings import variables_without
from support.warm_processes import begun, started

__all__ = ["HASTY_PROGRAMS", "ROOT", "Stack", "aside", "until"]

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
#: How many times slower than a quiet machine a busy one may be. It costs nothing where all is well.
_PATIENCE = 4
#: Settings of a worker that starts programs without waiting for a busy machine.
HASTY_PROGRAMS = {"WORKER_CPU_CAP": "0.95", "WORKER_CPU_WAIT_SEC": "0.2"}
#: What a child of `up` is found by.
_WORDS = {"gateway": "cli.server gateway", "nats": "nats-server", "worker": "cli.worker", "keeper": "cli.keeper"}


def until(
    condition: Callable[[], T | Literal[False] | None], seconds: float = 30.0, what: str = "it", *, every: float = 0.02
) -> T:
    """What the condition answers, as soon as that is something. Fails when a quiet machine would have had `seconds` for
    it."""
    seconds *= _PATIENCE
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what} was not true within {seconds} s"
        time.sleep(every)
    return answer


@functools.cache
def _client() -> httpx.Client:
    """Makes a connection for each request, as `httpx.request` does, but not a TLS context."""
    return httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))


def aside(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end in a thread of its own: this one has the loop of the browser's driver."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001  (raised again below)
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


class Stack:
    """NATS, gateway, keeper and worker. Settings are variables without their prefix: `http_auth_mode="api_key"`; those
    of programs, which have none, are given as they are: `EXEC_DIR="/opt/programs"`.

    It can be stopped and started again: same port, same data.
    """

    def __init__(self, folder: Path, *options: str, **settings: Any) -> None:
        self.folder, self.data_dir = folder, folder / "data"
        self._options = options
        self._settings = settings
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        #: Sent with every request of ours.
        self.headers: dict[str, str] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{(self.data_dir / 'nats' / 'port').read_text().strip()}"

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def start(self) -> Stack:
        """Returns once it is up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        chosen = ["--port", str(self._port), "--data-dir", str(self.data_dir)]
        has_others = {"--no-worker", "--with-examples"} & {*self._options}
        flows = [] if has_others else ["--flow-resolver", "tools.demo.flows:resolve", "--slots", "4"]
        with (self.folder / "log.txt").open("ab") as log, self._banner.open("wb") as banner:
            command = [str(_BIN / "pyoco-server"), "up", *chosen, *flows, *self._options]
            self._process = begun(command, stdout=log, stderr=banner, cwd=self.folder, env=self.environment())
        until(self._is_up, what="the banner")
        found = re.search(r"API +\S+:(\d+)", self._banner.read_text())
        assert found is not None
        self._port = int(found[1])
        until(self.is_ready, what="the gateway")
        return self

    @property
    def _banner(self) -> Path:
        return self.folder / "banner.txt"

    def _is_up(self) -> bool:
        assert self._process is not None
        said = self._banner.read_text()
        assert self._process.poll() is None, f"it ended with {self._process.returncode}: {said}\n{self.log}"
        return "Ctrl-C stops everything." in said

    def environment(self) -> dict[str, str]:
        clean = variables_without("PYOCO_")
        clean["PYOCO_PRICED_ENABLED"] = "0"  # flows alone; who wants priced runs, too, says so
        clean["PYOCO_PACK_SLOTS"] = "1"  # one process for packs instead of one per slot
        given = {
            name if name.isupper() else f"PYOCO_{name.upper()}": str(value) for name, value in self._settings.items()
        }
        return {**clean, **HASTY_PROGRAMS, "PYTHONPATH": str(ROOT), **given}

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return _client().get(f"{self.address}/ready", timeout=20).status_code == 200
        return False

    def stop(self) -> None:
        """kill -9 of everything. Data and port stay its own, for another start."""
        if self._process is None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        self._process.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # its parent may have taken it along by now
                process.kill()
        self._process.wait(60)
        psutil.wait_procs(family, timeout=60)
        self._process = None

    def child(self, name: str) -> psutil.Process | None:
        """gateway, nats, worker or keeper; None while there is none."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children():
            with contextlib.suppress(psutil.Error):  # it is just ending
                if _WORDS[name] in " ".join(child.cmdline()):
                    return child
        return None

    def kill(self, name: str) -> psutil.Process:
        """kill -9 of one child. `up` starts it again: gives the new one, which may not be ready yet."""
        old = until(lambda: self.child(name), what=f"a {name}")
        old.send_signal(signal.SIGCONT)
        old.kill()
        return until(lambda: (new := self.child(name)) != old and new, what=f"another {name}")

    def freeze(self, name: str) -> None:
        """It does not answer until it is resumed or killed. `up` does not notice."""
        until(lambda: self.child(name)).send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        until(lambda: self.child(name)).send_signal(signal.SIGCONT)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request of a program: no browser's headers. Gives whatever came back."""
        headers = {**self.headers, **more.pop("headers", {})}
        return _client().request(method, f"{self.address}{path}", headers=headers, timeout=100, **more)

    def get(self, path: str, **query: Any) -> Any:
        answer = until(lambda: (found := self.ask("GET", path, params=query)).status_code != 503 and found, what=path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def submit(self, flow: str = "resize_images", params: dict[str, Any] | None = None, **more: Any) -> str:
        body = {"flow_name": flow, "params": params or {}, **more}
        # On a busy machine it may not have heard NATS for a while, and refuses.
        answer = until(lambda: (found := self.ask("POST", "/runs", json=body)).status_code != 503 and found)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["run_id"])

    def submit_many(self, flow_names: Sequence[str], tag: str) -> None:
        """Runs that wait, as fast as one connection can."""
        with httpx.Client(base_url=self.address, headers=self.headers, timeout=100) as client:
            for flow in flow_names:
                answer = client.post("/runs", json={"flow_name": flow, "tag": tag})
                assert answer.status_code == 200, answer.text

    def status(self, run_id: str) -> str:
        return str(self.get(f"/runs/{run_id}")["status"])

    def until_status(self, run_id: str, *statuses: str) -> None:
        until(lambda: self.status(run_id) in statuses, what=f"one of {statuses}")

    def make_key(self, tenant: str = "team-a") -> str:
        """A new API key, made as an operator makes one."""
        found = re.search(r"pyoco_[0-9a-f]{16}_[\w-]+", self._admin("api-key", "create", "--tenant", tenant))
        assert found is not None
        return found[0]

    def revoke_key(self, key: str) -> None:
        self._admin("api-key", "revoke", "--key-id", key.split("_")[1])

    def credit(self, tenant: str, usd: str) -> None:
        """Give it money to spend on priced runs."""
        self._admin("budget", "credit", "--tenant", tenant, "--usd", usd)

    def _admin(self, *words: str) -> str:
        settings = {**self.environment(), "PYOCO_DATA_DIR": str(self.data_dir)}

        async def run() -> str:
            command = ["-m", "pyoco_server.admin_cli", "--nats-url", self.nats_url, *words]
            process = await started(command, env=settings, cwd=self.folder)
            async with asyncio.timeout(200):
                out, err = await process.communicate()
            assert process.returncode == 0, err
            return (out or b"").decode()

        return aside(run)
