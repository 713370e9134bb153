"""How soon a command answers, beside the least that a Python program of its kind can need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from bench.report import heading, median, table
from bench.stack import Stack

_ROUNDS = 11
_PYTHON = sys.executable
_BIN = Path(_PYTHON).parent

#: What nobody who writes a command in Python with these libraries can avoid.
_FLOORS = {
    "python -c pass": [_PYTHON, "-c", "pass"],
    "import click": [_PYTHON, "-c", "import click"],
    "import httpx": [_PYTHON, "-c", "import httpx"],
}


def _seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main(running: Stack) -> None:
    heading("start of a command: milliseconds until it has answered, median of interleaved rounds")
    address = f"http://127.0.0.1:{running.port}"
    run_id = httpx.post(f"{address}/runs", json={"flow_name": "noop"}).raise_for_status().json()["run_id"]
    floors = _FLOORS | {
        "httpx.get of a run": [_PYTHON, "-c", f"import httpx; httpx.get('{address}/runs/{run_id}').raise_for_status()"]
    }
    ours = {
        "pyoco-client --help": [str(_BIN / "pyoco-client"), "--help"],
        "pyoco-client watch --help": [str(_BIN / "pyoco-client"), "watch", "--help"],
        "pyoco-client get": [str(_BIN / "pyoco-client"), "get", "--run-id", run_id],
        "pyoco-server --help": [str(_BIN / "pyoco-server"), "--help"],
        "pyoco-worker --help": [str(_BIN / "pyoco-worker"), "--help"],
        "pyoco-keeper --help": [str(_BIN / "pyoco-keeper"), "--help"],
        "pyoco-server-admin --help": [str(_BIN / "pyoco-server-admin"), "--help"],
    }
    environment = {**os.environ, "PYOCO_SERVER_URL": address}
    took: dict[str, list[float]] = {name: [] for name in (*floors, *ours)}
    for _ in range(_ROUNDS):
        for name, command in (floors | ours).items():
            took[name].append(_seconds(command, environment))
    rows = [["", "ms", "floor", "times the floor"]]
    rows += [[name, f"{median(took[name]) * 1e3:.0f}", "", ""] for name in floors]
    for name in ours:
        floor = "httpx.get of a run" if name.endswith(" get") else "import click"
        times = median(took[name]) / median(took[floor])
        rows.append([name, f"{median(took[name]) * 1e3:.0f}", floor, f"{times:.2f}"])
    table(rows)
