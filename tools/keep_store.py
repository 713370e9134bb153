"""Writes what an earlier version leaves behind when the power goes: `python tools/keep_store.py 848e38b flows`.

The revision's own code runs from an export of it, on a real NATS server, with the packages of this environment: `up`
with examples, runs of every kind that it knows, in every state, and at the end kill -9 of everything. What lies in its
data folder then, with a JSON file that says what is what, becomes `tests/stores/NAME.tar.xz`. The key and the pepper in
it open that store and nothing else.

Everything that expires is kept for thirty years, so that a test can read the store for as long as it is of use.
"""
# ruff: noqa: INP001, S603, S607, T201  (a script, which starts what it names itself, and talks)

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.wheels import build_wheel  # noqa: E402 - where that is has just been said

T = TypeVar("T")

STORES = ROOT / "tests" / "stores"
_LONG = "900000000"
#: What the deployment was set up with; the test starts with the same, as an operator would.
SETTINGS = {
    "PYOCO_LOAD_DOTENV": "false",
    "PYOCO_HTTP_AUTH_MODE": "api_key",
    "PYOCO_AUTH_PEPPER": "pepper of a store in the tests",
    "PYOCO_RUNS_RETENTION_SEC": "0",
    "PYOCO_IDEMPOTENCY_TTL_SEC": _LONG,
    "PYOCO_DLQ_MAX_AGE_SEC": _LONG,
    "PYOCO_WHEEL_HISTORY_TTL_SEC": _LONG,
    "PYOCO_WORKERS_RETENTION_SEC": "0",
    "PYOCO_PRICED_RETENTION_SEC": _LONG,
    "PYOCO_PRICED_RESERVATION_TTL_SEC": _LONG,
    "PYOCO_PACK_SLOTS": "1",
    "EXEC_ARTIFACT_TTL_SEC": _LONG,
    "EXEC_QUEUE_MAX_BYTES": str(64 * 2**20),
    "WORKER_CPU_CAP": "0.95",
    "WORKER_CPU_WAIT_SEC": "0.5",
}
#: Chosen when there were no programs yet: shorter than a lease of theirs is by default.
_BEFORE_PROGRAMS = {"PYOCO_CONSUMER_ACK_WAIT_SEC": "12", "PYOCO_ACK_PROGRESS_INTERVAL_SEC": "4"}
_YAML = """\
version: 1
tasks:
  greet: {callable: "examples.flows:greet"}
  shout: {callable: "examples.flows:shout"}
flow:
  defaults: {name: you}
  graph: greet >> shout
"""
_PRICED = {
    "pack_type": "decision",
    "inputs": {"question": "Ship on Friday?"},
    "reservation": {"max_cost_usd": "0.2500"},
}
_PACK_HOST = "pyoco_server.executors.packs.child"
#: Left out of the package: they say nothing that a next start would need.
_IDLE = re.compile(r"^data/(nats/)?(jobs|lock|logs|tmp|port|ports|nats\.conf|nats\.log|console\.txt)(/|$)")


def until(condition: Callable[[], T | None], what: str, seconds: float = 60.0) -> T:
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)
    return answer


