"""Installing a wheel with pip: package indexes, credentials, timeouts and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyoco_server.errors import WheelSyncFailed
from pyoco_server.executors.wheels import contents
from pyoco_server.executors.wheels.pip import Pip
from pyoco_server.executors.wheels.shelf import Shelf
from support.waiting import eventually
from support.wheel_installs import Bringer, around, index, registered, shelf
from support.wheels import write_wheel

__all__ = ["index", "shelf"]

pytestmark = pytest.mark.usefixtures("warm_pip")


def worker_with_psutil() -> dict[str, str]:
    return {"psutil": importlib.metadata.version("psutil")}


async def test_with_an_index_what_is_missing_is_fetched_and_no_more(shelf: Shelf, index: Path) -> None:
    """FLOW-236: not what the worker has, nor what another wheel brings, and in the versions those have."""
    other, other_content = registered("other-tasks", "2.0")
    wheel, content = registered(requires=["lonely-lib"])
    bringer = Bringer(shelf, index.as_uri())
    where = around(wheel, other, has=worker_with_psutil())
    await bringer.ready(other, other_content, where)
    ready = await bringer.ready(wheel, content, where)
    home = bringer.installer.fetched_home(ready.home, bringer.installer.to_be_fetched(ready, where))
    assert contents.modules_in(home) == ("deep_lib", "lonely_lib")
    assert ready.modules == ("my_tasks",)
    versions = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions(path=[str(home)])}
    assert versions == {"lonely-lib": "1.0", "deep-lib": "1.1"}
    inode = home.stat().st_ino
    assert await bringer(wheel, content, where, there=ready) == ready  # it is here
    assert home.stat().st_ino == inode
    again = Bringer(shelf, index.as_uri())  # a worker that starts again
    again.installer.look_at_fetched()
    assert await again(wheel, content, where, there=ready) == ready
    assert home.stat().st_ino == inode


async def test_what_was_fetched_and_is_damaged_is_fetched_again(shelf: Shelf, index: Path) -> None:
    """FLOW-239: as after a power cut"""
    wheel, content = registered(requires=["deep-lib"])
    bringer = Bringer(shelf, index.as_uri())
    ready = await bringer.ready(wheel, content)
    home = bringer.installer.fetched_home(ready.home, bringer.installer.to_be_fetched(ready, around(wheel)))
    code = home / "deep_lib" / "__init__.py"
    code.write_text("")
    again = Bringer(shelf, index.as_uri())
    again.installer.look_at_fetched()
    assert not again.installer.has_fetched(home)
    assert await again(wheel, content, there=ready) == ready
    assert code.read_text() == 'VERSION = "1.1"\n'
    assert again.installer.has_fetched(home)
    again.installer.look_at_fetched()
    assert again.installer.has_fetched(home)


@pytest.mark.parametrize("damage", ["none", "file empty", "package gone", "list empty", "list odd", "all gone"])
def test_what_was_fetched_is_whole_when_all_of_its_packages_are(tmp_path: Path, damage: str) -> None:
    """FLOW-239"""
    home = tmp_path / "home"
    for package in ("deep-lib", "lonely-lib"):
        zipfile.ZipFile(write_wheel(tmp_path, package)).extractall(home)
    contents.write_fetch(home, ["deep-lib==1.0", "lonely-lib==1.0"])
    match damage:
        case "file empty":
            (home / "deep_lib" / "__init__.py").write_text("")
        case "package gone":
            shutil.rmtree(home / "deep_lib-1.0.dist-info")
        case "list empty":
            (home / ".fetched.json").write_text("")
        case "list odd":
            (home / ".fetched.json").write_text("2")
        case "all gone":
            shutil.rmtree(home)
    assert contents.is_intact_fetch(home) == (damage == "none")


async def test_what_a_sweep_takes_away_is_fetched_no_more(shelf: Shelf, index: Path) -> None:
    """FLOW-240: and is fetched again when it is needed again"""
    wheel, content = registered(requires=["deep-lib"])
    bringer = Bringer(shelf, index.as_uri())
    ready = await bringer.ready(wheel, content)
    home = bringer.installer.fetched_home(ready.home, bringer.installer.to_be_fetched(ready, around(wheel)))
    assert bringer.installer.fetched_for(ready) == home
    shelf.sweep([], [ready.home], [], set())
    bringer.installer.forget_removed()
    assert bringer.installer.fetched_for(ready) is None
    await bringer(wheel, content, there=ready)
    assert (home / "deep_lib" / "__init__.py").exists()


def test_nothing_fetched_is_something_too(shelf: Shelf) -> None:
    """A worker that starts again does not ask the index once more."""
    home = shelf.fetched_home(shelf.home_of("my-tasks", "1.0", "n1"), "x")
    home.mkdir()
    assert not contents.is_intact_fetch(home)
    contents.write_fetch(home, [])
    assert contents.is_intact_fetch(home)


async def test_what_was_fetched_for_one_wheel_limits_what_is_fetched_for_the_next(shelf: Shelf, index: Path) -> None:
    """Runs see all of it at once: two versions of one library cannot both be right."""
    first, first_content = registered("first-tasks", requires=["deep-lib<1.1"])
    second, second_content = registered("second-tasks", requires=["deep-lib"])
    third, third_content = registered("third-tasks", requires=["deep-lib>=1.1"])
    bringer = Bringer(shelf, index.as_uri())
    where = around(first, second, third)
    await bringer.ready(first, first_content, where)
    ready = await bringer.ready(second, second_content, where)
    home = bringer.installer.fetched_home(ready.home, bringer.installer.to_be_fetched(ready, where))
    assert [one.version for one in importlib.metadata.distributions(path=[str(home)])] == ["1.0"]
    with pytest.raises(WheelSyncFailed, match=r"deep-lib"):
        await bringer(third, third_content, where)


class Empty(http.server.BaseHTTPRequestHandler):
    """An index that has nothing."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Not in the tests' output."""


