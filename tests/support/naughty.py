"""Flows that behave as badly as flows can. Hosts load them with `tests` on PYTHONPATH."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyoco import Flow, task

__all__ = ["FLOWS", "resolve"]


def fine(n: int = 1) -> int:
    return n + 1


def leaves() -> None:
    os._exit(3)


def exits() -> None:
    sys.exit(4)


def interrupts() -> None:
    raise KeyboardInterrupt


def crashes() -> None:
    ctypes.string_at(0)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def spins() -> None:
    while True:
        pass


def sleeps(seconds: float = 60.0) -> float:
    time.sleep(seconds)
    return seconds


def ignores_the_polite_word() -> None:
    """A child that does not mind SIGTERM."""
    command = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(300)"
    child = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(300)


def eats_memory() -> int:
    return len(bytearray(8 << 30))


def speaks_at_length() -> str:
    return "x" * 30_000_000


def prints() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        print("R" * 1000, file=stream)
    os.write(1, b"\x02\x00\x00\x00{}")
    os.write(2, b"\x02\x00\x00\x00{}")


def closes_everything() -> None:
    sys.stdout.close()
    sys.stderr.close()
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.close(fd)


def goes_away() -> None:
    """To a directory that is removed behind its back."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)


def sets_an_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 600.0)


def finds() -> list[Any]:
    """What a run finds around it."""
    return [str(Path.cwd()), signal.getitimer(signal.ITIMER_REAL)[0]]


def scribbles(text: str = "scribble" * 100) -> None:
    """Writes on every descriptor it finds, those of the worker included."""
    for entry in list(Path("/dev/fd").iterdir()):
        with contextlib.suppress(OSError):
            os.write(int(entry.name), text.encode())


def forges(text: str) -> None:
    """As `scribbles`, in frames that look right."""
    scribbles(len(text).to_bytes(4, "little").decode() + text)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def raises_the_unprintable() -> None:
    raise Unprintable


class WithProblems(Exception):
    problems = ("this is a text", 3)


def raises_with_problems() -> None:
    raise WithProblems("told")


class BadKey:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def returns(what: str) -> Any:
    return RETURNS[what]()


def _deep() -> list[Any]:
    inner: list[Any] = []
    for _ in range(5000):
        inner = [inner]
    return inner


def _own() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


RETURNS: dict[str, Callable[[], Any]] = {
    "nan": lambda: {"a": float("nan"), "b": [float("inf"), -float("inf")]},
    "bad key": lambda: {BadKey(): 1},
    "bad value": lambda: [BadKey()],
    "deep": _deep,
    "itself": _own,
    "surrogate": lambda: "\ud800",
    "large number": lambda: 10**5000,
    "generator": lambda: (n for n in range(3)),
    "ordered": lambda: OrderedDict(a=(1, 2)),
    "bytes": lambda: b"\xff",
}


def starts_others(path: str, fork: bool = False) -> None:
    """Leaves a process behind that holds whatever it inherits; its id is written to `path`."""
    if fork:
        child = os.fork()
        if child == 0:
            time.sleep(300)
            os._exit(0)
    else:
        child = os.posix_spawn("/bin/sleep", ["sleep", "300"], os.environ)
    Path(path).write_text(f"{child} {os.getpid()}")


def dies_with_others_left(path: str, fork: bool = False) -> None:
    starts_others(path, fork)
    os._exit(5)


def stays_with_others(path: str) -> None:
    starts_others(path)
    time.sleep(300)


def holds_the_interpreter(seconds: float = 1.0, pipe: str = "") -> None:
    """Like a library that never lets go of the interpreter: no other thread runs meanwhile. With a pipe it does so
    until whoever opens that for writing closes it."""
    if not pipe:
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
        return
    fd = os.open(pipe, os.O_RDONLY)
    ctypes.PyDLL(None).read(fd, ctypes.create_string_buffer(1), 1)
    os.close(fd)


def watches_for_a_cancel(ctx: Any, seconds: float = 60.0) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if ctx.is_cancelled:
            return "stopped"
        time.sleep(0.005)
    return "not asked"


def changes_params(ctx: Any) -> None:
    ctx.params["nested"]["list"].append("changed")
    ctx.params["new"] = 1


def who() -> int:
    return os.getpid()


def marks(path: str, seconds: float = 0.0) -> None:
    """Leaves a trace of when it began and ended, for tests that count what runs at once."""
    began = time.time()
    time.sleep(seconds)
    with Path(path).open("a") as file:
        file.write(f"{began} {time.time()} {os.getpid()}\n")


def sleeps_the_first_time(path: str, seconds: float = 60.0) -> str:
    """Long for the first attempt, short for the second."""
    if Path(path).exists():
        return "again"
    Path(path).touch()
    time.sleep(seconds)
    return "first"


def waits_for(path: str) -> str:
    """Until a test makes that file. The host of a test that fails before is killed."""
    while not Path(path).exists():
        time.sleep(0.005)
    return "at last"


def holds_much_and_fails(megabytes: int = 300) -> None:
    held = [bytearray(b"x") * (1 << 20) for _ in range(megabytes)]  # zeros would never be resident
    raise ValueError(f"with {len(held)} MB in hand")


KEPT: list[bytes] = []


def keeps_much_and_fails(megabytes: int) -> None:
    KEPT.append(b"x" * (megabytes << 20))
    raise ValueError("with all of it still in hand")


def fails(text: str = "on purpose") -> None:
    raise ValueError(text)


ALL = [
    holds_much_and_fails,
    fine, leaves, exits, interrupts, crashes, is_killed, spins, sleeps, ignores_the_polite_word, eats_memory,
    speaks_at_length, prints, closes_everything, scribbles, forges, raises_the_unprintable, raises_with_problems,
    returns, starts_others, dies_with_others_left, stays_with_others, holds_the_interpreter, watches_for_a_cancel,
    changes_params, who, marks, sleeps_the_first_time, waits_for, fails, goes_away, sets_an_alarm, finds,
    keeps_much_and_fails,
]  # fmt: skip
FLOWS: dict[str, Flow] = {each.__name__: Flow(name=each.__name__) >> task(each) for each in ALL}


def first(pause: float = 0.0) -> str:
    time.sleep(pause)
    return "first"


def second(ctx: Any, first: str, pause: float = 0.0, gate: str = "") -> str:
    """With a gate, not before that file is there."""
    time.sleep(pause)
    if gate:
        waits_for(gate)
    return first + " second"


def afterwards() -> str:
    return "started after a cancel"


FLOWS["steps"] = Flow(name="steps") >> task(first) >> task(second)
FLOWS["cancelled_between_steps"] = (
    Flow(name="cancelled_between_steps") >> task(watches_for_a_cancel) >> task(afterwards)
)


def resolve(flow_name: str) -> Flow:
    if flow_name == "resolver fails":
        raise ValueError("the resolver itself fails")
    return FLOWS[flow_name]
