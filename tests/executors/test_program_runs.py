"""One program after another: how each ends, what it sees, what it may leave behind."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import time
import uuid

import pytest
import uvloop

from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from pyoco_server.executors.program.port import WorkFile
from support.grid.program_runs import CANCELLED, DONE, FAILED, site, unpacked
from support.grid.program_sites import ProgramSite, processes_with
from support.waiting import eventually

__all__ = ["site"]


async def test_each_end_has_its_word(site: ProgramSite) -> None:
    """GRID-89, GRID-90, GRID-101, GRID-192, section 26.1"""
    site.program("plain", "no program at all\n", 0o644)
    site.program("words", "these are words, and no program\n")
    site.program("lost", "#!/no/such/interpreter\n")
    site.program("shot.sh", 'echo "to the end"; kill -SEGV $$\n')
    site.program("nothing.py", "")
    (site.exe / "out").symlink_to("/bin/true")
    ends: list[tuple[list[str], RunState, int | None, ErrorCode | None, str]] = [
        (["nothing"], DONE, 0, None, ""),
        (["failn", "7"], FAILED, 7, ErrorCode.EXIT_NONZERO, "exit code 7"),
        (["failn", "255"], FAILED, 255, ErrorCode.EXIT_NONZERO, "exit code 255"),
        (["shot"], FAILED, -signal.SIGSEGV, ErrorCode.SIGNALED, "SIGSEGV"),
        (["none"], FAILED, None, ErrorCode.EXEC_NOT_FOUND, "no program none"),
        (["plain"], FAILED, None, ErrorCode.EXEC_NOT_FOUND, "not executable"),
        (["words"], FAILED, None, ErrorCode.EXEC_NOT_FOUND, "Exec format error"),
        (["lost"], FAILED, None, ErrorCode.EXEC_NOT_FOUND, "no program for this machine"),
        (["out"], FAILED, None, ErrorCode.EXEC_NOT_FOUND, "leaves the directory"),
        (["../exe/nothing"], FAILED, None, ErrorCode.EXEC_NOT_ALLOWED, "may not run"),
        (["secret"], FAILED, None, ErrorCode.EXEC_NOT_ALLOWED, "may not run"),
    ]
    allowed = ("failn", "[!s]*", "shot")
    async with site.executor(worker_exec_allow=allowed) as executor:
        for (name, *args), status, exit_code, code, text in ends:
            outcome = await site.run(executor, name, *args)
            report = outcome.report
            assert (report.status, report.exit_code, report.error_code) == (status, exit_code, code), name
            assert text in (report.error or ""), name
            assert (report.started_at is None) == (exit_code is None), name
            assert outcome.archive is None, name
        assert [executor.has(name) for name in ("failn", "none", "plain", "out", "secret", "../x")] == [
            True,
            False,
            False,
            False,
            False,
            False,
        ]
    assert site.left() == []


async def test_a_program_has_three_descriptors_also_under_uvloop(site: ProgramSite) -> None:
    """SAFE-8: uvloop, which services use, hands down copies of the service's own streams"""
    seen = site.program("seen.py", "import os\nprint(sorted(os.listdir('/proc/self/fd')))\n")

    async def run() -> bytes:
        async with site.executor() as executor:
            return (await executor.begin(site.work(seen)).outcome()).report.stdout

    assert await asyncio.to_thread(uvloop.run, run()) == b"['0', '1', '2', '3']\n"


