"""Which packs share processes, and when there are how many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pyoco_server.config import secret_variables
from pyoco_server.config.packs import PackConfig
from pyoco_server.errors import UsageError
from pyoco_server.executors.host import process as process_module
from pyoco_server.executors.host import warm_pool
from pyoco_server.executors.host.environment import pack_environment
from pyoco_server.executors.host.warm_pool import WarmPool
from pyoco_server.executors.packs import host as host_module
from pyoco_server.executors.packs import pool as pool_module
from pyoco_server.executors.packs import wire
from pyoco_server.executors.packs.host import PackHost
from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.executors.packs.port import Call, Executed, Faulted
from support.host_scenes import inner, is_gone
from support.priced import naughty_packs
from support.priced.pack_scenes import naughty_hosts, pack_processes, spec
from support.waiting import eventually

TESTS = Path(__file__).parents[1]
KEY = "sk-key-of-the-model"
SETTINGS = PackConfig(decision_api_key=KEY)
GREETING = wire.Greeting(naughty_packs.LOADER, {"tells": ""}, {}, 0)


@pytest.fixture(autouse=True)
def _naughty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def call(pack_type: str, **inputs: Any) -> Call:
    return Call(
        pack_type=pack_type,
        inputs=inputs,
        run_id=str(uuid.uuid4()),
        tenant_id="acme",
        trace_id=None,
        timebox_seconds=200.0,
        min_reliability_e4=0,
        reserved_usd_micros=250_000,
        artifacts={},
    )


@contextlib.asynccontextmanager
async def started(hosts: PackHosts) -> AsyncIterator[PackHosts]:
    try:
        await hosts.start()
        yield hosts
    finally:
        await hosts.stop()
    assert pack_processes() == []


async def data_of(hosts: PackHosts, what: Call) -> dict[str, Any]:
    async with asyncio.timeout(200):
        process = await hosts.reserve_process()
        outcome = await (await process.begin(what)).outcome()
    process.leave()
    assert isinstance(outcome, Executed), outcome
    return dict(outcome.result.data)


async def pids_at_once(hosts: PackHosts, tmp_path: Path, pack_type: str, count: int) -> set[int]:
    """Of so many calls that are under way at the same time."""
    tmp_path.mkdir(exist_ok=True)
    ways = [tmp_path / f"{pack_type}-{n}" for n in range(count)]
    async with asyncio.timeout(200):
        processes = [await hosts.reserve_process() for _ in ways]
        calls = [call(pack_type, begun=str(way)) for way in ways]
        under_way = [await process.begin(what) for process, what in zip(processes, calls, strict=True)]
        await eventually(lambda: all(way.exists() and way.read_text() for way in ways))
        for each in under_way:
            each.cancel()
        for each in under_way:
            await each.outcome()
    for process in processes:
        process.leave()
    return {int(way.read_text()) for way in ways}


def group_of(hosts: PackHosts, name: str) -> WarmPool[wire.Greeting, PackHost]:
    return hosts._own[name]


async def test_a_pack_of_somebody_else_shares_no_process_and_knows_none_of_our_settings() -> None:
    """PRICED-171"""
    specs = [
        spec("tells", has_own_process=False),
        spec("sleeps"),  # heavy, and ours
        spec("theirs", executor="knows"),
        spec("others", executor="knows"),
    ]
    async with started(PackHosts(1, 0, specs, SETTINGS, naughty_packs.LOADER)) as hosts:
        assert hosts.packs == {"tells", "sleeps", "theirs", "others"}
        theirs, others = await data_of(hosts, call("theirs")), await data_of(hosts, call("others"))
        assert (theirs["packs"], theirs["key"]) == ({"theirs": "knows"}, "")
        assert (others["packs"], others["key"]) == ({"others": "knows"}, "")
        shared = await data_of(hosts, call("tells"))
        assert len({theirs["pid"], others["pid"], shared["pid"]}) == 3
        await eventually(lambda: len(pack_processes()) == 1 + 1 + 3)  # one slot, a spare, and one of each of the three
        assert (await data_of(hosts, call("theirs")))["pid"] == theirs["pid"]


async def test_our_settings_reach_our_packs_and_are_seen_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-171: neither among the arguments of a process nor in its environment."""
    monkeypatch.setenv("PYOCO_DECISION_API_KEY", KEY)
    monkeypatch.setenv("PYOCO_LEDGER_URL", f"postgresql://anna:{KEY}@db/pyoco")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("PGPASSWORD", KEY)
    monkeypatch.setenv("WORDS_TOKEN", "of the pack itself")
    specs = [spec("knows", has_own_process=False), spec("tells", has_own_process=False)]
    async with started(PackHosts(1, 0, specs, SETTINGS, naughty_packs.LOADER)) as hosts:
        assert (await data_of(hosts, call("knows")))["key"] == KEY
        told = await data_of(hosts, call("tells"))
        assert KEY not in json.dumps(told)
        assert told["environment"]["WORDS_TOKEN"] == "of the pack itself"
        assert told["environment"]["PATH"]
        assert KEY not in repr(hosts._shared and hosts._shared.settings)


