"""What is inside a wheel: real ones are taken, everything else is refused and says why."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.wheel import read_wheel_name
from pyoco_server.errors import InvalidWheel
from pyoco_server.ports.wheel_files.archive import ArchiveWheelFiles
from support.wheels import build_wheel, dist_info_of, pack, wheel_files, with_record

NAME = "my_tasks-1.0-py3-none-any.whl"
INFO = dist_info_of()


def check(content: bytes, file_name: str = NAME, unpacked_bytes_max: int = 10_000_000) -> None:
    ArchiveWheelFiles(unpacked_bytes_max).check(io.BytesIO(content), read_wheel_name(file_name))


def check_files(files: Mapping[str, bytes], file_name: str = NAME) -> None:
    """With the RECORD that fits them."""
    check(pack(with_record(files, INFO)), file_name)


def with_file(path: str, data: bytes = b"x", **parts: Any) -> dict[str, bytes]:
    return {path: data, **wheel_files(**parts)}


class TestAWheelThatIsOne:
    def test_may_tell_of_everything_a_wheel_can(self) -> None:
        file_name, content = build_wheel(
            "My.Tasks",
            "1!2.0rc1+local.7",
            modules={"my_tasks/__init__.py": "", "my_tasks/sub/deep.py": "x = 1\n", "single.py": ""},
            requires=[
                "httpx>=0.27",
                'tomli; python_version < "3.11"',
                "thing @ https://example.com/thing.whl",
                'a; extra == "fast" and (os_name != "nt" or platform_release >= "5.0")',
                'b; "linux" in sys_platform and python_version not in "3.8, 3.9" and platform_version >= "1"',
            ],
            entry_points={
                "pyoco.tasks": {"one": "my_tasks:one", "two": "my_tasks.sub.deep:two [extra]", "a/b": "m"},
                "console_scripts": {"my-tasks": "my_tasks:main", "my_tasks-1.0": "my_tasks:main", "c++": "m:x"},
                "more": {"x": "m"},
            },
            requires_python=">=3.11,<4",
            tag="2-py2.py3-none-any",
        )
        check(content, file_name)

    def test_may_have_files_at_every_place_that_pip_knows(self) -> None:
        names = [
            "space/inner/mod.py",  # a package without __init__
            "_fast.cpython-311-x86_64-linux-gnu.so",
            "my_tasks.libs/libz.so.1",
            "notes.txt",
            "my_tasks-1.0.data/purelib/from_data/__init__.py",
            "my_tasks-1.0.data/platlib/_native.so",
            "my_tasks-1.0.data/data/lib/python3.11/site-packages/back_door/x.py",
            "my_tasks-1.0.data/data/lib/python/front_door/x.py",
            "my_tasks-1.0.data/data/share/x.py",
            "my_tasks-1.0.data/data/lib/libz.so",
            "my_tasks-1.0.data/data/top.py",
            "my_tasks-1.0.data/scripts/x.py",
            "my_tasks-1.0.data/headers/x.py",
        ]
        check_files({**dict.fromkeys(names, b""), **wheel_files()})

    def test_may_bring_no_module_at_all(self) -> None:
        check_files(wheel_files(modules={}))

    @pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
    def test_may_have_stronger_digests(self, algorithm: str) -> None:
        import base64
        import hashlib

        files = wheel_files()
        lines = []
        for path, data in files.items():
            text = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).decode().rstrip("=")
            lines.append(f"{path},{algorithm}={text},\r\n")  # and no sizes, and other ends of lines
        check(pack({**files, f"{INFO}/RECORD": "".join(lines).encode()}))

    def test_may_have_directories_and_odd_but_honest_names(self) -> None:
        files = {"my_tasks/": b"", "my_tasks/data, and more/": b"", "my_tasks/data, and more/数.csv": b"1"}
        record = with_record({path: data for path, data in files.items() if data} | wheel_files(), INFO)
        check(pack({**files, **record}))

    def test_may_have_signatures_that_record_does_not_list(self) -> None:
        files = with_record(wheel_files(), INFO)
        check(pack({**files, f"{INFO}/RECORD.jws": b"{}", f"{INFO}/RECORD.p7s": b"x"}))

    @pytest.mark.parametrize(
        "path", ["my_tasks/model.pth", "my_tasks/sitecustomize.py", "my_tasks-1.0.data/data/share/x.pth"]
    )
    def test_may_have_files_of_any_name_where_python_does_not_look_for_them(self, path: str) -> None:
        check_files(with_file(path))


#: Files of a wheel to be changed, and what the message says.
BROKEN: dict[str, tuple[dict[str, bytes | None], str]] = {
    "no METADATA": ({f"{INFO}/METADATA": None}, "METADATA' is missing"),
    "no WHEEL": ({f"{INFO}/WHEEL": None}, "WHEEL' is missing"),
    "no dist-info": ({f"{INFO}/METADATA": None, f"{INFO}/WHEEL": None}, "METADATA' is missing"),
    "a second dist-info": ({"other-1.0.dist-info/METADATA": b"Name: other"}, "one directory"),
    "a second dist-info in capitals": ({"Other-1.0.DIST-INFO/METADATA": b"Name: other"}, "one directory"),
    "an egg-info": ({"other.egg-info/PKG-INFO": b"Name: other"}, "one directory"),
    "a hidden dist-info": ({"my_tasks-1.0.data/purelib/o-1.dist-info/METADATA": b""}, "disguise"),
    "another name": ({f"{INFO}/METADATA": b"Name: other\nVersion: 1.0\n"}, "METADATA names 'other' '1.0'"),
    "another version": ({f"{INFO}/METADATA": b"Name: my-tasks\nVersion: 1.1\n"}, "METADATA names 'my-tasks' '1.1'"),
    "no version": ({f"{INFO}/METADATA": b"Name: my-tasks\n"}, "must say Version once, and says it 0 times"),
    "two names": ({f"{INFO}/METADATA": b"Name: my-tasks\nName: x\nVersion: 1.0\n"}, "says it 2 times"),
    "a version nobody can read": (
        {f"{INFO}/METADATA": b"Name: my-tasks\nVersion: " + b"9" * 5000},
        "METADATA names",
    ),
    "an empty METADATA": ({f"{INFO}/METADATA": b""}, "must say Name once"),
    "a METADATA that is no text": ({f"{INFO}/METADATA": b"Name: \xff\n"}, "METADATA is not UTF-8"),
    "a METADATA of many megabytes": ({f"{INFO}/METADATA": b" " * 5_000_000}, "METADATA has 5000000 bytes"),
    "a METADATA of many headers": ({f"{INFO}/METADATA": b"A:\n" * 30_000}, "METADATA has more than 20000 lines"),
    "a WHEEL of many bytes": ({f"{INFO}/WHEEL": b" " * 70_000}, "WHEEL has 70000 bytes"),
    "a tag that spells many": (
        {f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nTag: " + b"-".join([b"a" + b".a" * 30] * 3)},
        "is not a tag",
    ),
    "very many tags": (
        {f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n" + b"".join(b"Tag: a%d-b-c\n" % n for n in range(4000))},
        "tagged a0-b-c, a1-b-c, the file name",
    ),
    "entry points of many bytes": ({f"{INFO}/entry_points.txt": b"\n" * 300_000}, "entry_points.txt has 300000 bytes"),
    "no Wheel-Version": ({f"{INFO}/WHEEL": b"Tag: py3-none-any\n"}, "Wheel-Version once"),
    "a later Wheel-Version": ({f"{INFO}/WHEEL": b"Wheel-Version: 2.0\nTag: py3-none-any\n"}, "'2.0' is not known"),
    "no tag": ({f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n"}, "tagged nothing, the file name py3-none-any"),
    "another tag": ({f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nTag: py2-none-any\n"}, "tagged py2-none-any, the file"),
    "one tag more": ({f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nTag: py2.py3-none-any\n"}, "tagged py2-none-any, py3"),
    "a tag that is none": ({f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nTag: py3\n"}, "'py3' is not a tag"),
    "entry points without a group": ({f"{INFO}/entry_points.txt": b"a = b:c\n"}, "entry_points.txt cannot be read"),
    "an entry point twice": (
        {f"{INFO}/entry_points.txt": b"[g]\na = b:c\na = b:c\n"},
        "entry_points.txt cannot be read",
    ),
    "an entry point to nothing": ({f"{INFO}/entry_points.txt": b"[g]\na =\n"}, "'a = ' in .g. names no object"),
    "an entry point that is code": ({f"{INFO}/entry_points.txt": b"[g]\na = os:system('x')\n"}, "names no object"),
    "a command outside of its directory": (
        {f"{INFO}/entry_points.txt": b"[console_scripts]\n../../evil = m:x\n"},
        "'../../evil' in .console_scripts. is not the name of a command",
    ),
    "a command at the root": ({f"{INFO}/entry_points.txt": b"[gui_scripts]\n/bin/sh = m:x\n"}, "not the name of a"),
    "a command that is a directory": ({f"{INFO}/entry_points.txt": b"[console_scripts]\n.. = m:x\n"}, "not the name"),
    "a METADATA with a byte order mark": (
        {f"{INFO}/METADATA": b"\xef\xbb\xbfName: my-tasks\nVersion: 1.0\n"},
        "METADATA begins with a byte order mark",
    ),
    "a WHEEL with a byte order mark": (
        {f"{INFO}/WHEEL": b"\xef\xbb\xbfWheel-Version: 1.0\nTag: py3-none-any\n"},
        "WHEEL begins with a byte order mark",
    ),
    "entry points with a byte order mark": (
        {f"{INFO}/entry_points.txt": b"\xef\xbb\xbf[g]\na = b:c\n"},
        "entry_points.txt begins with a byte order mark",
    ),
    "a .pth file": ({"evil.pth": b"import os"}, "'evil.pth' would be run"),
    "a .PTH file": ({"evil.PTH": b"import os"}, "would be run"),
    "a .pth file in purelib": ({"my_tasks-1.0.data/purelib/evil.pth": b"import os"}, "would be run"),
    "a .pth file in platlib": ({"my_tasks-1.0.data/platlib/evil.pth": b"import os"}, "would be run"),
    "a .pth file by the back door": (
        {"my_tasks-1.0.data/data/lib/python3.11/site-packages/evil.pth": b"import os"},
        "would be run",
    ),
    "a sitecustomize": ({"sitecustomize.py": b""}, "'sitecustomize.py' would be run"),
    "a sitecustomize without its source": ({"sitecustomize.pyc": b""}, "would be run"),
    "a sitecustomize that is a package": ({"sitecustomize/__init__.py": b""}, "would be run"),
    "a sitecustomize by the back door": (
        {"my_tasks-1.0.data/data/lib/python3/dist-packages/sitecustomize.py": b""},
        "would be run",
    ),
    "a dist-info by the back door": (
        {"my_tasks-1.0.data/data/lib/python3.11/site-packages/o-1.dist-info/METADATA": b""},
        "disguise",
    ),
    "a .pth file in data": ({"my_tasks-1.0.data/data/evil.pth": b"import os"}, "would be run"),
    "a .pth file in data/lib/python": ({"my_tasks-1.0.data/data/lib/python/evil.pth": b"import os"}, "would be run"),
    "a .pth file in data/Lib/Python": ({"my_tasks-1.0.data/data/Lib/Python/evil.pth": b"import os"}, "would be run"),
    "a sitecustomize in data": ({"my_tasks-1.0.data/data/sitecustomize.py": b""}, "would be run"),
    "a sitecustomize of machine code": ({"sitecustomize.cpython-311-x86_64-linux-gnu.so": b""}, "would be run"),
    "a sitecustomize in data/lib/python": (
        {"my_tasks-1.0.data/data/lib/python/sitecustomize/__init__.py": b""},
        "would be run",
    ),
    "a dist-info in data": ({"my_tasks-1.0.data/data/o-1.dist-info/METADATA": b""}, "disguise"),
    "a dist-info in data/lib/python": (
        {"my_tasks-1.0.data/data/lib/python/o-1.Dist-Info/METADATA": b""},
        "disguise",
    ),
    "its own dist-info once more": ({f"my_tasks-1.0.data/data/{INFO}/entry_points.txt": b""}, "disguise"),
    "an egg-info in data": ({"my_tasks-1.0.data/data/o.egg-info": b""}, "disguise"),
    "a usercustomize": ({"my_tasks-1.0.data/purelib/usercustomize.py": b""}, "would be run"),
    "an unknown scheme": ({"my_tasks-1.0.data/stdlib/os.py": b""}, "a .data directory"),
    "a file beside the schemes": ({"my_tasks-1.0.data/purelib": b""}, "a .data directory"),
    "a file that is named as a .data directory": ({"my_tasks-1.0.data": b""}, "a .data directory"),
    "the .data of another": ({"other-1.0.data/purelib/x.py": b""}, "a .data directory"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=list(BROKEN))
def test_a_wheel_that_is_not_what_it_says_is_refused(changes: dict[str, bytes | None], message: str) -> None:
    """DESIGN 9.15: contents are checked at upload."""
    files = {path: data for path, data in {**wheel_files(), **changes}.items() if data is not None}
    with pytest.raises(InvalidWheel, match=message):
        check_files(files)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("my_tasks/a.py", "my_tasks-1.0.data/purelib/my_tasks/a.py"),
        ("my_tasks/a.py", "my_tasks-1.0.data/platlib/My_Tasks/A.py"),
        ("my_tasks/a.py", "my_tasks-1.0.data/data/my_tasks/a.py"),
        ("my_tasks/a.py", "my_tasks-1.0.data/data/lib/python/my_tasks/a.py"),
        ("my_tasks/a.py", "my_tasks-1.0.data/data/lib/python3.11/site-packages/my_tasks/a.py"),
        ("my_tasks/a.py", "my_tasks-1.0.data/data/my_tasks"),
        ("my_tasks-1.0.data/purelib/a.py", "my_tasks-1.0.data/data/a.py"),
        ("my_tasks-1.0.data/purelib/a.py", "my_tasks-1.0.data/platlib/a.py"),
        ("my_tasks-1.0.data/purelib/a.py", "My.Tasks-1.0.0.data/purelib/a.py"),
        ("my_tasks-1.0.data/scripts/a", "my_tasks-1.0.data/data/bin/a"),
        ("bin/a", "my_tasks-1.0.data/scripts/a"),
    ],
)
def test_two_files_that_pip_would_put_at_one_place_are_refused(one: str, other: str) -> None:
    """Which of them stays is pip's choice, and only one is what the wheel says."""
    with pytest.raises(InvalidWheel, match=r"would be the same file|would lie in it"):
        check_files({one: b"1", other: b"2", **wheel_files()})


