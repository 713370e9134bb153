"""`make up-priced`: the priced stack on PostgreSQL, Valkey and an emulator of S3 and SQS, from one command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.priced.servers import is_alive
from support.servers import free_port
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
_SECONDS = 90.0


@dataclass
class Stack:
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def said(self) -> str:
        return self.output.read_text()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.said
        return "Ctrl-C stops everything" in self.said


@contextlib.contextmanager
def a_stack(folder: Path) -> Iterator[Stack]:
    output = folder / "said.txt"
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYOCO_", "AWS_"))}
    command = [sys.executable, str(ROOT / "tools" / "up_priced.py"), "--port", str(free_port())]
    with output.open("wb") as written:
        process = subprocess.Popen(
            command, env=variables | {"TMPDIR": str(folder)}, stdout=written, stderr=written, start_new_session=True
        )
    try:
        yield Stack(process, output)
    finally:
        process.kill()
        process.wait()


async def test_the_line_that_it_prints_gets_an_answer_and_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """PRICED-231, SAFE-3"""
    with a_stack(tmp_path) as stack:
        await eventually(stack.is_up, _SECONDS)
        [line] = re.findall(r"^  (PYOCO_SERVER_URL=.*)$", stack.said, re.MULTILINE)
        [key] = re.findall(r"^  key      (\S+)", stack.said, re.MULTILINE)
        assert f"PYOCO_API_KEY={key} " in line
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=_SECONDS)
        assert done.returncode == 0, done.stderr
        envelope = json.loads(done.stdout)
        assert envelope["data"]["answer_text"] == "We ship on Friday."
        assert envelope["cost"]["used_usd"] == "0.0500"
        family = stack.family()
        names = {each.name() for each in family}
        assert {"postgres", "valkey-server", "nats-server"} <= names
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait(_SECONDS) == 0
        assert stack.said.endswith("stopped; nothing is left\n")
        await eventually(lambda: not any(map(is_alive, family)), 12)
    assert list(tmp_path.glob("pyoco-up-priced-*")) == []


async def test_no_process_outlives_a_kill_and_a_taken_port_is_told(tmp_path: Path) -> None:
    """PRICED-231"""
    with a_stack(tmp_path) as stack:
        await eventually(stack.is_up, _SECONDS)
        family = stack.family()
        [port] = re.findall(r"http://127\.0\.0\.1:(\d+)/v1$", stack.said, re.MULTILINE)
        second = subprocess.run(
            [sys.executable, ROOT / "tools" / "up_priced.py", "--port", port],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert second.returncode == 1
        assert port in second.stderr.partition("error: ")[2]
        stack.process.kill()
        await eventually(lambda: not any(map(is_alive, family)), 12)
