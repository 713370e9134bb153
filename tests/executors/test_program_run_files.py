"""Input and output files of programs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.errors import ObjectNotFound, Unavailable
from pyoco_server.executors.program.port import WorkFile
from support.grid.program_runs import DONE, FAILED, site, unpacked
from support.grid.program_sites import ProgramSite
from support.waiting import eventually

__all__ = ["site"]


async def test_inputs_that_cannot_be_are_refused_before_the_start(site: ProgramSite) -> None:
    """GRID-93, GRID-96, P20: checked again here, whatever a door has let through; nothing is written anywhere"""
    site.program("ran.sh", f"touch {site.home}/ran\n")
    bad = ["../x", "a/b", "/etc/passwd", "a\\b", "C:\\x", "..", "a..b", "x\0", "", ".", " x", "x ", ".owner", ".owner2"]
    bad += ["x" * 256, "あ" * 86, "a\nb", "\x7f", "ran.sh", "tmp", "\udcff"]
    before = sorted(path.name for path in site.home.iterdir())
    async with site.executor() as executor:
        for name in bad:
            outcome = await site.run(executor, "ran", files=[WorkFile.of(name, b"x")])
            assert (outcome.report.status, outcome.report.error_code) == (FAILED, ErrorCode.BAD_FILE_NAME), repr(name)
        for names in (["a", "A"], ["Datei", "DATEI"], ["straße", "STRASSE"], [f"f{n}" for n in range(65)]):
            outcome = await site.run(executor, "ran", files=[WorkFile.of(name, b"x") for name in names])
            assert outcome.report.error_code == ErrorCode.BAD_FILE_NAME, names
        for broken in ({"job_id": "../../x"}, {"job_id": str(uuid.uuid4()).upper()}, {"attempt": 0}):
            outcome = await site.run(executor, "ran", **broken)
            assert outcome.report.error_code == ErrorCode.WORKER_ERROR
        assert site.left() == []
        assert sorted(path.name for path in site.home.iterdir()) == sorted([*before, "jobs"])
        good = ["in.txt", "データ.csv", ".config", "a b.txt", "あ" * 85]
        outcome = await site.run(executor, "ran", files=[WorkFile.of(name, b"x") for name in good])
        assert outcome.report.status == DONE
        assert (site.home / "ran").exists()


def fetched(name: str, data: bytes, error: Exception | None = None, **odd: Any) -> WorkFile:
    """An input from elsewhere, in pieces; it may fail on the way."""

    async def pieces() -> AsyncIterator[bytes]:
        half = len(data) // 2
        yield data[:half]
        await asyncio.sleep(0)
        if error is not None:
            raise error
        yield data[half:]

    values = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **odd}
    return WorkFile(name, values["size"], values["sha256"], pieces)


SMALL, LARGE = b"small", os.urandom(3 << 20)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_an_input_arrives_whole_or_the_program_does_not_start(site: ProgramSite, data: bytes) -> None:
    """GRID-101, GRID-147: missing for good is the job's end; everything else is tried again"""
    sums = site.program("sums.sh", "sha256sum in.bin | cut -c1-64\n")
    good = hashlib.sha256(data).hexdigest()
    cases: list[tuple[WorkFile, ErrorCode | None]] = [
        (fetched("in.bin", data), None),
        (fetched("in.bin", data, ObjectNotFound("gone")), ErrorCode.INPUT_MISSING),
        (fetched("in.bin", data, GridRefused(Code.NOT_FOUND, "gone")), ErrorCode.INPUT_MISSING),
        (fetched("in.bin", data, GridRefused(Code.FORBIDDEN, "no")), ErrorCode.WORKER_ERROR),
        (fetched("in.bin", data, Unavailable("not now")), ErrorCode.WORKER_ERROR),
        (fetched("in.bin", data, OSError(5, "broken")), ErrorCode.WORKER_ERROR),
        (fetched("in.bin", data, RuntimeError("a bug")), ErrorCode.WORKER_ERROR),
        (fetched("in.bin", data, sha256="0" * 64), ErrorCode.WORKER_ERROR),
        (fetched("in.bin", data, size=len(data) + 1), ErrorCode.WORKER_ERROR),
        (fetched("in.bin", data, size=len(data) - 1), ErrorCode.WORKER_ERROR),
    ]
    async with site.executor() as executor:
        for file, code in cases:
            outcome = await site.run(executor, sums, files=[file])
            assert outcome.report.error_code == code, outcome.report.error
            assert outcome.report.stdout.decode().strip() == ("" if code else good)
            assert outcome.archive is None
            await eventually(lambda: site.left() == [])
        damaged = WorkFile("in.bin", 5, "0" * 64, fetched("x", b"").open, b"small")
        assert (await site.run(executor, sums, files=[damaged])).report.error_code == ErrorCode.WORKER_ERROR