#: Read once more, the file would bring them back.
NO_DOTENV = {"PYOCO_LOAD_DOTENV": "false"}


def test_whatever_a_setting_calls_a_secret_is_kept_from_packs() -> None:
    secrets = dict.fromkeys(secret_variables(), "x")
    assert pack_environment(secrets | {"AWS_SESSION_TOKEN": "x", "PGPASSFILE": "x"}) == NO_DOTENV
    kept = {"PATH": "p", "LANG": "l", "TESSDATA_PREFIX": "t", "PYTHONPATH": "q", "SSL_CERT_FILE": "c", "HOME": "h"}
    assert pack_environment(kept) == kept | NO_DOTENV


@pytest.mark.parametrize("place", ["bad import", "slow import", "no such place"])
async def test_a_pack_that_cannot_be_loaded_is_left_out_and_told(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "_OWN_READY_SECONDS", 1.0 if place == "slow import" else 100.0)
    async with started(naughty_hosts(1, words=place)) as hosts:
        assert "words" not in hosts.packs
        assert (await data_of(hosts, call("tells")))["pid"]
    (line,) = [record for record in caplog.records if "leaving it out" in record.getMessage()]
    assert "words" in str(line.__dict__)


async def test_a_process_that_claims_a_pack_of_ours_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """PRICED-171: what tenants ask of ours is told to ours alone."""
    async with started(naughty_hosts(1, theirs="claims more")) as hosts:
        assert "theirs" not in hosts.packs
        assert hosts.group_of("decision") is hosts._shared
    (line,) = [record for record in caplog.records if "leaving it out" in record.getMessage()]
    assert "theirs" in str(line.__dict__)


@pytest.mark.parametrize(
    "word",
    [b'["own"]', b"R", b"Rnull", b'R"own"', b'R{"own":1}', b"R[]", b'R["own","own"]', b'R["decision","own"]', b"R[[["],
)
def test_who_is_ready_for_something_else_is_not_ready(word: bytes) -> None:
    wire.check_ready(wire.pack_ready(["own"]), {"own": "place"})
    with pytest.raises(ValueError):
        wire.check_ready(word, {"own": "place"})