async def test_what_the_index_does_not_have_is_told_without_its_password(shelf: Shelf, tmp_path: Path) -> None:
    """FLOW-242"""
    wheel, content = registered(requires=["no-such-lib>=3"])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            address = f"http://anna:hidden-word@127.0.0.1:{server.server_port}/simple"
            with pytest.raises(WheelSyncFailed, match="no-such-lib>=3") as caught:
                await Bringer(shelf, address)(wheel, content)
        finally:
            server.shutdown()
    assert "hidden-word" not in str(caught.value)
    with pytest.raises(WheelSyncFailed, match="pip: ValueError") as caught:  # pip itself falls over here
        await Bringer(shelf, f"file://anna:hidden-word@elsewhere{tmp_path}")(wheel, content)
    assert "hidden-word" not in str(caught.value)
    assert not list((shelf.directory / ".tmp").iterdir())


def test_no_address_that_pip_speaks_of_shows_its_user_or_password() -> None:
    """FLOW-242"""
    said = "WARNING: x\nERROR: no answer from https://anna:hidden@example.invalid/simple/ twice\n[notice] a new release"
    assert Pip(1, "default")._reason(said, 1) == "pip: no answer from https://***@example.invalid/simple/ twice"
    token = "https://example.invalid/t0ken/simple"
    assert "t0ken" not in Pip(1, token)._reason(f"ERROR: no answer from {token}/lonely-lib/", 1)
    assert Pip(1, "none")._reason("", 7) == "pip ended with status 7 and said nothing"
    assert Pip(1, "default")._reason("ERROR: the default timeout is over", 1) == "pip: the default timeout is over"