def test_places_are_those_where_pip_puts_files_on_a_worker(tmp_path: Path) -> None:
    """What is asked of each place is asked of the right one."""
    places = {
        "my_tasks/a.py": "my_tasks/a.py",
        "my_tasks-1.0.data/purelib/b.py": "b.py",
        "my_tasks-1.0.data/platlib/c.py": "c.py",
        "my_tasks-1.0.data/data/d.py": "d.py",
        "my_tasks-1.0.data/data/lib/python/e.py": "e.py",
        "my_tasks-1.0.data/scripts/f": "bin/f",
    }
    file = tmp_path / NAME
    file.write_bytes(pack(with_record({**dict.fromkeys(places, b""), **wheel_files()}, INFO)))
    options = ["--isolated", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(tmp_path / "made")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(file)], check=True, capture_output=True)
    made = {str(path.relative_to(tmp_path / "made")) for path in (tmp_path / "made").rglob("*") if path.is_file()}
    assert {path for path in made if not path.startswith(INFO)} == {"my_tasks/__init__.py", *places.values()}
    for path, place in places.items():
        if path != place:
            with pytest.raises(InvalidWheel, match="would be the same file"):
                check_files({path: b"", place: b"", **wheel_files()})


@pytest.mark.parametrize(
    "line",
    [
        'a; os_name ~= "1"',
        'a; extra ~= "x"',
        'a; python_version > "3" or (os_name === "x" and python_version > "3")',
        'a; "x" in extras',
        'a; "3" < "x"',
        "not a requirement!",
        "a >= one",
        "a; python_version",
        "a; " + "(" * 1900 + "python_version > '3'" + ")" * 1900,
        "a>=1." + "9" * 5000,
        "a" * 10_000,
    ],
)
def test_what_a_wheel_requires_must_be_readable(line: str) -> None:
    with pytest.raises(InvalidWheel, match="Requires-Dist"):
        check_files(wheel_files(requires=[line]))


