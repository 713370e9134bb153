"""What the other tests take for a process of its own is one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil

from warm_processes import started

PROGRAM = """
import json, os, signal, sys, time
if sys.argv[1:] == ["waits"]:
    print("here", flush=True)
    time.sleep(60)
print(json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:], os.getsid(0) == os.getpid(), __name__]))
sys.exit(3)
"""


async def test_it_has_what_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    given = {"WORD": "ä"}
    processes = [await started(["-m", "program", word], env=given, cwd=tmp_path) for word in ("one", "two")]
    for process, word in zip(processes, ("one", "two"), strict=True):
        out, err = await process.communicate()
        assert (process.returncode, err) == (3, b"")
        assert out == f'["{tmp_path}", {{"WORD": "\\u00e4"}}, ["{word}"], true, "__main__"]\n'.encode()


async def test_it_is_ended_by_a_signal_and_no_other_is(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    first, second = [await started(["-m", "program", "waits"], env={}, cwd=tmp_path) for _ in range(2)]
    for process in (first, second):
        assert process.stdout is not None
        assert await process.stdout.readline() == b"here\n"
    first.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(first.wait(), 30) == -signal.SIGTERM
    assert (first.returncode, second.returncode) == (-signal.SIGTERM, None)
    assert psutil.Process(second.pid).is_running()
    os.killpg(second.pid, signal.SIGKILL)
    assert await asyncio.wait_for(second.wait(), 30) == -signal.SIGKILL
