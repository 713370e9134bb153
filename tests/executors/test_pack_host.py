"""Pack processes: whatever a pack does, it costs its own run and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import pytest_asyncio

from pyoco_server.core.packs import PACKS
from pyoco_server.core.priced.envelope import BadPackResult, Cover, seal
from pyoco_server.errors import UsageError
from pyoco_server.executors.host.wire import CANCEL, number
from pyoco_server.executors.packs import host as host_module
from pyoco_server.executors.packs import wire
from pyoco_server.executors.packs.child import Child
from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.executors.packs.port import Call, Executed, Execution, Faulted, Outcome, PackError, Stopped, TimedOut
from pyoco_server.pack_config import PackConfig
from pyoco_server.wiring_packs import LOADER
from support.priced import naughty_packs
from support.priced.pack_scenes import naughty_hosts, pack_processes
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

TESTS = Path(__file__).parents[1]
MARKER = "marker-7a1f"
COVER = Cover(
    run_id="r",
    pack_type="decision",
    trace_id="t_1",
    profile_version="1",
    prefix="dpp/acme",
    generated_at="2026-02-13T00:00:00Z",
    reserved_usd_micros=250_000,
    charge_usd_micros=7,
    minimum_fee_usd_micros=5_000,
    min_reliability_e4=0,
)


def call(pack_type: str, inputs: dict[str, Any] | None = None, timebox_seconds: float = 200.0) -> Call:
    return Call(
        pack_type=pack_type,
        inputs=inputs or {},
        run_id=str(uuid.uuid4()),
        tenant_id="acme",
        trace_id="t_1",
        timebox_seconds=timebox_seconds,
        min_reliability_e4=8123,
        artifacts={"include_markdown": True},
    )


@pytest.fixture(scope="module", autouse=True)
def _naughty() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        yield


@contextlib.asynccontextmanager
async def opened(slots: int = 1, memory_bytes_max: int = 2 << 30) -> AsyncIterator[PackHosts]:
    hosts = naughty_hosts(slots, memory_bytes_max)
    try:
        await hosts.start()
        yield hosts
    finally:
        await hosts.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[PackHosts]:
    async with opened() as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def hosts(pool: PackHosts) -> AsyncIterator[PackHosts]:
    """The same for all tests: two processes, one of them the spare, that have nothing to do. Whoever loses some leaves
    it as it was when new ones have taken their place."""
    await eventually(lambda: is_whole(pool))
    assert pool._shared is not None
    pool._shared.restarts = 0
    yield pool
    await eventually(lambda: is_whole(pool))


@pytest.fixture
def others(hosts: PackHosts) -> set[psutil.Process]:
    """The processes that are there already, and stay."""
    return set(pack_processes())


def is_whole(pool: PackHosts) -> bool:
    group = pool._shared
    assert group is not None
    is_ready = not group._tasks and len(group._hosts) == len(group._idle) == 2
    return is_ready and all(host.is_alive for host in group._hosts)


@contextlib.asynccontextmanager
async def begun(hosts: PackHosts, what: Call) -> AsyncIterator[Execution]:
    async with asyncio.timeout(100):
        seat = await hosts.seat()
    execution = await seat.begin(what)
    try:
        yield execution
    finally:
        seat.leave()


async def outcome_of(hosts: PackHosts, what: Call) -> Outcome:
    async with asyncio.timeout(100), begun(hosts, what) as execution:
        return await execution.outcome()


async def still_works(hosts: PackHosts) -> None:
    for _ in range(2):
        assert isinstance(await outcome_of(hosts, call("tells")), Executed)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def pid_in(path: Path) -> int:
    await eventually(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


async def test_a_pack_is_told_all_of_its_run_and_its_result_comes_back_whole(hosts: PackHosts) -> None:
    """PRICED-114: the interface of 14.1."""
    what = call("tells", {"question": "ü\u2028", "n": [1, 0.5, None]})
    outcome = await outcome_of(hosts, what)
    assert isinstance(outcome, Executed)
    result, told = outcome.result, dict(outcome.result.data)
    assert 100 < told.pop("seconds_left") <= 200
    assert told.pop("pid") != os.getpid()
    del told["environment"], told["arguments"]
    assert told == {
        "inputs": what.inputs,
        "run_id": what.run_id,
        "tenant_id": "acme",
        "trace_id": "t_1",
        "min_reliability_score": 0.8123,
        "artifacts": {"include_markdown": True},
        "is_cancelled": False,
    }
    assert [(each.name, each.content_type, each.data) for each in result.artifacts] == [
        ("a.md", "text/markdown", b"# a"),
        ("b.bin", "application/octet-stream", bytes(range(256))),
    ]
    assert (result.actual_cost_usd_micros, result.tokens_consumed, result.reliability_score) == (7, 3, 0.5)
    assert (result.discard_log, result.blocked_log) == ([{"url": "u", "reason": "r"}], [])
    assert result.meta == {"how": ["slowly", 1]}


class TestAPackThatFails:
    @pytest.mark.parametrize(
        ("pack_type", "detail"),
        [
            ("refuses", "PAGE_UNREADABLE: page 3 cannot be read"),
            ("raises", "the pack raised ValueError"),
            ("exits", "the pack raised SystemExit"),
        ],
    )
    async def test_is_told_by_its_code_or_its_type(self, hosts: PackHosts, pack_type: str, detail: str) -> None:
        """PRICED-118, PRICED-171"""
        outcome = await outcome_of(hosts, call(pack_type, {"question": MARKER}))
        assert isinstance(outcome, Faulted)
        assert outcome.detail == detail
        assert MARKER not in repr(outcome)
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_by_a_defect_names_the_place_for_the_log(self, hosts: PackHosts) -> None:
        outcome = await outcome_of(hosts, call("raises"))
        assert isinstance(outcome, Faulted)
        assert outcome.where is not None
        assert outcome.where.startswith("naughty_packs.py:")
        assert outcome.where.endswith(" in raises")

    @pytest.mark.parametrize(
        ("pack_type", "detail"),
        [
            ("is_killed", "the pack's process ended by SIGKILL"),
            ("crashes", "the pack's process ended by SIGSEGV"),
            ("leaves", "the pack's process ended with exit status 3"),
            ("writes_rubbish", "the pack's process sent what nobody can read"),
        ],
    )
    async def test_with_its_process_is_replaced(self, hosts: PackHosts, pack_type: str, detail: str) -> None:
        assert await outcome_of(hosts, call(pack_type)) == Faulted(detail)
        await still_works(hosts)
        assert hosts.restarts == 1

    async def test_with_closed_lines_does_not_live_on(self, hosts: PackHosts) -> None:
        before = pack_processes()
        assert await outcome_of(hosts, call("closes_its_lines")) == Faulted("the pack's process ended by SIGKILL")
        assert sum(not each.is_running() for each in before) == 1
        await still_works(hosts)

    async def test_for_want_of_memory_costs_its_own_run(self) -> None:
        async with opened(memory_bytes_max=1 << 28) as hosts:
            outcome = await outcome_of(hosts, call("eats_memory"))
            assert isinstance(outcome, Faulted)
            assert outcome.detail == "the pack raised MemoryError"
            await still_works(hosts)

    async def test_and_holds_much_memory_takes_no_other_along(self) -> None:
        """PRICED-118: its process says that it goes, and the next call, which would pay for that, goes to another."""
        async with opened(memory_bytes_max=600 << 20) as hosts:
            await eventually(lambda: is_whole(hosts))
            faulted, following = [await outcome_of(hosts, call(each)) for each in ("keeps_much", "tells")]
            assert faulted == Faulted("TOO_MUCH: with all of it still in hand")
            assert isinstance(following, Executed), following
            assert hosts.restarts == 1


class TestTheNextCall:
    @pytest.mark.parametrize("pack_type", ["goes_away", "sets_an_alarm", "rounds", "captures_its_streams"])
    async def test_finds_what_the_first_one_found(self, hosts: PackHosts, pack_type: str) -> None:
        found = [await outcome_of(hosts, call(each)) for each in ("finds", pack_type, "finds")]
        first, _, last = [each.result.data for each in found if isinstance(each, Executed)]
        assert first == last
        assert (first["cwd"], first["alarm"]) == (str(Path.cwd()), 0.0)
        assert hosts.restarts == 0

    @pytest.mark.parametrize("pack_type", ["closes_its_streams", "diverts_its_streams"])
    async def test_finds_the_standard_streams_open(self, hosts: PackHosts, tmp_path: Path, pack_type: str) -> None:
        """PRICED-171: and what it prints goes nowhere."""
        to = tmp_path / "printed"
        found = [await outcome_of(hosts, call(each, {"to": str(to)})) for each in (pack_type, "finds")]
        assert all(isinstance(each, Executed) for each in found), found
        assert not to.exists() or to.read_text() == ""
        assert hosts.restarts == 1


class TestAResult:
    @pytest.mark.parametrize("what", naughty_packs.WRONG)
    async def test_of_the_wrong_type_is_the_packs_fault(self, what: str) -> None:
        """In this process: what a pack returns is packed there, and believed by nobody here."""
        outcome = wire.unpack_answer(wire.pack_answer(Executed(naughty_packs.WRONG[what]())))
        assert isinstance(outcome, Faulted)
        assert outcome.detail.startswith("the pack returned ")

    async def test_of_the_wrong_type_leaves_the_process_as_it_was(self, hosts: PackHosts) -> None:
        assert isinstance(await outcome_of(hosts, call("returns_wrong", {"what": "a negative cost"})), Faulted)
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_that_is_too_large_is_the_packs_fault(self, hosts: PackHosts) -> None:
        assert await outcome_of(hosts, call("returns_64_mib")) == Faulted("the pack returned more than 32 MiB")
        await still_works(hosts)

    async def test_that_is_large_comes_back_whole(self, hosts: PackHosts) -> None:
        outcome = await outcome_of(hosts, call("returns_9_mib"))
        assert isinstance(outcome, Executed)
        assert len(outcome.result.data["text"]) == 8 << 20
        assert outcome.result.artifacts[0].data == bytes(1 << 20)

    async def test_may_be_as_large_as_can_be_told(self, hosts: PackHosts) -> None:
        outcome = await outcome_of(hosts, call("returns_32_mib"))
        assert isinstance(outcome, Executed)
        assert outcome.size_bytes == wire.ANSWER_BYTES_MAX

    @pytest.mark.parametrize("what", ["data", "name", "log", "meta", "artifact", "type"])
    async def test_that_holds_half_a_character_cannot_be_stored(self, what: str) -> None:
        """PRICED-118: whoever writes to the line by himself is not kept from that; the run fails, and does not hang."""
        head = {
            "data": {"n": "\ud800"} if what == "data" else {"\ud800": 1} if what == "name" else {},
            "actual_cost_usd_micros": 7,
            "tokens_consumed": 0,
            "reliability_score": None,
            "discard_log": [{"url": "\ud800"}] if what == "log" else [],
            "blocked_log": [],
            "meta": {"n": "\ud800"} if what == "meta" else {},
            "artifacts": [
                {
                    "name": "\ud800" if what == "artifact" else "a",
                    "content_type": "a/\x00b" if what == "type" else "a/b",
                    "bytes": 0,
                }
            ],
        }
        text = json.dumps(head).encode()
        answer = wire.unpack_answer(struct.pack("<I", len(text)) + text)
        assert isinstance(answer, Executed)
        with pytest.raises(BadPackResult):
            seal(COVER, answer.result)

    @pytest.mark.parametrize(
        "name", ["data", "actual_cost_usd_micros", "tokens_consumed", "reliability_score", "discard_log", "meta"]
    )
    async def test_that_lacks_a_member_is_the_packs_fault(self, name: str) -> None:
        """PRICED-118: as above."""
        packed = wire.pack_answer(Executed(naughty_packs.result()))
        head = json.loads(packed[4:])
        del head[name]
        text = json.dumps(head).encode()
        assert isinstance(wire.unpack_answer(struct.pack("<I", len(text)) + text), Faulted)

    async def test_of_a_fault_is_told_in_plain_text(self) -> None:
        """PRICED-118"""
        text = json.dumps({"fault": "X: a\x00b\ud800\nc", "where": "odd\x00.py:1 in \udfff"}).encode()
        packed = struct.pack("<I", len(text)) + text
        assert wire.unpack_answer(packed) == Faulted("X: ab\ufffd c", "odd.py:1 in \ufffd")

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"abc", b"\xff\0\0\0", b"\x02\0\0\0[]", b"\x04\0\0\0null", b"\x02\0\0\0{}", b"\x02\0\0\0{}more",
            b"\x05\0\0\0\xff\xff\xff\xff\xff", b'\x0d\0\0\0{"fault":123}  ', b"\x09\0\0\0[[[[[[[[[",
            b'\x12\0\0\0{"artifacts":[{}]}', b'\x10\0\0\0{"artifacts":[]}more', b'\x10\0\0\0{"artifacts":1} ',
            b'\x1b\0\0\0{"artifacts":[{"bytes":1}]}', b'\x1c\0\0\0{"artifacts":[{"bytes":-1}]}',
            b'\x0b\0\0\0{"data":NaN}',
        ],
    )  # fmt: skip
    async def test_that_is_no_answer_at_all_is_refused(self, body: bytes) -> None:
        with pytest.raises(ValueError):
            wire.unpack_answer(body)


class TestTheTimebox:
    async def test_ends_a_pack_that_minds(self, hosts: PackHosts, monkeypatch: pytest.MonkeyPatch) -> None:
        """PRICED-124: the result of a pack that is cancelled is none, and its process lives."""
        monkeypatch.setattr(host_module, "KILL_SECONDS", 200.0)
        began = time.monotonic()
        assert await outcome_of(hosts, call("answers_late", timebox_seconds=0.2)) == TimedOut()
        assert 0.2 <= time.monotonic() - began < 50  # by itself it would answer after 60 s
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_ends_a_pack_that_does_not_mind(
        self, hosts: PackHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-124: killed 5 s after its cancel, and not before. Here it is one second."""
        assert host_module.KILL_SECONDS == 5
        monkeypatch.setattr(host_module, "KILL_SECONDS", 1.0)
        began = time.monotonic()
        what = call("ignores_cancel", {"begun": str(tmp_path / "begun")}, timebox_seconds=0.2)
        assert await outcome_of(hosts, what) == TimedOut()
        assert 1.1 <= time.monotonic() - began < 50  # by itself it would end after 60 s
        assert is_gone(await pid_in(tmp_path / "begun"))
        assert hosts.restarts == 1

    async def test_kills_what_the_pack_has_started(
        self, hosts: PackHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host_module, "KILL_SECONDS", 0.1)
        for seconds in (1.0, 5.0, 25.0):  # a busy machine may need longer to start the child
            what = call("leaves_a_child", {"begun": str(tmp_path / "begun")}, timebox_seconds=seconds)
            assert await outcome_of(hosts, what) == TimedOut()
            if (tmp_path / "begun").exists():
                break
        pid = await pid_in(tmp_path / "begun")
        await eventually(lambda: is_gone(pid))

    async def test_does_not_touch_a_pack_that_has_answered(self, hosts: PackHosts) -> None:
        outcomes: list[Outcome] = []
        while sum(isinstance(each, Executed) for each in outcomes) < 5:
            outcomes.append(await outcome_of(hosts, call("tells", timebox_seconds=0.2)))
            assert len(outcomes) < 50  # on a busy machine some come too late
        seat = await hosts.seat()
        await asyncio.sleep(0.25)  # the timeboxes of the earlier calls end here
        execution = await seat.begin(call("sleeps", {"seconds": 0.1}))
        assert isinstance(await execution.outcome(), Executed)
        seat.leave()


