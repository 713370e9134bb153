"""One wheel, brought to a worker by pip: alone, bounded, and with what it needs."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from pyoco_server.core.wheel_needs import Extras, Provided
from pyoco_server.errors import InvalidWheel, WheelSyncFailed
from pyoco_server.executors.wheels import contents, worker_packages
from pyoco_server.executors.wheels.install import Lacking, Ready, Surroundings, tell_os_error
from pyoco_server.executors.wheels.shelf import Shelf
from pyoco_server.executors.wheels.worker_packages import WorkerPackages, look_at_worker
from support.wheel_installs import NOW, Bringer, around, index, registered, shelf, wheel_of
from support.wheels import build_wheel, dist_info_of, pack, wheel_files, with_record, write_wheel

__all__ = ["index", "shelf"]

pytestmark = pytest.mark.usefixtures("warm_pip")


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
    assert {"pyoco-server", "pyoco", "click", "starlette", "packaging"} <= worker.own
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