class Earlier:
    """`pyoco-server up` of an earlier version, seen from outside."""

    def __init__(self, tree: Path, data: Path) -> None:
        self.tree, self.data = tree, data
        self._said = data.parent / "said.txt"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "EXEC_"))}
        self.has_programs = (tree / "src/pyoco_server/wiring/programs.py").exists()
        self.settings = SETTINGS if self.has_programs else SETTINGS | _BEFORE_PROGRAMS
        self.environment = {**clean, **self.settings, "PYTHONPATH": str(tree / "src"), "WORK_ROOT": str(data / "jobs")}
        self.has_receipts = (tree / "src/pyoco_server/actions/submit_once.py").exists()
        self.has_wheels = (tree / "src/pyoco_server/actions/register_wheel.py").exists()
        self.has_priced = (tree / "src/pyoco_server/wiring/priced.py").exists()

    def start(self) -> None:
        (self.data / "jobs").mkdir(parents=True, mode=0o700)
        options = ["--with-examples", "--port", "0", "--slots", "2", "--data-dir", str(self.data)]
        with self._said.open("wb") as said:
            self._up = psutil.Popen(
                [sys.executable, "-m", "pyoco_server.doors.cli.server", "up", *options],
                cwd=self.tree,
                env=self.environment,
                stdout=said,
                stderr=said,
            )
        until(lambda: "Ctrl-C stops everything." in self._said.read_text() or None, "the banner")
        self.nats_url = self._word("NATS")
        self.key = str(self.admin("api-key", "create", "--tenant", "team-a")["api_key"])
        self.http = httpx.Client(base_url=self._word("API"), headers={"X-API-Key": self.key}, timeout=30)
        until(lambda: self.http.get("/runs").status_code == 200 or None, "the key is known")

    def _word(self, name: str) -> str:
        found = re.search(rf"{name} +(\S+)", self._said.read_text())
        assert found is not None
        return found[1]

    def admin(self, *words: str) -> Any:
        """Its answer: JSON, or what an early version said in words."""
        command = [sys.executable, "-m", "pyoco_server.admin_cli", "--nats-url", self.nats_url, *words]
        environment = {**self.environment, "PYOCO_DATA_DIR": str(self.data)}
        done = subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def family(self, words: str = "") -> list[psutil.Process]:
        """Its processes, or those of them whose command line holds these words."""
        found = []
        for each in self._up.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if words in " ".join(each.cmdline()):
                    found.append(each)
        return found

    def freeze_workers(self) -> None:
        """Worker and hosts stand still, and so end nothing more."""
        for worker in self.family("cli.worker"):
            for each in (worker, *worker.children(recursive=True)):
                each.suspend()

    def kill(self) -> None:
        """All of it, NATS among it, in the middle of what it does."""
        family = [self._up, *self._up.children(recursive=True)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=20)

    def submit(self, flow: str, key: str | None = None, **params: Any) -> str:
        headers = {"Idempotency-Key": key} if key else {}
        answer = self.http.post("/runs", json={"flow_name": flow, "params": params}, headers=headers)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["run_id"])

    def status(self, run_id: str) -> str:
        return str(self.http.get(f"/runs/{run_id}").json()["status"])

    def reaches(self, run_id: str, *statuses: str) -> str:
        until(lambda: self.status(run_id) in statuses or None, f"{statuses} of {run_id}")
        return run_id

    def price(self, key: str) -> str:
        answer = self.http.post("/v1/runs", json=_PRICED, headers={"Idempotency-Key": key})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    def priced_reaches(self, run_id: str, status: str) -> str:
        until(lambda: self.http.get(f"/v1/runs/{run_id}").json()["status"] == status or None, f"{status} of {run_id}")
        return run_id

    def ask_for(self, program: str, *words: str, job_id: str = "") -> str:
        data = {"exec_name": program, "arg": list(words), "job_id": job_id or str(uuid.uuid4())}
        answer = self.http.post("/jobs", data=data, files={"file": ("in.txt", b"hello")})
        assert answer.status_code in (200, 201, 202), answer.text
        return str(answer.json()["run_id"])


def write(earlier: Earlier) -> dict[str, Any]:
    """Fill the store. What is what, by run id."""
    made: dict[str, Any] = {"api_key": earlier.key}
    made |= {"flows": _ended_flows(earlier)}
    if earlier.has_wheels:
        name, content = build_wheel("kept-tasks", "1.0")
        answer = earlier.http.post("/wheels", files={"wheel": (name, content)})
        assert answer.status_code in (200, 201), answer.text
        made["wheel"] = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
    if earlier.has_priced:
        made["priced"] = _priced(earlier)
    if earlier.has_programs:
        made["programs"] = _ended_programs(earlier)
    _leave_under_way(earlier, made)
    if earlier.has_priced:
        made["priced"]["sums"] = earlier.admin("budget", "show", "--tenant", "team-a")
    return made


def _ended_flows(earlier: Earlier) -> dict[str, Any]:
    completed = earlier.reaches(earlier.submit("hello", name="Ada"), "COMPLETED")
    failed = earlier.reaches(earlier.submit("broken"), "FAILED")
    files = {"workflow": ("flow.yaml", _YAML), "flow_name": (None, "kept")}
    answer = earlier.http.post("/runs/yaml", files=files)
    assert answer.status_code == 200, answer.text
    from_yaml = earlier.reaches(answer.json()["run_id"], "COMPLETED")
    cancelled = earlier.reaches(earlier.submit("slow", n=2, pause=0.5), "RUNNING")
    earlier.http.post(f"/runs/{cancelled}/cancel")
    earlier.reaches(cancelled, "CANCELLED")
    made: dict[str, Any] = {"COMPLETED": [completed, from_yaml], "FAILED": [failed], "CANCELLED": [cancelled]}
    if earlier.has_receipts:
        made["receipt"] = {"key": "kept-1", "run_id": earlier.submit("hello", key="kept-1", name="Bob")}
        made["COMPLETED"].append(earlier.reaches(made["receipt"]["run_id"], "COMPLETED"))
    return made