async def test_the_users_own_settings_of_pip_count_when_the_index_is_the_default(
    shelf: Shelf, index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PYOCO_WHEEL_INDEX=default"""
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {index.as_uri()}\n[install]\nuser = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    wheel, content = registered(requires=["deep-lib"])
    bringer = Bringer(shelf, "default")
    ready = await bringer.ready(wheel, content)
    lacks = bringer.installer.to_be_fetched(ready, around(wheel))
    assert contents.modules_in(bringer.installer.fetched_home(ready.home, lacks)) == ("deep_lib",)


@pytest.fixture
def silent_index() -> Iterator[str]:
    """An index that takes every call and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://anna:hidden-word@127.0.0.1:{server.getsockname()[1]}/simple"


def pips_in(place: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(place) in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


async def test_a_pip_that_hangs_is_stopped(shelf: Shelf, silent_index: str) -> None:
    """FLOW-236"""
    wheel, content = registered(requires=["lonely-lib"])
    with pytest.raises(WheelSyncFailed, match=r"pip did not end within 1 s \(PYOCO_WHEEL_INSTALL_TIMEOUT_SEC\)"):
        await Bringer(shelf, silent_index, timeout_seconds=1.0)(wheel, content)
    assert not pips_in(shelf.directory)
    assert not list((shelf.directory / ".tmp").iterdir())


async def test_a_stop_waits_for_what_pip_has_started(
    shelf: Shelf, silent_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-236: a child process that outlives pip could still write to the workplace while that is removed"""
    real, workplaces = os.killpg, list[int]()

    def killpg(group: int, number: int) -> None:
        if number:
            real(group, number)
        elif len(workplaces) < 3:
            workplaces.append(len(list((shelf.directory / ".tmp").iterdir())))
        else:
            raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", killpg)
    wheel, content = registered(requires=["lonely-lib"])
    with pytest.raises(WheelSyncFailed, match="pip did not end"):
        await Bringer(shelf, silent_index, timeout_seconds=0.1)(wheel, content)
    assert workplaces == [1, 1, 1]
    assert not list((shelf.directory / ".tmp").iterdir())


@pytest.mark.usefixtures("cold_pip")
async def test_a_pip_whose_caller_gives_up_is_stopped_and_shows_no_password(shelf: Shelf, silent_index: str) -> None:
    """FLOW-236"""
    wheel, content = registered(requires=["lonely-lib"])
    bringing = asyncio.create_task(Bringer(shelf, silent_index)(wheel, content))
    await eventually(lambda: any("--dry-run" in one.cmdline() for one in pips_in(shelf.directory)), 30)
    [process] = pips_in(shelf.directory)
    assert not any("hidden-word" in word for word in process.cmdline())
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    assert not process.is_running()
    assert not list((shelf.directory / ".tmp").iterdir())


async def test_pip_dies_with_the_worker(shelf: Shelf, silent_index: str) -> None:
    """FLOW-236: however suddenly that happens."""
    program = (
        "import asyncio, sys, pathlib\nfrom pyoco_server.executors.wheels.pip import Pip\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "asyncio.run(Pip(60, sys.argv[2]).resolve(['lonely-lib'], [], place, place))"
    )
    worker = subprocess.Popen([sys.executable, "-c", program, str(shelf.directory), silent_index])
    try:
        await eventually(lambda: len(pips_in(shelf.directory)) == 2, 30)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    await eventually(lambda: not pips_in(shelf.directory))


@pytest.mark.usefixtures("cold_pip")
async def test_a_python_without_pip_is_told(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-236"""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    wheel, content = registered()
    with pytest.raises(WheelSyncFailed, match=r"this worker's Python has no pip; install it: .* -m ensurepip"):
        await Bringer(shelf)(wheel, content)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with pytest.raises(WheelSyncFailed, match="pip could not be started"):
        await Bringer(shelf)(wheel, content)


async def test_a_cancel_waits_until_what_was_made_is_in_its_place(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what is in its place would be removed half by whoever cleans up."""
    wheel, content = registered(modules={f"my_tasks/m{n}.py": "" for n in range(50)})
    real, began, go_on = shelf.put, threading.Event(), threading.Event()

    def slow(made: Path, place: Path) -> None:
        began.set()
        go_on.wait(100)
        real(made, place)

    monkeypatch.setattr(shelf, "put", slow)
    bringing = asyncio.create_task(Bringer(shelf)(wheel, content))
    await asyncio.to_thread(began.wait, 100)
    bringing.cancel()
    await asyncio.sleep(0)
    bringing.cancel()  # somebody is in a hurry
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    [home] = shelf.envs.iterdir()
    assert contents.is_intact(home)
    assert not list((shelf.directory / ".tmp").iterdir())


async def test_files_are_never_worked_on_by_the_event_loop(shelf: Shelf, index: Path) -> None:
    """A slow disk must not hold up heartbeats."""
    mine, guilty = threading.get_ident(), list[str]()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            is_watching
            and event in _FILE_EVENTS
            and threading.get_ident() == mine
            and str(shelf.directory) in str(arguments)
        ):
            guilty.append(f"{event} {arguments}")

    is_watching = True
    sys.addaudithook(watch)
    wheel, content = registered(requires=["deep-lib"])
    bringer = Bringer(shelf, index.as_uri())
    try:
        await bringer.ready(wheel, content)
    finally:
        is_watching = False
    assert not guilty


_FILE_EVENTS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.scandir",
    "shutil.rmtree",
    "tempfile.mkdtemp",
}