class TestAProcessThatCannotBeStarted:
    async def test_for_whatever_reason_is_tried_again_and_its_place_is_not_lost(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(warm_pool, "_PAUSE_SECONDS", (0.01, 0.01))
        async with started(naughty_hosts(1, own="tells")) as hosts:
            group, spawn, failed = group_of(hosts, "own"), PackHost.spawn, iter([KeyError("odd"), RuntimeError("odd")])

            async def spawned(greeting: wire.Greeting, _: object) -> PackHost:
                if (error := next(failed, None)) is not None:
                    raise error
                return await spawn(greeting)

            monkeypatch.setattr(PackHost, "spawn", spawned)
            only = await group.take()
            only.kill_now()
            await only.wait()
            group.take_back(only)
            async with asyncio.timeout(200):
                group.take_back(await group.take())
            assert (group._count, len(group._processes)) == (1, 1)
        assert len([record for record in caplog.records if "retrying" in record.getMessage()]) == 2

    async def test_at_the_start_of_the_worker_leaves_nothing_of_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spawn = PackHost.spawn

        async def spawned(greeting: wire.Greeting, _: object) -> PackHost:
            if "own" not in greeting.packs:
                raise RuntimeError("odd")
            return await spawn(greeting)

        monkeypatch.setattr(PackHost, "spawn", spawned)
        hosts = naughty_hosts(1, own="tells")
        with pytest.raises(UsageError, match="odd"):
            await hosts.start()
        assert pack_processes() == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def test_and_was_never_told_to_us_goes_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As with asyncio, which starts a thread for each process, and that after the process."""
        start, begun = asyncio.create_subprocess_exec, []

        async def started_and_lost(*arguments: Any, **more: Any) -> NoReturn:
            begun.append(await start(*arguments, **more))
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(asyncio, "create_subprocess_exec", started_and_lost)
        with pytest.raises(OSError, match="can't start new thread"):
            await PackHost.spawn(GREETING)
        async with asyncio.timeout(200):
            await begun[0].wait()

    @pytest.mark.parametrize("lines", [0, 1])
    async def test_whole_is_ended(self, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is there, and so many lines to it; another one cannot be had."""
        start, connect = asyncio.create_subprocess_exec, process_module._connect
        begun: list[asyncio.subprocess.Process] = []
        connected: list[Any] = []

        async def noted(*arguments: Any, **more: Any) -> asyncio.subprocess.Process:
            begun.append(await start(*arguments, **more))
            return begun[-1]

        async def connected_to(ours: socket.socket, bytes_max: int) -> Any:
            if len(connected) == lines:
                raise MemoryError
            connected.append(await connect(ours, bytes_max))
            return connected[-1]

        monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
        monkeypatch.setattr(process_module, "_connect", connected_to)
        with pytest.raises(MemoryError):
            await PackHost.spawn(GREETING)
        assert [each.returncode for each in begun] == [-signal.SIGKILL]
        assert all(transport.is_closing() for transport, _ in connected)

    async def test_since_it_is_gone_at_once_is_told_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The line is closed before the greeting is written, which uvloop minds."""

        def refuses(*_: object) -> NoReturn:
            raise RuntimeError("unable to perform operation; the handler is closed")

        connect = process_module._connect

        async def connected_to(ours: socket.socket, bytes_max: int) -> Any:
            transport, reader = await connect(ours, bytes_max)
            monkeypatch.setattr(transport, "write", refuses)
            transport.close()
            return transport, reader

        monkeypatch.setattr(process_module, "_connect", connected_to)
        host = await PackHost.spawn(GREETING)
        with pytest.raises(OSError, match="before it was ready"):
            await host.ready()
        assert pack_processes() == []


async def test_more_processes_come_with_more_calls_and_go_when_they_are_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "_IDLE_SECONDS", 0.3)
    monkeypatch.setattr(host_module, "KILL_SECONDS", 200.0)
    async with started(naughty_hosts(2, own="sleeps")) as hosts:
        assert group_of(hosts, "own")._count == 1
        pids = await pids_at_once(hosts, tmp_path, "own", 2)
        assert len(pids) == 2
        await eventually(lambda: sum(not is_gone(pid) for pid in pids) == 1)
        await eventually(lambda: group_of(hosts, "own")._count == 1)
        assert (await pids_at_once(hosts, tmp_path / "again", "own", 1)) <= pids  # the one that was left
        assert hosts.restarts == 0


async def test_a_process_of_its_own_that_dies_is_replaced_and_shared_ones_go_on() -> None:
    """PRICED-118"""
    async with started(naughty_hosts(1, own="leaves")) as hosts:
        for _ in range(2):
            process = await hosts.reserve_process()
            outcome = await (await process.begin(call("own"))).outcome()
            assert outcome == Faulted("the pack's process ended with exit status 3")
            process.leave()
        assert hosts.restarts == 2
        assert hosts._shared is not None
        assert hosts._shared.restarts == 0
        assert (await data_of(hosts, call("tells")))["run_id"]
        await eventually(lambda: len(group_of(hosts, "own")._idle) == 1)


async def test_without_shared_packs_there_are_seats_all_the_same() -> None:
    async with started(PackHosts(1, 0, [spec("own", executor="tells")], PackConfig(), naughty_packs.LOADER)) as hosts:
        assert hosts.packs == {"own"}
        assert len(pack_processes()) == 1
        assert (await data_of(hosts, call("own")))["inputs"] == {}


async def test_a_seat_that_is_left_while_it_waits_holds_nothing() -> None:
    async with started(naughty_hosts(1, own="tells")) as hosts:
        group = group_of(hosts, "own")
        only = await group.take()
        process = await hosts.reserve_process()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await process.begin(call("own"))
        process.leave()
        group.take_back(only)
        assert (await data_of(hosts, call("own")))["pid"] == inner(only).pid
        assert (await data_of(hosts, call("tells")))["pid"] != inner(only).pid
