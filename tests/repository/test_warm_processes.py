"""What the other tests take for a process of its own is one."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import warm_processes
from support.waiting import eventually
from support.warm_processes import WarmPopen, begun, ran, started

PROGRAM = """
import json, os, signal, sys, time
if sys.argv[1:] == ["waits"]:
    print("here", flush=True)
    time.sleep(60)
print(json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:], os.getsid(0) == os.getpid(), __name__]))
sys.exit(3)
"""
#: All that a process can know about itself, and that does not differ from one start to the next.
LOOK = """
import __main__, json, logging, multiprocessing.process, os, resource, signal, sys, tempfile, threading, time
kept = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
handlers = {int(each): str(signal.getsignal(each)) for each in signal.valid_signals() if each not in (32, 33)}
streams = [[each.encoding, each.errors, each.line_buffering, each.name, each.fileno()] for each in (
    sys.stdin, sys.stdout, sys.stderr)]
umask = os.umask(0)
json.dump({
    "name": __name__, "file": getattr(__main__, "__file__", None), "is main": sys.modules["__main__"].__name__,
    "argv": sys.argv, "path": sys.path, "environment": dict(os.environ), "folder": os.getcwd(), "umask": umask,
    "limits": {name: resource.getrlimit(number) for name, number in kept.items()}, "handlers": handlers,
    "mask": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])], "streams": streams,
    "session": os.getsid(0), "group": os.getpgid(0) if os.getpgid(0) != os.getpid() else "own",
    "open": sorted(os.listdir("/proc/self/fd"))[:-1], "threads": threading.active_count(),
    "temporary": tempfile.gettempdir(), "zone": time.tzname, "nice": os.nice(0),
    "root": multiprocessing.process.ORIGINAL_DIR,
    "handles": len(logging.getLogger().handlers), "writes bytecode": not sys.dont_write_bytecode,
    "comm": open("/proc/self/comm").read(), "bits": sys.flags.safe_path, "affinity": sorted(os.sched_getaffinity(0)),
}, sys.stdout)
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
    assert await asyncio.wait_for(first.wait(), 100) == -signal.SIGTERM
    assert (first.returncode, second.returncode) == (-signal.SIGTERM, None)
    assert psutil.Process(second.pid).is_running()
    os.killpg(second.pid, signal.SIGKILL)
    assert await asyncio.wait_for(second.wait(), 100) == -signal.SIGKILL


@pytest.fixture
def look(tmp_path: Path) -> Path:
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "here").mkdir()
    return tmp_path


@contextmanager
def low_limit(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    before = os.umask(0o027)
    try:
        yield
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def usual_signals() -> Iterator[None]:
    """As in a shell: whoever runs the tests may ignore some, in the background or under `nohup`, and a cold process
    would inherit that."""
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, hang_up)
        signal.signal(signal.SIGINT, interrupt)


def seen(command: list[str | Path], **options: Any) -> Any:
    with low_limit(1 << 30), usual_signals():
        done = ran(command, timeout=200, stdin=subprocess.DEVNULL, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("how", "unbuffered", "own_session"),
    [(["-m", "look"], {}, True), (["-c", LOOK], {"PYTHONUNBUFFERED": "1"}, False), (["FILE"], {}, False)],
    ids=["module", "code", "file"],
)
def test_it_sees_what_a_cold_one_sees(
    how: list[str], unbuffered: dict[str, str], own_session: bool, look: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(look / "look.py") if word == "FILE" else word for word in how]
    command: list[str | Path] = [sys.executable, *words, "one", "ä"]
    paths = os.pathsep.join([str(look), "here"])
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "TZ": "Asia/Tokyo", "TMPDIR": str(look / "here")}
    options = {"env": variables | unbuffered | {"LC_ALL": "C.UTF-8"}, "cwd": look, "start_new_session": own_session}
    warm = seen(command, **options)
    monkeypatch.setattr(warm_processes, "is_cold", True)
    cold = seen(command, **options)
    if own_session:
        assert warm.pop("session") != cold.pop("session")
    assert warm == cold


