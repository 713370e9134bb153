"""The process that warm processes are forked from: see `warm_processes`.

A fork that starts a module of ours with the plain `subprocess` or `asyncio` functions, as `pyoco-server up` does with
the gateway, the keeper and the worker, forks it, too: the child has nothing to import either. Every other command it
starts is started as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import functools
import gc
import importlib
import io
import json
import logging
import multiprocessing.process
import os
import pkgutil
import re
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__: list[str] = []

#: Imported before the first fork, together with all modules of the product.
_MODULES = (
    "alembic.command",
    "pip._internal.cli.main",
    "pip._internal.commands.install",
    "uvicorn.main",
    "uvicorn.lifespan.on",
)
#: Needed by few processes and slow to import, or not importable alone.
_LEFT_OUT = (
    "pyoco_server.doors.mcp",
    "pyoco_server.executors.program.samples",
    "pyoco_server.ports.ledger.migrations",
)
#: The error handler of each stream.
_STREAMS = {"stdin": "surrogateescape", "stdout": "surrogateescape", "stderr": "backslashreplace"}
_ASK_BYTES_MAX = 1 << 20
#: Of a command line, as `ps` shows it.
_TITLE_BYTES_MAX = 4000
#: Variables of the interpreter that a fork can take over: see `_become`.
_KNOWN_VARIABLES = {"PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONUTF8"}


#: Of a fork that a test requested; a fork of a fork has its own.
_USUAL: dict[str, Any] = {"preexec": None, "passed": (), "is_path_safe": False}
#: Where installed modules are found.
_INSTALLED = sys.path[1:]


def _serve(line: socket.socket) -> dict[str, Any]:
    """Returns in a child, with what that is to do. Ends with the test process."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, who end us in their own time
    signal.set_wakeup_fd(wake)
    own_pid = os.getpid()
    waited_for: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([line.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _bury(waited_for)
        if line.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(line, _ASK_BYTES_MAX, 4)
            if not data:
                os._exit(0)
            pid = _fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                line.detach()
                return {**_USUAL, **json.loads(data), "fds": fds[:3], "parent": own_pid}
            waited_for[pid] = fds[3]
            for fd in fds[:3]:
                os.close(fd)
            line.send(pid.to_bytes(8, "big"))


def _fork() -> int:
    """Returns in the parent once the child has handled its signals and session: a signal to the child or to its group
    that is sent right afterwards takes effect, as with `Popen`."""
    begun, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        return 0  # `_take_descriptors` closes `begin`
    os.close(begin)
    os.read(begun, 1)
    os.close(begun)
    return pid


def _bury(waited_for: dict[int, int]) -> None:
    for pid in list(waited_for):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            to = waited_for.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # its result is not needed
                os.write(to, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(to)


def _become(ask: dict[str, Any]) -> None:
    """Turn this fork into the requested process, as the system and Python see it."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if ask["preexec"] is not None:
        ask["preexec"]()
    else:
        _die_with_parent()
        if os.getppid() != ask["parent"]:  # the parent ended before prctl
            os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if ask["has_own_session"]:
        os.setsid()
    _take_descriptors(ask["fds"], ask["passed"])
    for limit, both in ask["limits"]:
        if resource.getrlimit(limit) != tuple(both):
            resource.setrlimit(limit, both)
    os.umask(ask["umask"])
    os.chdir(ask["cwd"])
    _retitle(ask["title"])
    os.environ.clear()
    os.environ.update(ask["env"])
    time.tzset()
    tempfile.tempdir = None
    multiprocessing.process.ORIGINAL_DIR = ask["cwd"]  # type: ignore[attr-defined]
    sys.dont_write_bytecode = bool(ask["env"].get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:] = [*_own_path(ask), *_INSTALLED]
    importlib.invalidate_caches()
    sys.argv = ask["argv"]
    _open_streams(is_unbuffered=bool(ask["env"].get("PYTHONUNBUFFERED")))


def _take_descriptors(streams: Sequence[int], passed: Sequence[int]) -> None:
    """Make `streams` the standard ones, and close all others but `passed`."""
    for to, copy in enumerate([os.dup(fd) for fd in streams]):
        os.dup2(copy, to)
    begin = 3
    for fd in sorted({fd for fd in passed if fd >= begin}):
        os.set_inheritable(fd, True)
        os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, 1 << 16)


def _own_path(ask: dict[str, Any]) -> Iterator[str]:
    """Where modules are looked for before those that are installed."""
    firsts = {"-m": ask["cwd"], "-c": "", "script": str(Path(ask["argv"][0]).resolve().parent)}
    if not ask["is_path_safe"]:
        yield firsts[ask["kind"]]
    if given := ask["env"].get("PYTHONPATH"):
        yield from (str(Path(place).absolute()) for place in given.split(os.pathsep))


def _open_streams(*, is_unbuffered: bool) -> None:
    """As Python does for the languages C, POSIX and C.UTF-8."""
    for fd, (name, errors) in enumerate(_STREAMS.items()):
        is_read = name == "stdin"
        held: Any = open(fd, "rb" if is_read else "wb", 0 if is_unbuffered and not is_read else -1, closefd=False)  # noqa: SIM115
        getattr(held, "raw", held).name = f"<{name}>"
        is_by_line = (name == "stderr" and not is_unbuffered) or os.isatty(fd)
        is_through = is_unbuffered and not is_read
        stream = io.TextIOWrapper(held, "utf-8", errors, line_buffering=is_by_line, write_through=is_through)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _retitle(command: list[str]) -> None:
    """What `ps` shows, and who looks for a process by its words sees: written over our own words. As the last byte is
    no longer zero, the kernel takes it for one line."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(numbers[45]), int(numbers[46])
    line = " ".join(command).encode()[:_TITLE_BYTES_MAX]
    ctypes.memmove(start, line.ljust(end - start - 1, b"\0") + b".", end - start)
    name = Path(command[0]).name.encode()
    ctypes.CDLL(None).prctl(15, name)


def _run(kind: str, argv: list[str]) -> None:
    if kind == "-m":
        found = sys.modules.get(argv[0])
        if found is not None and not hasattr(found, "__path__"):
            _forget(argv[0])  # or runpy says that it is there already
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    elif kind == "script":
        runpy.run_path(argv[0], run_name="__main__")
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = ["-c", *argv[1:]]
        exec(compile(argv[0], "<string>", "exec"), main.__dict__)


def _forget(module: str) -> None:
    del sys.modules[module]
    package, _, name = module.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).pop(name, None)


def _ours(package: str) -> Iterator[str]:
    """All modules in it."""
    yield package
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if found.name not in _LEFT_OUT and not found.name.endswith(".__main__"):
            yield from _ours(found.name) if found.ispkg else [found.name]


def _make_clock_movable() -> None:
    """Whoever keeps `time.time` as a default does so while it is imported. A process whose clock is to be wrong changes
    by how much: `time.time.difference`."""
    usual = time.time

    def movable() -> float:
        return usual() + movable.difference()  # type: ignore[attr-defined,no-any-return]

    movable.difference = float  # type: ignore[attr-defined]
    movable.__module__, movable.__name__, movable.__qualname__ = "time", "time", "time"
    time.time = movable


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


# Children of a fork


def _fork_own_modules() -> None:
    """From here on, `subprocess` forks `python -m pyoco_server.…` instead of starting an interpreter."""
    usual: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    @functools.wraps(usual)
    def execute(self: subprocess.Popen[Any], *words: Any) -> None:
        ask = _child_ask(words)
        if ask is None:
            usual(self, *words)
            return
        self.pid = _fork()
        if self.pid == 0:
            _be_child(ask)
        self._child_created = True  # type: ignore[attr-defined]
        self._close_pipe_fds(*words[10:16])  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


def _child_ask(words: Sequence[Any]) -> dict[str, Any] | None:
    """What a child of this process is to be. None: not a module of the product, or it needs a new interpreter."""
    arguments, _, preexec, _, passed, cwd, env, _, _, is_shell, *ends = words[:16]
    command = [os.fspath(word) for word in arguments] if not isinstance(arguments, str | bytes) else []
    env = dict(os.environ if env is None else env)
    options = command[1 : command.index("-m")] if "-m" in command else None
    argv = command[len(options) + 2 :] if options is not None else []
    is_ours = command[:1] == [sys.executable] and options in ([], ["-P"]) and argv[0].startswith("pyoco_server.")
    is_plain = all(name in _KNOWN_VARIABLES for name in env if re.fullmatch(r"PYTHON[A-Z]+", name))
    is_main = threading.current_thread() is threading.main_thread()  # a fork has but the thread that made it
    if is_shell or not (is_ours and is_plain and is_main):
        return None
    umask = os.umask(0)
    os.umask(umask)
    return {
        "kind": "-m",
        "argv": argv,
        "title": command,
        "env": env,
        "cwd": str(cwd or Path.cwd()),
        "has_own_session": bool(words[21]),
        "limits": [],
        "umask": umask,
        "preexec": preexec or (lambda: None),
        "passed": passed,
        "is_path_safe": options == ["-P"],
        "fds": [own if own != -1 else usual for usual, own in enumerate((ends[0], ends[3], ends[5]))],
    }


def _be_child(ask: dict[str, Any]) -> NoReturn:
    """In a new fork of a fork: forget what the parent was doing, and run."""
    try:
        signal.set_wakeup_fd(-1)
        gc.freeze()  # a socket of the parent that is collected would close a descriptor of ours
        atexit._clear()
        root = logging.getLogger()
        root.handlers.clear()
        root.setLevel(logging.WARNING)
        contextvars.Context().run(_live, ask)
    except BaseException:  # noqa: BLE001  (as the interpreter does: nothing may reach the frames of the parent)
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(1)


def _live(ask: dict[str, Any]) -> None:
    """Act as the requested process, up to its end. Returns only if its exit is left to the interpreter."""
    _become(ask)
    code: object = 0
    try:
        _run(ask["kind"], ask["argv"])
    except SystemExit as leaving:
        code = leaving.code
    if isinstance(code, int | None):
        # All that Python does at the end, but for taking everything apart that was imported.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(str(code))


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    _retitle(sys.orig_argv[:2])
    _make_clock_movable()
    if sys.argv[2] == "1":
        for module in (*_ours("pyoco_server"), *_MODULES):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    ask = _serve(line)
    _fork_own_modules()
    _live(ask)


if __name__ == "__main__":
    main()
