"""What is inside a wheel: real ones are told by their facts, everything else is refused and says why."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.core.wheel import read_wheel_name
from pyoco_server.errors import InvalidWheel
from pyoco_server.ports.wheel_files.archive import ArchiveWheelFiles
from pyoco_server.ports.wheel_files.port import WheelFacts
from wheels import build_wheel, dist_info_of, pack, wheel_files, with_record

NAME = "my_tasks-1.0-py3-none-any.whl"
INFO = dist_info_of()


def check(content: bytes, file_name: str = NAME, unpacked_bytes_max: int = 10_000_000) -> WheelFacts:
    return ArchiveWheelFiles(unpacked_bytes_max).check(io.BytesIO(content), read_wheel_name(file_name))


def check_files(files: Mapping[str, bytes], file_name: str = NAME) -> WheelFacts:
    """With the RECORD that fits them."""
    return check(pack(with_record(files, INFO)), file_name)


def with_file(path: str, data: bytes = b"x", **parts: Any) -> dict[str, bytes]:
    return {path: data, **wheel_files(**parts)}


class TestAWheelThatIsOne:
    def test_is_told_by_its_facts(self) -> None:
        file_name, content = build_wheel(
            "My.Tasks",
            "1!2.0rc1+local.7",
            modules={"my_tasks/__init__.py": "", "my_tasks/sub/deep.py": "x = 1\n", "single.py": ""},
            requires=["httpx>=0.27", 'tomli; python_version < "3.11"', "thing @ https://example.com/thing.whl"],
            entry_points={
                "pyoco.tasks": {"one": "my_tasks:one", "two": "my_tasks.sub.deep:two [extra]"},
                "more": {"x": "m"},
            },
            requires_python=">=3.11,<4",
            tag="2-py2.py3-none-any",
        )
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked_bytes = sum(info.file_size for info in archive.infolist())
        assert check(content, file_name) == WheelFacts(
            modules=("my_tasks", "single"),
            requires=("httpx>=0.27", 'tomli; python_version < "3.11"', "thing @ https://example.com/thing.whl"),
            requires_python=">=3.11,<4",
            entry_points=(("pyoco.tasks", "one"), ("pyoco.tasks", "two"), ("more", "x")),
            files=7,
            unpacked_bytes=unpacked_bytes,
        )

    def test_may_bring_modules_in_every_form_python_knows(self) -> None:
        names = [
            "space/inner/mod.py",  # a package without __init__
            "_fast.cpython-311-x86_64-linux-gnu.so",
            "_stable.abi3.so",
            "_plain.so",
            "_win.cp311-win_amd64.pyd",
            "my_tasks-1.0.data/purelib/from_data/__init__.py",
            "my_tasks-1.0.data/platlib/_native.so",
            "my_tasks-1.0.data/data/lib/python3.11/site-packages/back_door/x.py",
            "compiled.pyc",
        ]
        others = [
            "my_tasks.libs/libz.so.1",  # a directory that nobody can import from
            "not-a-module/x.py",
            "only_data/table.csv",
            "notes.txt",
            "my_tasks-1.0.data/scripts/run.py",
            "my_tasks-1.0.data/data/share/x.py",
            "my_tasks-1.0.data/headers/x.py",
        ]
        facts = check_files({**dict.fromkeys([*names, *others], b""), **wheel_files(modules={})})
        assert facts.modules == (
            *("_fast", "_native", "_plain", "_stable", "_win"),
            *("back_door", "compiled", "from_data", "space"),
        )

    def test_may_bring_no_module_at_all(self) -> None:
        assert check_files(wheel_files(modules={})).modules == ()

    @pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
    def test_may_have_stronger_digests(self, algorithm: str) -> None:
        import base64
        import hashlib

        files = wheel_files()
        lines = []
        for path, data in files.items():
            text = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).decode().rstrip("=")
            lines.append(f"{path},{algorithm}={text},\r\n")  # and no sizes, and other ends of lines
        assert check(pack({**files, f"{INFO}/RECORD": "".join(lines).encode()})).files == 4

    def test_may_have_directories_and_odd_but_honest_names(self) -> None:
        files = {"my_tasks/": b"", "my_tasks/data, and more/": b"", "my_tasks/data, and more/数.csv": b"1"}
        record = with_record({path: data for path, data in files.items() if data} | wheel_files(), INFO)
        assert check(pack({**files, **record})).files == 5

    def test_may_have_signatures_that_record_does_not_list(self) -> None:
        files = with_record(wheel_files(), INFO)
        assert check(pack({**files, f"{INFO}/RECORD.jws": b"{}", f"{INFO}/RECORD.p7s": b"x"})).files == 6

    @pytest.mark.parametrize(
        "path", ["my_tasks/model.pth", "my_tasks/sitecustomize.py", "my_tasks-1.0.data/data/share/x.pth"]
    )
    def test_may_have_files_of_any_name_where_python_does_not_look_for_them(self, path: str) -> None:
        assert check_files(with_file(path)).files == 5


#: Files of a wheel to be changed, and what the message says.
BROKEN: dict[str, tuple[dict[str, bytes | None], str]] = {
    "no METADATA": ({f"{INFO}/METADATA": None}, "METADATA' is missing"),
    "no WHEEL": ({f"{INFO}/WHEEL": None}, "WHEEL' is missing"),
    "no dist-info": ({f"{INFO}/METADATA": None, f"{INFO}/WHEEL": None}, "METADATA' is missing"),
    "a second dist-info": ({"other-1.0.dist-info/METADATA": b"Name: other"}, "one directory"),
    "a second dist-info in capitals": ({"Other-1.0.DIST-INFO/METADATA": b"Name: other"}, "one directory"),
    "an egg-info": ({"other.egg-info/PKG-INFO": b"Name: other"}, "one directory"),
    "a hidden dist-info": ({"my_tasks-1.0.data/purelib/o-1.dist-info/METADATA": b""}, "disguise"),
    "another name": ({f"{INFO}/METADATA": b"Name: other\nVersion: 1.0\n"}, "METADATA tells of 'other' '1.0'"),
    "another version": ({f"{INFO}/METADATA": b"Name: my-tasks\nVersion: 1.1\n"}, "METADATA tells of 'my-tasks' '1.1'"),
    "no version": ({f"{INFO}/METADATA": b"Name: my-tasks\n"}, "must say Version once, and says it 0 times"),
    "two names": ({f"{INFO}/METADATA": b"Name: my-tasks\nName: x\nVersion: 1.0\n"}, "says it 2 times"),
    "a version nobody can read": (
        {f"{INFO}/METADATA": b"Name: my-tasks\nVersion: " + b"9" * 5000},
        "METADATA tells of",
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
    "a usercustomize": ({"my_tasks-1.0.data/purelib/usercustomize.py": b""}, "would be run"),
    "an unknown scheme": ({"my_tasks-1.0.data/stdlib/os.py": b""}, "a .data directory"),
    "a file beside the schemes": ({"my_tasks-1.0.data/purelib": b""}, "a .data directory"),
    "the .data of another": ({"other-1.0.data/purelib/x.py": b""}, "a .data directory"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=list(BROKEN))
def test_a_wheel_that_is_not_what_it_says_is_refused(changes: dict[str, bytes | None], message: str) -> None:
    """DESIGN 9.15: contents are checked at upload."""
    files = {path: data for path, data in {**wheel_files(), **changes}.items() if data is not None}
    with pytest.raises(InvalidWheel, match=message):
        check_files(files)


@pytest.mark.parametrize(
    "line",
    [
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


def test_facts_are_of_this_wheel_and_no_other() -> None:
    """The same adapter checks many at once, in threads: it keeps nothing between them."""
    files = ArchiveWheelFiles(10_000_000)
    one, two = build_wheel("one", "1"), build_wheel("two", "2")
    first = files.check(io.BytesIO(one[1]), read_wheel_name(one[0]))
    files.check(io.BytesIO(two[1]), read_wheel_name(two[0]))
    assert files.check(io.BytesIO(one[1]), read_wheel_name(one[0])) == replace(first, modules=("one",))
