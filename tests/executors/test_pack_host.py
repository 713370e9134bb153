"""Pack processes: whatever a pack does, it costs its own run and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from pathlib import Path

import pytest
import uvloop

from pyoco_server.config.packs import PackConfig
from pyoco_server.core.packs import PACKS
from pyoco_server.core.priced.envelope import BadPackResult, Cover, seal
from pyoco_server.executors.packs import wire
from pyoco_server.executors.packs.pool import PackHosts
from pyoco_server.executors.packs.port import Executed, Faulted, Outcome, PackError
from pyoco_server.wiring.packs import LOADER
from support.priced import naughty_packs
from support.priced.pack_hosts import call, hosts, is_whole, naughty, opened, outcome_of, pool, still_works
from support.priced.pack_scenes import pack_processes
from support.waiting import eventually

__all__ = ["hosts", "naughty", "pool"]

pytestmark = pytest.mark.asyncio(loop_scope="module")
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


async def test_a_pack_is_told_all_of_its_run_and_its_result_comes_back_whole(hosts: PackHosts) -> None:
    """PRICED-114: the interface of 14.1; SAFE-2"""
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
        "reserved_usd_micros": 250_000,
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


async def test_what_a_pack_starts_has_three_descriptors_also_under_uvloop() -> None:
    """SAFE-8: uvloop, which services use, hands down copies of the service's own streams"""

    async def run() -> Outcome:
        async with opened() as hosts:
            return await outcome_of(hosts, call("tells_descriptors"))

    outcome = await asyncio.to_thread(uvloop.run, run())
    assert isinstance(outcome, Executed), outcome
    assert dict(outcome.result.data) == {"descriptors": ["0", "1", "2", "3"]}


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
            ("writes_rubbish", "the pack's process sent an invalid message"),
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
