"""Flows that print and log, in every way that code can."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from pyoco.core.models import Flow, Task

__all__ = ["resolve"]

print("imported")
log = logging.getLogger("my.app")


def every_way() -> None:
    print("one")
    log.info("a record of %d", 2)
    print("three", file=sys.stderr)
    log.debug("not wanted")
    print("four")
    subprocess.run(["sh", "-c", "echo five; echo six >&2"], check=True)
    os.write(1, b"seven, open")


def second() -> None:
    os.system("echo eight")


def fails() -> None:
    try:
        int("inner")
    except ValueError:
        log.exception("caught")
    print("open", end="")
    raise RuntimeError("the end")


def _meet(name: str) -> None:
    for number in range(20):
        print(name, number)
        log.info("%s %d", name, number)
        time.sleep(0.001)
    os.write(1, b"")


def left() -> None:
    _meet("left")


def right() -> None:
    _meet("right")


def dies() -> None:
    print("before the end")
    os.kill(os.getpid(), 9)


def closes() -> None:
    print("before")
    os.close(1)
    os.close(2)
    log.info("still logged")


def redirects() -> None:
    print("before")
    target = os.open("/dev/null", os.O_WRONLY)
    os.dup2(target, 1)
    print("to nowhere")
    log.info("still logged")
    print("to stderr", file=sys.stderr)


def leaves_a_child() -> None:
    ready, says_so = os.pipe()
    script = f"echo from the child; echo >&{says_so}; sleep 600"
    subprocess.Popen(["sh", "-c", script], pass_fds=[says_so])
    os.read(ready, 1)
    print("from the task")


def leaves_a_thread() -> None:
    threading.Thread(target=_print_later, daemon=True).start()


def _print_later() -> None:
    time.sleep(0.02)
    print("from the thread")


def forks() -> None:
    print("parent")
    process = multiprocessing.get_context("fork").Process(target=print, args=("forked",))
    process.start()
    process.join()
    print("parent again")


def configures() -> None:
    logging.basicConfig(stream=sys.stdout, format="own %(message)s", force=False)
    log.warning("twice")


def floods() -> None:
    data = b"x" * 99 + b"\n"
    for _ in range(2000):
        os.write(1, data * 500)
    print("the last line")


def long_line() -> None:
    for _ in range(1000):
        os.write(1, b"y" * 100_000)


def binary() -> None:
    os.write(1, b"\xff\0\x1b[2J\n")


def nothing() -> None:
    """Prints nothing."""


def ten_lines() -> None:
    for number in range(10):
        print("line", number)


def bad_record() -> None:
    log.info("%d", "no number")


class _Shapeless:
    def __repr__(self) -> str:
        raise ValueError


def odd_records() -> None:
    log.info(_Shapeless())
    record = log.makeRecord("n" * 5_000_000, logging.INFO, "", 1, "from a long name", (), None)
    record.created = 4e9
    log.handle(record)
    log.info("the last one")


def _flow(*tasks: Callable[[], None], is_chain: bool = True) -> Flow:
    made = [Task(func=each, name=each.__name__) for each in tasks]
    if is_chain:
        for one, other in itertools.pairwise(made):
            other.dependencies.add(one)
    return Flow(name=tasks[0].__name__, tasks=set(made))


_FLOWS = {
    "both": lambda: _flow(every_way, second),
    "together": lambda: _flow(left, right, is_chain=False),
}


def resolve(name: str) -> Flow:
    return _FLOWS[name]() if name in _FLOWS else _flow(globals()[name])
