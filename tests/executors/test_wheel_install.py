"""One wheel, brought to a worker by pip: alone, bounded, and with what it needs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
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
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from packaging.version import Version

from pyoco_server.core.wheel import Wheel, read_wheel_name
from pyoco_server.core.wheel_needs import Extras, Provided
from pyoco_server.errors import InvalidWheel, WheelSyncFailed
from pyoco_server.executors.wheels import contents, worker_packages
from pyoco_server.executors.wheels.install import Installer, Lacking, Ready, Surroundings, tell_os_error
from pyoco_server.executors.wheels.pip import Pip
from pyoco_server.executors.wheels.shelf import Shelf
from pyoco_server.executors.wheels.worker_packages import WorkerPackages, look_at_worker
from support.waiting import eventually
from support.wheels import build_wheel, dist_info_of, pack, wheel_files, with_record, write_wheel

pytestmark = pytest.mark.usefixtures("warm_pip")

NOW = 1_700_000_000.0


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path / "shelf")
    shelf.directory.mkdir()
    shelf.prepare()
    return shelf


def registered(package: str = "my-tasks", version: str = "1.0", **parts: Any) -> tuple[Wheel, bytes]:
    name, content = build_wheel(package, version, **parts)
    return wheel_of(name, content), content


def wheel_of(name: str, content: bytes) -> Wheel:
    digest = hashlib.sha256(content).hexdigest()
    nuid = hashlib.md5(content).hexdigest()
    return Wheel(
        name=read_wheel_name(name), size_bytes=len(content), sha256_hex=digest, nuid=nuid, modified=NOW, tags=("gpu",)
    )


def around(
    *wheels: Wheel, has: dict[str, str] | None = None, in_use: frozenset[str] = frozenset(), modules: str = ""
) -> Surroundings:
    provided = {name: Provided(Version(version), "this worker has") for name, version in (has or {}).items()}
    worker = WorkerPackages(provided, frozenset(), frozenset(modules.split()))
    registered = {one.name.package: Provided(one.name.version, "the registry has") for one in wheels}
    return Surroundings(worker, registered, in_use)


class Bringer:
    """An installer, and the bytes it asks for."""

    def __init__(self, shelf: Shelf, index: str = "none", timeout_seconds: float = 200.0) -> None:
        self.shelf = shelf
        self.installer = Installer(shelf, Pip(timeout_seconds, index), lambda: NOW)
        self.reads = 0

    async def __call__(
        self, wheel: Wheel, content: bytes, where: Surroundings | None = None, there: Ready | None = None
    ) -> Ready | Lacking:
        async def read() -> AsyncGenerator[bytes, None]:
            self.reads += 1
            yield content[:10]
            yield content[10:]

        return await self.installer.bring(wheel, read, there, where or around(wheel))

    async def ready(self, wheel: Wheel, content: bytes, where: Surroundings | None = None) -> Ready:
        done = await self(wheel, content, where)
        assert isinstance(done, Ready), done
        return done


def nothing_is_left(shelf: Shelf) -> bool:
    return not list((shelf.directory / ".tmp").iterdir()) and not list(shelf.envs.iterdir())


async def test_a_wheel_has_a_directory_of_its_own_with_its_code_and_its_entry_points(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """FLOW-236, FLOW-237. What the user's environment says to pip, and where it finds other code, is not heard."""
    (tmp_path / "trap" / "pip").mkdir(parents=True)
    (tmp_path / "trap" / "pip" / "__init__.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "trap"))
    monkeypatch.chdir(tmp_path / "trap")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    monkeypatch.setenv("PIP_USER", "1")
    wheel, content = registered(
        modules={"my_tasks/__init__.py": "VERSION = 1\n", "my_tasks/deep/more.py": "", "single.py": "", "data.txt": ""},
        entry_points={"pyoco.tasks": {"mine": "my_tasks:register"}, "console_scripts": {"say": "my_tasks:say"}},
    )
    ready = await Bringer(shelf).ready(wheel, content)
    assert ready.home == shelf.envs / f"my-tasks-1.0-{wheel.nuid}"
    assert (ready.home / "my_tasks" / "__init__.py").read_text() == "VERSION = 1\n"
    assert ready.modules == ("my_tasks", "single")
    [found] = importlib.metadata.distributions(path=[str(ready.home)])
    assert [point.name for point in found.entry_points.select(group="pyoco.tasks")] == ["mine"]
    assert (ready.entry.wheel_name, ready.entry.package_version) == (wheel.name.file_name, "1.0")
    assert (ready.entry.nuid, ready.entry.tags, ready.entry.installed_at) == (wheel.nuid, ("gpu",), NOW)
    assert shelf.file_of(wheel.name.file_name).read_bytes() == content
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("my-tasks")  # the worker's own packages are as they were
    assert not list((shelf.directory / ".tmp").iterdir())


async def test_what_is_installed_is_found_again_if_it_is_whole(shelf: Shelf) -> None:
    """FLOW-234, FLOW-239"""
    wheel, content = registered(requires=["click>=1"])
    bringer = Bringer(shelf)
    ready = await bringer.ready(wheel, content, around(wheel, has={"click": "8"}))
    assert bringer.installer.look(ready.entry) == ready
    (ready.home / "my_tasks" / "__init__.py").write_text("")  # as after a power cut
    assert bringer.installer.look(ready.entry) is None
    (ready.home / "my_tasks" / "__init__.py").unlink()
    assert bringer.installer.look(ready.entry) is None


async def test_a_directory_that_a_run_still_reads_is_taken_as_it_is(shelf: Shelf) -> None:
    """FLOW-230: a newer version came and went, and a long run still has this one."""
    wheel, content = registered()
    bringer = Bringer(shelf)
    ready = await bringer.ready(wheel, content)
    inode = ready.home.stat().st_ino
    busy = around(wheel, in_use=frozenset({str(ready.home)}))
    assert (await bringer.ready(wheel, content, busy)).home.stat().st_ino == inode
    (ready.home / "my_tasks" / "__init__.py").unlink()
    with pytest.raises(WheelSyncFailed, match="a run still uses"):
        await bringer(wheel, content, busy)
    again = await bringer.ready(wheel, content)
    assert again.home.stat().st_ino != inode
    assert bringer.reads == 1  # the file was here


BROKEN = {
    "no zip": (b"this is no zip file", "not a wheel"),
    "cut": (build_wheel(pad_bytes=5000)[1][:3000], "not a wheel"),
    "no metadata": (pack({"my_tasks/__init__.py": b""}), "no METADATA"),
    "bad requirement": (build_wheel(requires=["not a requirement!"])[1], "cannot be read"),
    "no RECORD": (pack(wheel_files()), "pip: "),
    "no WHEEL": (pack(with_record(wheel_files(), dist_info_of()) | {f"{dist_info_of()}/WHEEL": b""}), "pip: "),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_wheel_is_told_and_leaves_nothing(shelf: Shelf, kind: str) -> None:
    """FLOW-242"""
    content, words = BROKEN[kind]
    with pytest.raises(WheelSyncFailed, match=words):
        await Bringer(shelf)(wheel_of("my_tasks-1.0-py3-none-any.whl", content), content)
    assert nothing_is_left(shelf)


async def test_a_wheel_does_not_replace_a_module_of_the_worker(shelf: Shelf) -> None:
    wheel, content = registered("innocent", modules={"click/__init__.py": "", "innocent.py": ""})
    with pytest.raises(WheelSyncFailed, match="brings the module click, which is part of the worker itself"):
        await Bringer(shelf)(wheel, content, around(wheel, modules="click pyoco_server"))
    assert nothing_is_left(shelf)


SHARED = WorkerPackages({}, frozenset(), frozenset({"shared.ours", "shared.deep.single"}), frozenset({"shared"}))


@pytest.mark.parametrize(
    ("modules", "replaced"),
    [
        (["shared/theirs/__init__.py", "shared/deep/other.py"], None),  # packages share it: that is what it is for
        (["shared/ours/__init__.py"], "shared.ours"),
        (["shared/ours/below.py"], "shared.ours.below"),
        (["shared/deep/single.py"], "shared.deep.single"),
        (["shared/__init__.py"], "shared"),  # hides all of it
        (["shared.py"], "shared"),
    ],
)
async def test_a_wheel_may_share_a_namespace_with_the_worker_but_not_take_its_place(
    shelf: Shelf, modules: list[str], replaced: str | None
) -> None:
    wheel, content = registered("innocent", modules=dict.fromkeys(modules, ""))
    bringing = Bringer(shelf)(wheel, content, Surroundings(SHARED, {}, frozenset()))
    if replaced is None:
        assert isinstance(await bringing, Ready)
        return
    with pytest.raises(WheelSyncFailed, match=f"it brings the module {replaced}, which is part of the worker itself"):
        await bringing
    assert nothing_is_left(shelf)


async def test_what_an_extra_of_the_workers_packages_needs_counts(shelf: Shelf) -> None:
    """FLOW-236"""
    wheel, content = registered(requires=["other-lib[fast]"])
    optional = Extras(('quick-lib; extra == "fast"',), dict.fromkeys(["python_full_version"], "3.11.7"))
    has = {"other-lib": Provided(Version("1.0"), "this worker has", optional)}
    lacking = await Bringer(shelf)(
        wheel, content, Surroundings(WorkerPackages(has, frozenset(), frozenset()), {}, frozenset())
    )
    assert isinstance(lacking, Lacking)
    assert lacking.error.startswith("needs quick-lib for other-lib[fast], which neither")


async def test_what_it_needs_may_be_the_workers_or_another_wheels(shelf: Shelf) -> None:
    """FLOW-236"""
    other, _ = registered("other-tasks", "2.0")
    wheel, content = registered(requires=["Other.Tasks>=2", "lonely_lib<2"], requires_python=">=3.8")
    bringer = Bringer(shelf)
    worker_has = {"lonely-lib": "1.5", "other-tasks": "1.0"}  # the wheel counts, as it does on sys.path
    assert isinstance(await bringer(wheel, content, around(wheel, other, has=worker_has)), Ready)
    lacking = await bringer(wheel, content, around(wheel, has=worker_has))
    assert lacking == Lacking("needs Other.Tasks>=2, but this worker has other-tasks 1.0")


async def test_without_an_index_a_wheel_that_needs_more_is_not_installed(shelf: Shelf) -> None:
    """FLOW-236, FLOW-242"""
    wheel, content = registered(requires=["lonely-lib>=1"])
    assert await Bringer(shelf)(wheel, content) == Lacking(
        "needs lonely-lib>=1, which neither this worker nor another wheel provides: register a wheel of it, "
        "install it on the worker, or set PYOCO_WHEEL_INDEX"
    )
    old, content = registered(requires_python="<3.9")
    lacking = await Bringer(shelf)(old, content)
    assert isinstance(lacking, Lacking)
    assert "needs Python <3.9" in lacking.error
    assert nothing_is_left(shelf)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A package index as files: lonely-lib, which needs deep-lib, psutil (which the worker has) and other-tasks."""
    root = tmp_path / "index"
    for package, version, requires in [
        ("lonely-lib", "1.0", ["deep-lib", "psutil", "other-tasks"]),
        ("lonely-lib", "2.0", ["deep-lib>=9"]),
        ("deep-lib", "1.0", []),
        ("deep-lib", "1.1", []),
        ("other-tasks", "9.0", []),
    ]:
        folder = root / package
        folder.mkdir(parents=True, exist_ok=True)
        write_wheel(folder, package, version, requires=requires)
        links = "".join(f'<a href="{file.name}">{file.name}</a><br>' for file in sorted(folder.glob("*.whl")))
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return root


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
    assert contents.is_whole_fetch(home) == (damage == "none")


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
    assert not contents.is_whole_fetch(home)
    contents.write_fetch(home, [])
    assert contents.is_whole_fetch(home)


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


@pytest.mark.usefixtures("cold_pip")
async def test_a_pip_whose_caller_gives_up_is_stopped_and_shows_no_password(shelf: Shelf, silent_index: str) -> None:
    """FLOW-236"""
    wheel, content = registered(requires=["lonely-lib"])
    bringing = asyncio.create_task(Bringer(shelf, silent_index)(wheel, content))
    await eventually(lambda: any("--dry-run" in one.cmdline() for one in pips_in(shelf.directory)), 30)
    [pip] = pips_in(shelf.directory)
    assert not any("hidden-word" in word for word in pip.cmdline())
    bringing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    assert not pip.is_running()
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
    assert contents.is_whole(home)
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


def test_a_full_disk_is_told_as_that() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert "no room on the disk" in tell_os_error(OSError(number, os.strerror(number)))
    assert "no room" not in tell_os_error(OSError(errno.EACCES, os.strerror(errno.EACCES)))


def test_modules_are_what_can_be_imported_by_its_first_name(tmp_path: Path) -> None:
    for name in [
        *("package/__init__.py", "namespace/deep/code.py", "single.py", "fast.cpython-311-x86_64-linux-gnu.so"),
        *("bin/command", "bin/command.py", "share/doc.txt", "x-1.0.dist-info/METADATA", "not-a-name/__init__.py"),
        *("__pycache__/single.cpython-311.pyc", "readme.txt", "empty/data.json"),
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert contents.modules_in(tmp_path) == ("fast", "namespace", "package", "single")
    (tmp_path / "bin" / "__init__.py").touch()
    assert "bin" in contents.modules_in(tmp_path)


def test_a_wheel_with_two_metadata_is_refused(tmp_path: Path) -> None:
    files = wheel_files("a", "1") | wheel_files("b", "1")
    (tmp_path / "a.whl").write_bytes(pack(files))
    with pytest.raises(InvalidWheel, match="more than one"):
        contents.needs_of_file(tmp_path / "a.whl")


def test_the_worker_knows_what_it_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel must not replace the worker under its own feet; what lies on the shelf is not the worker's."""
    stale = tmp_path / "shelf" / "envs" / "x"
    stale.mkdir(parents=True)
    zipfile.ZipFile(write_wheel(tmp_path, "lonely-lib")).extractall(stale)
    monkeypatch.syspath_prepend(str(stale))
    worker = look_at_worker(tmp_path / "shelf")
    assert {"pyoco-server", "pyoco", "click", "fastapi", "starlette", "packaging"} <= worker.own
    assert {"pyoco_server", "pyoco", "click", "yaml", "nats"} <= worker.own_modules
    assert "pytest" not in worker.own
    assert worker.provided["pytest"].version == Version(pytest.__version__)
    assert "lonely-lib" not in worker.provided
    assert "lonely-lib" in look_at_worker(tmp_path / "other").provided


def test_the_worker_knows_its_part_of_a_package_that_others_share(tmp_path: Path) -> None:
    """By the place of its files: `shared` has no `__init__`, and any package may bring more of it."""
    modules = {"shared/ours/__init__.py": "", "shared/ours/more.py": "", "shared/deep/single.py": "", "plain.py": ""}
    file = write_wheel(tmp_path, "ours", modules=modules | {"whole/__init__.py": "", "whole/part/code.py": ""})
    zipfile.ZipFile(file).extractall(tmp_path)
    own, namespaces = worker_packages._modules(importlib.metadata.distributions(path=[str(tmp_path)]))
    assert own == {"shared.ours", "shared.deep.single", "plain", "whole"}
    assert namespaces == {"shared", "shared.deep"}


def test_the_worker_knows_what_the_extras_of_its_packages_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-236"""
    file = write_wheel(tmp_path, "lonely-lib", requires=["a", 'b>1; extra == "fast"'])
    zipfile.ZipFile(file).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    extras = look_at_worker(tmp_path / "shelf").provided["lonely-lib"].extras
    assert [str(one.specifier) for one in extras.of("fast")] == [">1"]
    assert extras.of("slow") == []