def _priced(earlier: Earlier) -> dict[str, Any]:
    """The worker has room for one pack: the one that never ends keeps the others waiting."""
    earlier.admin("budget", "credit", "--tenant", "team-a", "--usd", "5.0000", "--ref", "first")
    completed = earlier.priced_reaches(earlier.price("kept-priced-1"), "COMPLETED")
    with _suspended(earlier) as hosts:
        failed = earlier.priced_reaches(earlier.price("kept-priced-2"), "PROCESSING")
        for host in hosts:
            host.kill()
    earlier.priced_reaches(failed, "FAILED")
    others = [earlier.priced_reaches(earlier.price(f"kept-warm-{number}"), "COMPLETED") for number in range(4)]
    return {"key": "kept-priced-1", "body": _PRICED, "COMPLETED": [completed, *others], "FAILED": [failed]}


@contextlib.contextmanager
def _suspended(earlier: Earlier) -> Iterator[list[psutil.Process]]:
    hosts = earlier.family(_PACK_HOST)
    for host in hosts:
        host.suspend()
    yield hosts
    for host in hosts:
        with contextlib.suppress(psutil.NoSuchProcess):
            host.resume()


def _ended_programs(earlier: Earlier) -> dict[str, Any]:
    job_id = str(uuid.uuid4())
    completed = earlier.reaches(earlier.ask_for("calcA", "--n", "3", job_id=job_id), "COMPLETED")
    failed = earlier.reaches(earlier.ask_for("failn", "--n", "3"), "FAILED")
    return {"job_id": job_id, "COMPLETED": [completed], "FAILED": [failed]}


def _leave_under_way(earlier: Earlier, made: dict[str, Any]) -> None:
    """What a power cut meets: runs in hand of a worker, asked to stop, and waiting."""
    running, stopping = (earlier.submit("slow", n=4, pause=0.5, mark=mark) for mark in ("running", "stopping"))
    if earlier.has_programs:
        made["programs"]["RUNNING"] = [earlier.reaches(earlier.ask_for("sleepn", "--sec", "3"), "RUNNING")]
    for host in earlier.family(_PACK_HOST):
        host.suspend()
    if earlier.has_priced:
        in_work = earlier.priced_reaches(earlier.price("kept-priced-3"), "PROCESSING")
    earlier.reaches(running, "RUNNING")
    earlier.reaches(stopping, "RUNNING")
    earlier.freeze_workers()
    earlier.http.post(f"/runs/{stopping}/cancel")
    earlier.reaches(stopping, "CANCELLING")
    earlier.reaches(running, "RUNNING")
    made["flows"] |= {"RUNNING": [running], "CANCELLING": [stopping]}
    made["flows"]["PENDING"] = [earlier.submit("hello", name=f"waiting {number}") for number in range(3)]
    if earlier.has_priced:
        waiting = [earlier.price(f"kept-priced-{number}") for number in (4, 5)]
        made["priced"] |= {"PROCESSING": [in_work], "QUEUED": waiting}
    if earlier.has_programs:
        made["programs"]["PENDING"] = [earlier.ask_for("calcA", "--n", str(number)) for number in (4, 5)]


def pack(name: str, data: Path, made: dict[str, Any]) -> Path:
    """`data/` and `store.json`, in `tests/stores`."""
    target = STORES / f"{name}.tar.xz"
    STORES.mkdir(exist_ok=True)

    def without_the_idle(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if _IDLE.search(entry.name) else entry

    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(data, "data", filter=without_the_idle)
        text = json.dumps(made, indent=1).encode()
        entry = tarfile.TarInfo("store.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return target


def exported(revision: str, tree: Path) -> Path:
    """The files of that revision, in a folder of their own."""
    files = subprocess.run(["git", "-C", ROOT, "archive", revision], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        archive.extractall(tree, filter="data")
    return tree


def main() -> None:
    revision, name = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="pyoco-keep-") as folder:
        tree, data = Path(folder) / "tree", Path(folder) / "data"
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", revision], capture_output=True, text=True, check=True)
        earlier = Earlier(exported(revision, tree), data)
        try:
            earlier.start()
            made = write(earlier)
        finally:
            earlier.kill()
        made |= {"revision": commit.stdout.strip(), "settings": earlier.settings, "made_at": time.time()}
        target = pack(name, data, made)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