def test_what_else_it_inherits_and_how_it_is_known(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        process = begun([sys.executable, tmp_path / "program.py", "waits"], stdout=stdout, stderr=stdout)
    try:
        assert isinstance(process, WarmPopen)
        asyncio.run(eventually(lambda: out.read_text() == "here\n", 60))
        known = psutil.Process(process.pid)
        assert known.cmdline() == [sys.executable, str(tmp_path / "program.py"), "waits"]
        assert Path(known.cwd()) == Path.cwd()
        assert psutil.Process() in known.parents()
    finally:
        process.kill()
        process.wait(60)


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(7)", "raise SystemExit('no')", "1 / 0", "import os; os._exit(9)"]
)
def test_its_end_is_that_of_a_cold_one(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = ran([sys.executable, "-c", code], timeout=200)
    monkeypatch.setattr(warm_processes, "is_cold", True)
    cold = ran([sys.executable, "-c", code], timeout=200)
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]


@pytest.mark.parametrize("words", [["--help"], ["--no-such-option"]])
def test_a_module_that_a_fork_starts_is_forked_and_behaves_as_a_cold_one(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import json, os, subprocess, sys\n"
        "command = [sys.executable, '-P', '-m', 'pyoco_server.doors.cli.keeper', *sys.argv[1:]]\n"
        "done = subprocess.run(command, capture_output=True, text=True, env={'LC_ALL': 'C.UTF-8', 'PATH': '/bin'})\n"
        "print(json.dumps([done.returncode, done.stdout, done.stderr]))\n"
    )
    warm = ran([sys.executable, "-c", code, *words], timeout=200)
    monkeypatch.setattr(warm_processes, "is_cold", True)
    cold = ran([sys.executable, "-c", code, *words], timeout=200)
    assert (warm.returncode, warm.stderr) == (0, "")
    assert json.loads(warm.stdout) == json.loads(cold.stdout)


def test_waiting_ends_in_time_and_the_code_is_kept() -> None:
    process = begun([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert (process.wait(60), process.poll(), process.returncode) == (-signal.SIGTERM,) * 3
    assert not psutil.pid_exists(process.pid)
    process.send_signal(signal.SIGKILL)  # nobody is struck
    process.stdin.close()


def test_interrupted_it_ends_as_python_does() -> None:
    code = "import time; print('here', flush=True); time.sleep(60)"
    with begun([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1].rstrip().endswith(b"KeyboardInterrupt")
        assert process.returncode == -signal.SIGINT


def test_the_dice_fall_otherwise_in_each() -> None:
    command = [sys.executable, "-c", "import random, uuid; print(random.random(), uuid.uuid4())"]
    assert len({word for _ in range(2) for word in ran(command, timeout=200).stdout.split()}) == 4


def test_the_clock_of_a_fork_can_be_moved_for_who_has_kept_it(tmp_path: Path) -> None:
    code = (
        "import pickle, time\n"
        "from pyoco_server.loops import loop\n"
        "time.time.difference = lambda: 3600.0\n"
        "assert pickle.loads(pickle.dumps(time.time)) is time.time\n"
        "print(time.time())\n"
    )
    before = time.time()
    assert 3590 < float(ran([sys.executable, "-c", code], timeout=200).stdout) - before < 3900


def test_what_is_none_of_python_or_has_its_own_wishes_is_started_as_ever() -> None:
    with begun(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert not isinstance(process, WarmPopen)
        assert process.communicate("x", timeout=60) == ("x", None)
    variables = {**os.environ, "PYTHONHASHSEED": "1"}
    with begun([sys.executable, "-c", ""], env=variables) as process:
        assert not isinstance(process, WarmPopen)


def test_it_ends_with_the_test_process(tmp_path: Path) -> None:
    """So does the one that it was forked from."""
    code = (
        "import os, sys\nfrom support import warm_processes\n"
        "warm_processes.is_preloaded = False\n"
        "process = warm_processes.begun([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(process.pid, os.getpid(), flush=True)\n"
        "process.wait()\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        family = [psutil.Process(int(pid)) for pid in test.stdout.readline().split()]
        family += family[1].children(recursive=True)
        assert len({each.pid for each in family}) == 3
        test.kill()
    assert psutil.wait_procs(family, timeout=60)[1] == []