class TestStopping:
    async def test_a_call_asks_the_pack_first(self, hosts: PackHosts, monkeypatch: pytest.MonkeyPatch) -> None:
        """PRICED-123"""
        monkeypatch.setattr(host_module, "KILL_SECONDS", 200.0)
        for _ in range(5):  # the cancel may be there before the call, or after it
            async with begun(hosts, call("sleeps")) as execution:
                execution.cancel()
                execution.cancel()
                assert await execution.outcome() == Stopped()
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_a_call_for_good_is_at_once(self, hosts: PackHosts, tmp_path: Path) -> None:
        """PRICED-125"""
        async with begun(hosts, call("ignores_cancel", {"begun": str(tmp_path / "begun")})) as execution:
            pid = await pid_in(tmp_path / "begun")
            execution.kill()
            assert await execution.outcome() == Stopped()
            assert is_gone(pid)
        await still_works(hosts)

    async def test_a_seat_that_is_left_kills_what_runs_on_it(self, hosts: PackHosts, tmp_path: Path) -> None:
        async with begun(hosts, call("ignores_cancel", {"begun": str(tmp_path / "begun")})) as execution:
            pid = await pid_in(tmp_path / "begun")
        assert await execution.outcome() == Stopped()
        assert is_gone(pid)
        await still_works(hosts)

    async def test_the_pool_is_no_fault_of_the_pack(self, others: set[psutil.Process], tmp_path: Path) -> None:
        what = call("ignores_cancel", {"begun": str(tmp_path / "begun")})
        async with opened() as hosts, begun(hosts, what) as execution:
            pid = await pid_in(tmp_path / "begun")
            await hosts.stop()
            assert await execution.outcome() == Stopped()
            assert is_gone(pid)
        assert set(pack_processes()) == others

    async def test_and_starting_may_be_repeated_and_at_once(self, others: set[psutil.Process]) -> None:
        hosts = naughty_hosts(2)
        await hosts.stop()
        await asyncio.gather(hosts.start(), hosts.start(), hosts.stop(), hosts.start())
        await still_works(hosts)
        await asyncio.gather(hosts.stop(), hosts.stop())
        assert set(pack_processes()) == others


