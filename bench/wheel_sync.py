"""How soon a worker has twenty new wheels, beside pip alone with the same files."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.report import heading, table
from bench.stack import Stack
from bench.wheel_files import make_wheel
from pyoco_server.http_client import PyocoHttpClient

_WHEELS = 20
_SECONDS_MAX = 120.0


def _pip(*arguments: str) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *arguments]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)
    return time.perf_counter() - began


def _synced(client: PyocoHttpClient, count: int, version: str) -> float:
    """When the worker said that it has so many of this version."""
    deadline = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < deadline:
        for worker in client.list_workers():
            report: Any = worker.get("wheel_sync") or {}
            has = [name for name in report.get("installed", ()) if f"-{version}-" in name]
            if len(has) >= count:
                return time.time()
        time.sleep(0.02)
    raise TimeoutError(f"the worker has not {count} wheels of version {version} after {_SECONDS_MAX:g} s")


def _upload(client: PyocoHttpClient, home: Path, count: int, version: str) -> list[Path]:
    paths = [make_wheel(home, f"bench_small_{number}", version) for number in range(count)]
    for path in paths:
        client.upload_wheel(path.name, path)
    return paths


def main(running: Stack) -> None:
    heading(f"sync of {_WHEELS} small wheels on one worker: seconds until the registry says that they are there")
    with (
        tempfile.TemporaryDirectory() as text,
        PyocoHttpClient(f"http://127.0.0.1:{running.port}") as client,
    ):
        home = Path(text)
        first = _upload(client, home, _WHEELS, "1.0")
        running.worker_command += ["--wheel-sync", "--wheel-sync-dir", str(home / "shelf")]
        running.worker_command += ["--wheel-sync-interval-sec", "0.2"]
        began = time.time()
        running.start_worker()
        cold = _synced(client, _WHEELS, "1.0") - began
        _upload(client, home, 1, "2.0")
        began = time.time()
        one = _synced(client, 1, "2.0") - began
        each = sum(_pip("--target", str(home / f"one{number}"), str(path)) for number, path in enumerate(first))
        at_once = _pip("--target", str(home / "all"), *map(str, first))
    table(
        [
            ["", "seconds", "times pip for each"],
            [f"a new worker has all {_WHEELS}", f"{cold:.2f}", f"{cold / each:.2f}"],
            ["one newer version is there", f"{one:.2f}", ""],
            ["pip, a command for each wheel", f"{each:.2f}", "1.00"],
            ["pip, one command for all", f"{at_once:.2f}", f"{at_once / each:.2f}"],
        ]
    )