def test_what_python_a_wheel_requires_must_be_readable() -> None:
    with pytest.raises(InvalidWheel, match="Requires-Python 'three' cannot be read"):
        check_files(wheel_files(requires_python="three"))


@pytest.mark.parametrize(
    "file_name",
    ["other-1.0-py3-none-any.whl", "my_tasks-1.1-py3-none-any.whl", "my_tasks-1.0-cp311-cp311-linux_x86_64.whl"],
)
def test_a_renamed_wheel_is_refused(file_name: str) -> None:
    """DESIGN 9.15"""
    with pytest.raises(InvalidWheel, match="do not rename wheels"):
        check(build_wheel()[1], file_name)


@pytest.mark.parametrize("stem", ["other-1.0", "my_tasks-1.1", "my_tasks", "1.0", "my_tasks-one"])
def test_the_dist_info_of_another_wheel_is_refused(stem: str) -> None:
    """pip finds it by its name; what uninstalls it does, too."""
    files = {path.replace(INFO, f"{stem}.dist-info"): data for path, data in wheel_files().items()}
    with pytest.raises(InvalidWheel, match=f"'{stem}.dist-info' is not of my-tasks 1.0"):
        check(pack(with_record(files, f"{stem}.dist-info")))


class TestRecord:
    FILES = with_record(wheel_files(), INFO)
    RECORD = FILES[f"{INFO}/RECORD"].decode()

    def refused(self, record: str | bytes | None, message: str, **more: bytes) -> None:
        files = {path: data for path, data in self.FILES.items() if path != f"{INFO}/RECORD"} | more
        if record is not None:
            files[f"{INFO}/RECORD"] = record.encode() if isinstance(record, str) else record
        with pytest.raises(InvalidWheel, match=message):
            check(pack(files))

    def test_must_be_there(self) -> None:
        self.refused(None, "RECORD' is missing")

    def test_must_list_every_file(self) -> None:
        self.refused(self.RECORD, "RECORD does not list 'extra.py'", **{"extra.py": b""})
        self.refused("", "RECORD does not list 'my_tasks/__init__.py'")

    def test_must_list_no_other_file(self) -> None:
        self.refused(f"{self.RECORD}ghost.py,sha256=x,1\n", "'ghost.py', which is not there")
        self.refused(f"{self.RECORD}../../etc/passwd,sha256=x,1\n", "which is not there")

    def test_must_list_a_file_once(self) -> None:
        self.refused(
            self.RECORD + self.RECORD.splitlines(keepends=True)[0], "'my_tasks/__init__.py', which is listed twice"
        )

    def test_must_have_the_digest_of_what_is_there(self) -> None:
        changed = {"my_tasks/__init__.py": b'VERSION = "6.6"\n'}
        self.refused(self.RECORD, "'my_tasks/__init__.py' is not what RECORD says", **changed)

    def test_must_have_the_size_of_what_is_there(self) -> None:
        self.refused(self.RECORD.replace(",16\n", ",17\n"), "'my_tasks/__init__.py' has 16 bytes, not '17'")
        self.refused(self.RECORD.replace(",16\n", ",+16\n"), "not '.16'")

    @pytest.mark.parametrize("digest", ["", "md5=abc", "sha1=abc", "SHA256=abc", "sha256", "shake_256=abc"])
    def test_must_have_a_strong_digest_for_every_file(self, digest: str) -> None:
        path, _, size = self.RECORD.splitlines()[0].split(",")
        first = self.RECORD.splitlines(keepends=True)[0]
        self.refused(self.RECORD.replace(first, f"{path},{digest},{size}\n"), "needs a sha256|is not what RECORD says")

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            ("my_tasks/__init__.py\n", "a line is not path, digest, size"),
            ("a,b,c,d\n", "a line is not path, digest, size"),
            ("\n", "a line is not path, digest, size"),
            ('"my_tasks', "RECORD cannot be read"),
            ("a\rb,,\n", "RECORD cannot be read"),
            (b"\xff,,\n", "RECORD is not UTF-8"),
            (b"\xef\xbb\xbfa,,\n", "RECORD begins with a byte order mark"),
            (b"a,,\n\xc3", "RECORD is not UTF-8|not there"),
            ("x" * 10_000, "a line is longer"),
            ("x" * 10_000 + ",,\n", "a line is longer"),
            ('"' + "x\n" * 100_000 + '"', "RECORD cannot be read"),
        ],
    )
    def test_must_be_readable(self, record: str | bytes, message: str) -> None:
        self.refused(record, message)


def test_every_refusal_of_a_file_is_short_whatever_its_name() -> None:
    """A message is for people, and goes into an answer and a log."""
    with pytest.raises(InvalidWheel) as raised:
        check_files(with_file("a/" * 31 + "b" * 250 + "/../x"))
    assert len(str(raised.value)) < 400