async def test_a_process_that_died_while_it_waited_costs_no_run(hosts: PackHosts) -> None:
    seat = await hosts.seat()
    for child in pack_processes():
        child.kill()
        child.wait(60)
    waiting = seat._host
    assert waiting is not None
    await eventually(lambda: not waiting.is_alive)
    async with asyncio.timeout(100):
        execution = await seat.begin(call("tells"))
        assert isinstance(await execution.outcome(), Executed)
    seat.leave()
    await still_works(hosts)


@pytest.mark.parametrize("end", [None, ConnectionResetError(), MemoryError()])
async def test_a_process_that_no_longer_hears_its_worker_goes(
    monkeypatch: pytest.MonkeyPatch, end: BaseException | None
) -> None:
    """PRICED-125: also one whose pack has used up the memory that listening takes. It would outlive its worker."""
    ends = list[bool]()
    monkeypatch.setattr("pyoco_server.executors.packs.child.end_all", lambda: ends.append(True))
    control = Mock(receive=Mock(side_effect=[CANCEL + number(0), end]))
    child = Child(Mock(), control)
    with contextlib.suppress(ConnectionResetError, MemoryError):
        child._listen()
    assert ends == [True]
    assert child._cancelled.is_set()


async def test_packs_that_cannot_be_loaded_stop_the_worker(others: set[psutil.Process]) -> None:
    hosts = PackHosts(1, 0, PACKS.values(), PackConfig(), "no_such_module:executors")
    with pytest.raises(UsageError, match="no_such_module"):
        await hosts.start()
    assert set(pack_processes()) == others


async def test_the_packs_of_the_product_are_executed() -> None:
    hosts = PackHosts(1, 0, [PACKS["decision"]], PackConfig(), LOADER)
    await hosts.start()
    try:
        assert hosts.packs == {"decision"}
        assert isinstance(await outcome_of(hosts, call("decision", {"question": "Shall we?"})), Executed)
    finally:
        await hosts.stop()


async def test_the_code_of_a_pack_error_is_a_word_for_programs() -> None:
    for code in ("", "lower", "A B", "Ä", "A" * 65, "A\n"):
        with pytest.raises(ValueError, match="PAGE_UNREADABLE"):
            PackError(code, "")
