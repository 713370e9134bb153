"""Who a worker is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyoco_server.errors import UsageError
from pyoco_server.loops.tcp_worker.identity import take_identity


def test_two_workers_of_a_machine_differ_and_a_restarted_one_gets_its_name_back(tmp_path: Path) -> None:
    """GRID-104"""
    first, second = (take_identity(tmp_path, None, "render.example") for _ in range(2))
    assert (first.worker_id, second.worker_id) == ("render_example-1", "render_example-2")
    assert first.spool != second.spool
    first.release()
    again = take_identity(tmp_path, None, "render.example")
    assert again.worker_id == "render_example-1"
    assert again.spool == first.spool
    again.release()
    second.release()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("büro-1", "b_ro-1-1"),
        ("a.b c", "a_b_c-1"),
        ("", "worker-1"),
        ("x" * 100, "x" * 62 + "-1"),
    ],
)
def test_the_name_of_the_host_becomes_a_legal_id(tmp_path: Path, host: str, expected: str) -> None:
    """GRID-3, GRID-104"""
    identity = take_identity(tmp_path, None, host)
    assert identity.worker_id == expected
    identity.release()


def test_an_id_that_another_process_has_is_refused(tmp_path: Path) -> None:
    """GRID-104: two workers in one spool would send each other's results."""
    held = take_identity(tmp_path, "mine", "host")
    with pytest.raises(UsageError, match="mine"):
        take_identity(tmp_path, "mine", "host")
    held.release()
    take_identity(tmp_path, "mine", "host").release()


def test_an_id_given_by_hand_is_passed_over_by_the_default(tmp_path: Path) -> None:
    """GRID-104"""
    held = take_identity(tmp_path, "host-1", "host")
    other = take_identity(tmp_path, None, "host")
    assert other.worker_id == "host-2"
    held.release()
    other.release()


def test_a_killed_process_leaves_its_name_free(tmp_path: Path) -> None:
    """GRID-104: the kernel lets go of the lock, and a program that it had started does not hold it."""
    code = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from pyoco_server.loops.tcp_worker.identity import take_identity\n"
        f"print(take_identity(Path({str(tmp_path)!r}), None, 'host').worker_id, flush=True)\n"
        "child = subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    name, child = ended.stdout.split()
    try:
        assert (ended.returncode, name) == (-9, "host-1")
        identity = take_identity(tmp_path, None, "host")
        assert identity.worker_id == "host-1"
        identity.release()
    finally:
        subprocess.run(["kill", "-9", child], check=False)


def test_a_root_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    """GRID-190"""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        take_identity(tmp_path / "file" / "jobs", None, "host")
