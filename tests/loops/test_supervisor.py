"""Children that end, and what a person sees of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.doors.cli.console import Console
from pyoco_server.errors import PyocoError, UsageError
from pyoco_server.loops import supervisor as supervising
from pyoco_server.loops.supervisor import Part, Supervisor
from support.waiting import eventually


@pytest.fixture
def console() -> Iterator[Console]:
    console = Console(None)
    yield console
    console.close()


def part(script: str, name: str = "child", **more: Any) -> Part:
    values: dict[str, Any] = {"stops": 0, "stop_seconds": 60.0, **more}
    return Part(name=name, command=lambda: [sys.executable, "-c", script], environment=lambda: os.environ, **values)


async def test_a_child_that_ends_again_and_again_stops_everything(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(supervising, "_DEATHS_SECONDS", 120.0)  # a busy machine is slow to start them
    supervisor = Supervisor([part("raise SystemExit(7)")], console)
    supervisor.start()
    with pytest.raises(PyocoError, match="child ended 5 times within 120 s, last: exit status 7"):
        await asyncio.wait_for(supervisor.failed(), 120)
    await supervisor.stop()


async def test_a_first_start_that_fails_for_a_reason_is_not_tried_again(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "_FIRST_SECONDS", 120.0)  # a busy machine is slow to start it
    said = "import sys; sys.stderr.write('ERR-PYOCO-0018: no such thing\\n'); raise SystemExit(1)"
    supervisor = Supervisor([part(said)], console)
    supervisor.start()
    with pytest.raises(UsageError, match="child did not start; see its output above"):
        await asyncio.wait_for(supervisor.failed(), 120)
    await supervisor.stop()


async def test_they_are_stopped_in_order_and_the_others_wait_for_the_base(console: Console, tmp_path: Path) -> None:
    events = tmp_path / "events"

    def script(name: str) -> str:
        return (
            "import signal\n"
            f"say = lambda what: open({str(events)!r}, 'a').write('{name} ' + what + '\\n')\n"
            "def end(*_): say('ends'); raise SystemExit(0)\n"
            "signal.signal(15, end); say('runs'); signal.pause()"
        )

    async def base_runs() -> None:
        await eventually(lambda: events.exists() and "base runs" in events.read_text())

    base = part(script("base"), "base", stops=2, until_ready=base_runs, is_base=True)
    others = [part(script("late"), "late", stops=1), part(script("early"), "early", stops=0)]
    supervisor = Supervisor([*others, base], console)
    supervisor.start()
    await eventually(lambda: events.exists() and events.read_text().count("runs") == 3)
    await supervisor.stop()
    lines = events.read_text().splitlines()
    assert lines[0] == "base runs"
    assert lines[3:] == ["early ends", "late ends", "base ends"]


async def test_of_several_bases_most_have_to_be_there(console: Console, tmp_path: Path) -> None:
    """A cluster that has lost one node of three still carries the others."""
    sleeps, ready = "import time; time.sleep(600)", [asyncio.Event() for _ in range(3)]
    bases = [
        part(sleeps, f"base-{number}", until_ready=event.wait, is_base=True, stop_seconds=1.0)
        for number, event in enumerate(ready)
    ]
    supervisor = Supervisor([part(sleeps, "child"), *bases], console)
    base = supervisor._children[0]._base
    supervisor.start()
    ready[0].set()
    await eventually(lambda: base._running == {"base-0"})
    assert not base._ready.is_set()
    ready[1].set()
    await eventually(lambda: "child" in supervisor.pids())
    async with supervisor.away("base-0"):  # one of three is left
        await eventually(lambda: base._running == {"base-1"})
        assert not base._ready.is_set()
        async with supervisor.away("child"):
            pass
        ready[2].set()
        await eventually(lambda: "child" in supervisor.pids())
    await eventually(lambda: len(base._running) == 3)
    async with supervisor.away("base-1"):
        await eventually(lambda: len(base._running) == 2)
        assert base._ready.is_set()
    await supervisor.stop()


async def test_whoever_is_back_is_told_of_with_its_new_pid(console: Console) -> None:
    heard: list[tuple[str, int]] = []
    supervisor = Supervisor(
        [part("import time; time.sleep(600)", stop_seconds=1.0)], console, lambda name, pid: heard.append((name, pid))
    )
    supervisor.start()
    await eventually(lambda: "child" in supervisor.pids())
    old = supervisor.pids()["child"]
    async with supervisor.away("child"):
        assert supervisor.pids() == {}
    await eventually(lambda: bool(heard))
    assert heard == [("child", supervisor.pids()["child"])]
    assert heard[0][1] != old
    await supervisor.stop()


async def test_a_stop_in_the_middle_of_anything_leaves_nobody(console: Console) -> None:
    """A child may be starting, ending, waiting for its next start, or deaf."""
    for pause in (0.0, 0.01, 0.05, 0.1, 0.3):
        scripts = ["raise SystemExit(3)", "import time; time.sleep(60)", "import time; time.sleep(0.05)"]
        parts = [part(script, f"child-{number}", stop_seconds=0.5) for number, script in enumerate(scripts)]
        supervisor = Supervisor(parts, console)
        supervisor.start()
        await asyncio.sleep(pause)
        async with asyncio.timeout(120):
            await supervisor.stop()
        for child in supervisor._children:
            assert child._process is None or child._process.returncode is not None


async def test_a_child_that_does_not_stop_is_killed_at_its_deadline(console: Console) -> None:
    deaf = part("import signal, sys; signal.signal(15, signal.SIG_IGN); sys.stderr.write('x\\n'); signal.pause()")
    supervisor = Supervisor([Part(**{**vars(deaf), "stop_seconds": 0.2})], console)
    supervisor.start()
    await eventually(lambda: console.last_words("child") == ["x"])
    await supervisor.stop()
    process = supervisor._children[0]._process
    assert process is not None
    assert process.returncode == -signal.SIGKILL


def a_line(level: str, message: str, **fields: object) -> str:
    return json.dumps({"ts": "2025-01-02T03:04:05.6Z", "service": "s", "level": level, "message": message, **fields})


def test_a_person_sees_warnings_once_and_prints_and_the_files_hold_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(tmp_path / "logs")
    for line in (
        a_line("INFO", "all is well"),
        a_line("WARNING", "NATS connection lost", reason="EOF"),
        a_line("WARNING", "NATS connection lost", reason="EOF"),
        "hello from a task",
        '{"no": "log line"}',
    ):
        console.on_stdout("worker-1", line)
    console.close()
    shown = capsys.readouterr()
    assert shown.err == "03:04:05 warning worker-1: NATS connection lost (reason: EOF)\n"
    assert shown.out == 'worker-1: hello from a task\nworker-1: {"no": "log line"}\n'
    written = [json.loads(line) for line in (tmp_path / "logs" / "worker-1.jsonl").read_text().splitlines()]
    assert [line.get("message", line.get("stdout")) for line in written] == [
        "all is well",
        "NATS connection lost",
        "NATS connection lost",
        "hello from a task",
        '{"no": "log line"}',
    ]


def test_log_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyoco_server.doors.cli.console._FILE_BYTES_MAX", 1000)
    console = Console(tmp_path)
    for _ in range(200):
        console.on_stdout("gateway", a_line("INFO", "x" * 50))
    console.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["gateway.jsonl", *(f"gateway.jsonl.{n}" for n in (1, 2, 3))]
    assert all(file.stat().st_size <= 1000 for file in files)
