"""The flows of the chaos tests: every execution leaves a trace, and one of them fails. Hosts load them with `tests` on
PYTHONPATH."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyoco import Flow, task

__all__ = ["resolve"]


def _write(path: str, word: str, token: str) -> None:
    """One write below PIPE_BUF in append mode: lines of many processes do not mix."""
    line = f"{word} {token} {time.monotonic()} {os.getpid()}\n".encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def leaves_a_trace(path: str, token: str, seconds: float = 0.0, gate: str = "") -> str:
    """With a gate, it continues once that file exists."""
    _write(path, "began", token)
    time.sleep(seconds)
    while gate and not Path(gate).exists():
        time.sleep(0.005)
    _write(path, "ended", token)
    return Path(path).name


def fails(path: str, token: str, seconds: float = 0.0) -> str:
    leaves_a_trace(path, token, seconds)
    print("about to fail")
    raise ValueError("as it was asked to")


FLOWS = {name: Flow(name=name) >> task(work) for name, work in (("trace", leaves_a_trace), ("fails", fails))}


def resolve(flow_name: str) -> Flow:
    return FLOWS[flow_name]