async def test_only_what_is_new_or_changed_is_kept(site: ProgramSite) -> None:
    """GRID-102: links and special files, the program, `.owner` and `tmp/` are left out"""
    messy = site.program(
        "messy.py",
        "import os, socket, pathlib\n"
        "P = pathlib.Path\n"
        "P('tmp/scratch').write_text('x')\n"
        "P('deep/er').mkdir(parents=True)\n"
        "P('deep/er/new').write_text('new')\n"
        "P('tmpx').write_text('kept')\n"
        "P('deep/tmp').mkdir(); P('deep/tmp/kept').write_text('kept')\n"
        "P('empty').mkdir()\n"
        "P('same-size').write_text('CHANGED')\n"
        "P('grown').write_text('grown a bit')\n"
        "os.utime('touched')\n"
        "P('rewritten').write_text('rewritten')\n"
        "os.rename('moved', 'moved-here')\n"
        "os.remove('removed')\n"
        "os.chmod('chmodded', 0o400)\n"
        "os.symlink('/etc/passwd', 'link'); os.symlink('deep', 'folder-link')\n"
        "os.mkfifo('fifo')\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('socket')\n"
        "P('messy.py').chmod(0o700)\n"
        "os.link('deep/er/new', 'hard')\n",
    )
    inputs = {
        "same-size": b"changed",
        "grown": b"grown",
        "touched": b"touched",
        "rewritten": b"rewritten",
        "moved": b"moved",
        "removed": b"removed",
        "chmodded": b"chmodded",
        "untouched": b"untouched",
    }
    async with site.executor() as executor:
        files = [WorkFile.of(name, data) for name, data in inputs.items()]
        outcome = await site.run(executor, messy, files=files)
        assert (outcome.report.status, outcome.report.stderr) == (DONE, b"")
        assert unpacked(outcome.archive) == {
            "deep/er/new": b"new",
            "deep/tmp/kept": b"kept",
            "grown": b"grown a bit",
            "hard": b"new",
            "moved-here": b"moved",
            "same-size": b"CHANGED",
            "tmpx": b"kept",
        }
        assert site.left() == []


async def test_a_change_in_the_moment_of_the_start_is_seen(site: ProgramSite) -> None:
    """GRID-102: the clock of a file system is too slow for that"""
    quick = site.program("quick", "#!/bin/sh\nprintf b > in.txt\n")
    async with site.executor() as executor:
        for _ in range(20):
            outcome = await site.run(executor, quick, files=[WorkFile.of("in.txt", b"a")])
            assert unpacked(outcome.archive) == {"in.txt": b"b"}


async def test_the_same_files_make_the_same_bytes_whoever_packs_them(site: ProgramSite) -> None:
    """GRID-102, GRID-116: few small files are packed in another process than many or large ones"""
    writer = site.program(
        "writer.py", "import sys\nfor n in sys.argv[2:][::int(sys.argv[1])]: open(n, 'w').write('content of ' + n)\n"
    )
    maker = site.program("maker.sh", 'mkdir empty; i=0; while [ $i -lt 40 ]; do ln -s x "l$i"; i=$((i+1)); done\n')
    both = site.program("both.sh", f'sh {site.exe}/maker.sh; {sys.executable} {site.exe}/writer.py "$@"\n')
    assert maker
    digests = set()
    async with site.executor() as executor:
        for name, order in ((writer, "1"), (writer, "-1"), (both, "1")):
            archive = (await site.run(executor, name, order, "b", "a", "z")).archive
            assert archive is not None
            digests.add(archive.sha256)
            assert list(unpacked(archive)) == ["a", "b", "z"]
    assert len(digests) == 1
