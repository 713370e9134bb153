"""Flows that leave processes, threads and other changes behind. Hosts load them with `tests` on PYTHONPATH."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import threading
import time
from pathlib import Path

from pyoco import Flow, task

from pyoco_server.core.job import Job, encode_job
from support.strays import daemon, inherited_descriptors, strays

__all__ = ["a_job", "resolve"]

_KEPT: list[int] = []


def strays_and_failure(token: str) -> None:
    strays(token)
    raise ValueError("on purpose")


def strays_and_crash(token: str) -> None:
    strays(token)
    os._exit(5)


def strays_and_halt(token: str, note: str) -> None:
    """Stops itself, so that it notices nothing any more."""
    strays(token, note)
    os.kill(os.getpid(), signal.SIGSTOP)


def strays_and_hold(token: str, note: str) -> None:
    """Never lets go of the interpreter, so that no other thread of it runs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # one would end the sleep
    strays(token, note)
    ctypes.PyDLL(None).sleep(600)


def strays_and_no_files(token: str) -> None:
    strays(token)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    with contextlib.suppress(OSError):
        while True:
            _KEPT.append(os.open("/", os.O_PATH))


def ended_child() -> int:
    """Leaves a zombie."""
    child = os.posix_spawn("/bin/true", ["true"], os.environ)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


def daemon_alone(token: str) -> None:
    """Leaves a grandchild and no child."""
    daemon(token)


def lasting_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def brief_thread() -> None:
    threading.Thread(target=time.sleep, args=(0.01,)).start()


def changes_everything() -> None:
    os.umask(0o777)
    os.chdir("/")
    os.environ["A_NEW_VARIABLE"] = "set"
    os.environ["PATH"] = "/nowhere"
    del os.environ["A_VARIABLE"]
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, lambda *_: None)
    signal.setitimer(signal.ITIMER_VIRTUAL, 600.0)


def finds_everything() -> list[object]:
    """What a run finds around it, and its children would inherit."""
    umask = os.umask(0)
    os.umask(umask)
    status = Path("/proc/thread-self/status").read_text().splitlines()
    return [
        os.getpid(),
        umask,
        str(Path.cwd()),
        sorted(os.environ.items()),
        time.tzname[0],
        [line for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))],
        signal.getitimer(signal.ITIMER_VIRTUAL)[0],
    ]


_TASKS = [
    strays, strays_and_failure, strays_and_crash, strays_and_halt, strays_and_hold, strays_and_no_files, daemon_alone,
    ended_child, lasting_thread, brief_thread, inherited_descriptors, changes_everything, finds_everything,
]  # fmt: skip
_FLOWS = {each.__name__: Flow(name=each.__name__) >> task(each) for each in _TASKS}


def resolve(name: str) -> Flow:
    return _FLOWS[name]


def a_job(flow_name: str, **params: object) -> bytes:
    run_id = "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11"
    return encode_job(Job(run_id=run_id, flow_name=flow_name, tag="t", submitted_at=1.0, params=params))