async def test_a_name_that_is_not_allowed_is_not_even_looked_for(
    site: ProgramSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-90: the check is made before the file system is touched; case counts"""
    async with site.executor(worker_exec_allow=("calc[AB]", "x*")) as executor:
        for name, code in (("CALCA", ErrorCode.EXEC_NOT_ALLOWED), ("xyz", ErrorCode.EXEC_NOT_FOUND), ("calcA", None)):
            assert (await site.run(executor, name)).report.error_code == code
        monkeypatch.setattr(executor, "_order", None)
        assert (await site.run(executor, "sleepn")).report.error_code == ErrorCode.EXEC_NOT_ALLOWED


async def test_the_samples_do_what_they_say(site: ProgramSite) -> None:
    """GRID-192, GRID-102"""
    async with site.executor() as executor:
        outcome = await site.run(executor, "calcA", "--n", "3", "a b")
        assert outcome.report.stdout == b"--n\n3\na b\n"
        assert unpacked(outcome.archive) == {"result.txt": b"--n\n3\na b\n"}
        assert (await site.run(executor, "sleepn", "0.01")).report.stdout == b"sleeping for 0.01 s\nawake\n"
        assert (await site.run(executor, "failn", "3")).report.stderr == b"failing with 3\n"
        outcome = await site.run(executor, "bigout", "2")
        assert [len(data) for data in unpacked(outcome.archive).values()] == [2 << 20]
        assert (await site.run(executor, "forker", "3", "0.01")).report.status == DONE


async def test_a_program_sees_this_and_nothing_else(site: ProgramSite) -> None:
    """GRID-91, GRID-94, GRID-103: environment, arguments, standard input, directory, umask, limits, session"""
    ours = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "TZ": "Asia/Tokyo",
        "PYOCO_NATS_URL": "nats://user:secret@host",
        "PYOCO_API_KEY": "pyoco_secret",
        "MY_LICENCE": "123",
        "OTHER": "x",
        "HOME": "/root",
    }
    seen = site.program(
        "seen.py",
        "import os, sys, json, resource\n"
        "open('made', 'w').close()\n"
        "told = dict(env=dict(os.environ), argv=sys.argv, stdin=sys.stdin.read(), cwd=os.getcwd(),"
        " names=sorted(os.listdir()),"
        " modes=[oct(os.lstat(n).st_mode & 0o7777) for n in ('.', '..', 'seen.py', 'in.txt', 'tmp', 'made')],"
        " core=resource.getrlimit(resource.RLIMIT_CORE), size=resource.getrlimit(resource.RLIMIT_FSIZE),"
        " fds=sorted(int(n) for n in os.listdir('/proc/self/fd')),"
        " leader=[os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()])\n"
        "json.dump(told, sys.stdout)\n",
    )
    signals = site.program("signals.sh", "grep -E '^Sig(Ign|Blk)' /proc/self/status\n")
    async with site.executor(ours, worker_env_pass=("MY_LICENCE", "ABSENT")) as executor:
        work = site.work(seen, "a b", "$HOME", "'; rm -rf /", "データ", files=[WorkFile.of("in.txt", b"hello")])
        outcome = await executor.begin(work).outcome()
        ignored = (await site.run(executor, signals)).report.stdout.split()
    told = json.loads(outcome.report.stdout)
    place = f"{site.jobs}/{work.job_id}/a1"
    assert told["env"] == {
        "PATH": ours["PATH"],
        "LANG": "C.UTF-8",
        "TZ": "Asia/Tokyo",
        "MY_LICENCE": "123",
        "HOME": place,
        "TMPDIR": f"{place}/tmp",
        "JOB_ID": work.job_id,
        "RUN_ID": work.run_id,
        "CLIENT_ID": "clientA",
        "EXEC_NAME": "seen",
        "ATTEMPT": "1",
    } | {name: told["env"][name] for name in ("LC_CTYPE",) if name in told["env"]}  # Python's own
    assert told["argv"] == [f"{place}/seen.py", "a b", "$HOME", "'; rm -rf /", "データ"]
    assert (told["stdin"], told["cwd"]) == ("", place)
    assert told["names"] == ["in.txt", "made", "seen.py", "tmp"]
    assert told["modes"] == ["0o700", "0o700", "0o500", "0o600", "0o700", "0o600"]
    assert (told["core"], told["size"]) == ([0, 0], [1 << 30, 1 << 30])
    assert told["fds"] == [0, 1, 2, 3]  # the last one is that of the list itself
    assert len(told["fds"]) == 4, "and the one that reads the directory: nothing of ours is inherited"
    assert told["leader"] == [True, True]
    # Python ignores some signals, which programs do not expect. 32 and 33 are glibc's own, and so in every such child.
    assert {int(mask, 16) & ~(3 << 31) for mask in ignored[1::2]} == {0}
    assert unpacked(outcome.archive) == {"made": b""}


async def test_the_process_above_a_program_has_no_secrets_either(
    site: ProgramSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-94: a program may look at its parent, for it is of the same user"""
    nosy = site.program("nosy.sh", "tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' ' ' < /proc/$PPID/cmdline\n")
    for name in ("PYOCO_NATS_URL", "PYOCO_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "very-secret")
    async with site.executor() as executor:
        told = (await site.run(executor, nosy)).report.stdout
    assert b"program.runner" in told
    assert b"very-secret" not in told


async def test_the_copy_of_the_program_is_its_own(site: ProgramSite) -> None:
    """GRID-93: what it does to its copy harms neither the original nor the next"""
    text = '#!/bin/sh\nchmod u+w "$0" && echo "exit 1" > "$0" && mv "$0" renamed\n'
    vandal = site.program("vandal", text)
    async with site.executor() as executor:
        for _ in range(2):
            outcome = await site.run(executor, vandal)
            assert outcome.report.status == DONE
            assert unpacked(outcome.archive) == {"renamed": b"exit 1\n"}
    assert (site.exe / "vandal").read_text() == text


async def test_output_is_the_end_of_what_was_said(site: ProgramSite) -> None:
    """GRID-100: read all the time, the last bytes kept, and said so"""
    talker = site.program(
        "talker.py",
        "import sys, os\n"
        "n = int(sys.argv[1])\n"
        "os.write(2, b'e' * 100)\n"
        "for i in range(n // 1000): os.write(1, b'%999d\\n' % i)\n"
        "os.write(1, b'x' * (n % 1000))\n",
    )
    async with site.executor(exec_stdio_max=10_000) as executor:
        for size, is_truncated in ((9_999, False), (10_000, False), (10_001, True), (5_000_000, True)):
            report = (await site.run(executor, talker, str(size))).report
            whole = b"".join(b"%999d\n" % i for i in range(size // 1000)) + b"x" * (size % 1000)
            assert report.stdout == whole[-10_000:], size
            assert report.stdout_truncated == is_truncated, size
            assert (report.stderr, report.stderr_truncated) == (b"e" * 100, False)


async def test_too_much_output_fails_and_what_was_said_is_kept(site: ProgramSite) -> None:
    """GRID-102, GRID-103: all files together, and one alone"""
    site.program("fat.sh", 'for n in 1 2 3; do head -c 700000 /dev/zero > "f$n"; done; echo said; exit "${1:-0}"\n')
    site.program("whale.sh", "head -c 3000000 /dev/zero > whale; echo $?\n")
    async with site.executor(exec_output_max_bytes=2_000_000) as executor:
        for name, args, code, text in (
            ("fat", [], ErrorCode.OUTPUT_TOO_LARGE, "more than 2000000 bytes"),
            ("fat", ["3"], ErrorCode.EXIT_NONZERO, "exit code 3; its files have more than 2000000 bytes"),
        ):
            outcome = await site.run(executor, name, *args)
            assert (outcome.report.status, outcome.report.error_code) == (FAILED, code)
            assert text in (outcome.report.error or "")
            assert (outcome.report.stdout, outcome.archive) == (b"said\n", None)
        outcome = await site.run(executor, "whale")
        assert outcome.report.stdout == f"{128 + signal.SIGXFSZ}\n".encode()
        assert {name: len(data) for name, data in unpacked(outcome.archive).items()} == {"whale": 2_000_000}
        assert site.left() == []


async def test_whatever_a_program_does_to_its_directory_it_is_gone_afterwards(site: ProgramSite) -> None:
    """GRID-95: rights taken away, depth without end, itself removed, a link in its place"""
    outside = site.home / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    site.program("lock.sh", "mkdir -p a/b; echo 1 > a/b/c; chmod 000 a/b/c a/b a; echo 2 > d; chmod 000 d . ..\n")
    site.program("dig.py", "import os\nfor _ in range(1200): os.mkdir('deep'); os.chdir('deep')\nopen('x', 'w')\n")
    site.program("quit.sh", 'rm -rf "$HOME"\n')
    site.program("swap.sh", f"cd ..; mv a1 elsewhere; ln -s {outside} a1\n")
    site.program("swap2.sh", f"cd ..; mv a1 elsewhere; cp {outside}/precious a1\n")
    site.program("naked.sh", "rm ../a1.owner; rm -r tmp; rm naked.sh\n")
    site.program(
        "odd.py", "import os\nopen(b'caf\\xe9', 'w'); open('a\\\\b', 'w'); open('C:x', 'w'); open('-rf', 'w')\n"
    )
    async with site.executor() as executor:
        outcomes = {
            path.stem: await site.run(executor, path.stem)
            for path in sorted(site.exe.iterdir())
            if path.stem in {"lock", "dig", "quit", "swap", "swap2", "naked", "odd"}
        }
        ends = {name: (outcome.report.status, outcome.report.error_code) for name, outcome in outcomes.items()}
        too_large = ends.pop("dig")
        assert set(ends.values()) == {(DONE, None)}, ends
        assert too_large == (FAILED, ErrorCode.OUTPUT_TOO_LARGE)
        assert unpacked(outcomes["lock"].archive) == {"a/b/c": b"1\n", "d": b"2\n"}
        assert sorted(unpacked(outcomes["odd"].archive)) == ["-rf", "C%3Ax", "a%5Cb", "caf%E9"]
        for job in site.left():  # what was moved away by the program is not ours to look for, but its job's is
            assert [path.name for path in (site.jobs / job).iterdir()] == ["elsewhere"]
        assert len(site.left()) <= 2
    assert [path.name for path in outside.iterdir()] == ["precious"]


async def test_directories_are_kept_when_asked_for(site: ProgramSite) -> None:
    """GRID-95: WORKER_KEEP_JOBS"""
    async with site.executor(worker_keep_jobs=True) as executor:
        work = site.work("calcA", "x", files=[WorkFile.of("in.txt", b"hello")])
        assert unpacked((await executor.begin(work).outcome()).archive) == {"result.txt": b"x\n"}
    kept = site.jobs / work.job_id / "a1"
    assert sorted(path.name for path in kept.iterdir()) == ["calcA.sh", "in.txt", "result.txt", "tmp"]


async def test_many_at_a_time_do_not_mix(site: ProgramSite) -> None:
    """GRID-92, GRID-100: attempts of one job have directories of their own, too"""
    mixer = site.program("mixer.sh", 'cat in.txt; echo "$1" > "$1"; sleep 0.0$(($1 % 7)); ls | grep -c .\n')
    async with site.executor() as executor:
        job_id = str(uuid.uuid4())

        async def one(number: int) -> None:
            same = {"job_id": job_id, "attempt": number + 1} if number % 2 else {}
            text = f"{number}".encode()
            outcome = await site.run(executor, mixer, str(number), files=[WorkFile.of("in.txt", text + b"\n")], **same)
            assert outcome.report.stdout == text + b"\n4\n"
            assert unpacked(outcome.archive) == {str(number): text + b"\n"}

        await asyncio.gather(*(one(number) for number in range(60)))
        assert site.left() == []


async def test_an_attempt_whose_directory_is_in_use_is_not_begun(site: ProgramSite) -> None:
    """GRID-92: one left over is removed, one that lives is not"""
    async with site.executor() as executor:
        work = site.work("sleepn", "600")
        first = executor.begin(work)
        await eventually(lambda: bool(processes_with(work.job_id)))
        outcome = await executor.begin(work).outcome()
        assert outcome.report.error_code == ErrorCode.WORKER_ERROR
        first.cancel()
        assert (await first.outcome()).report.status == CANCELLED
        left = site.jobs / work.job_id / "a1" / "tmp"
        left.mkdir(parents=True)
        (left.parent / ".owner").symlink_to("999999999-1-1-1")
        again = await site.run(executor, "calcA", job_id=work.job_id)
        assert (again.report.status, unpacked(again.archive)) == (DONE, {"result.txt": b""})


async def test_a_disk_that_is_full_is_the_workers_fault(site: ProgramSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRID-101: WORKER_ERROR, which is tried again; with inputs, and with files that cannot be packed"""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with site.executor() as executor:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))  # of this process: the runner has its own
        try:
            large = WorkFile.of("large", bytes(3 << 20))
            outcome = await site.run(executor, "calcA", files=[large])
            assert outcome.report.error_code == ErrorCode.WORKER_ERROR
            assert outcome.report.error == "an input cannot be written: File too large"
            outcome = await site.run(executor, "bigout", "4")
            assert (outcome.report.error_code, outcome.report.exit_code) == (ErrorCode.WORKER_ERROR, 0)
            assert outcome.report.error == "its files could not be kept: File too large"
            assert outcome.archive is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        await eventually(lambda: site.left() == [])
        assert list((site.jobs / ".packed").rglob("*.zip")) == []


async def test_whoever_tidies_up_tmp_does_not_stop_us(site: ProgramSite) -> None:
    """GRID-92: the root and the place of archives are made again"""
    async with site.executor() as executor:
        shutil.rmtree(site.jobs)
        outcome = await site.run(executor, "calcA", "x")
        assert unpacked(outcome.archive) == {"result.txt": b"x\n"}
        shutil.rmtree(site.jobs)
        outcome = await site.run(executor, "bigout", "1")
        assert outcome.archive is not None
        assert [len(piece) async for piece in outcome.archive.pieces()]


async def test_times_are_told(site: ProgramSite) -> None:
    """Section 5.4"""
    async with site.executor() as executor:
        before = time.time()
        report = (await site.run(executor, "sleepn", "0.2")).report
        assert report.started_at is not None
        assert report.ended_at is not None
        assert report.run_seconds is not None
        assert before <= report.started_at <= report.ended_at <= time.time()
        assert 0.2 <= report.run_seconds < 200
