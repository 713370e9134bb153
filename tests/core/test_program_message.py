"""The message of a job: what is written can be read back, and what cannot be a job is refused without repeating it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyoco_server.core.programs.budget import retry_delay_seconds
from pyoco_server.core.programs.job import (
    InlineInputs,
    InputFile,
    JobAsk,
    ObjectInputs,
    files_of,
    fingerprint,
    job_of,
    to_message,
    without_delivery_terms,
)
from pyoco_server.core.programs.message import decode_job, read_job
from pyoco_server.core.programs.tails import TAIL_BYTES, cut, tail_of
from pyoco_server.errors import InvalidJob
from support.grid.stores import a_job

DIGEST = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
ID = "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01"
JOB = a_job("default", run_id=ID, job_id=ID, inputs=InlineInputs({"in.txt": "aGVsbG8K"}), args=("--n", "3", "日本語"))
STORED = ObjectInputs("r/in-0.zip", 300, "a" * 64, (InputFile("in.txt", 6, DIGEST),))


def sent(**members: Any) -> bytes:
    return json.dumps({**to_message(JOB), **members}).encode()


class TestReading:
    @pytest.mark.parametrize(
        "job",
        [
            JOB,
            a_job("default", inputs=STORED, timeout_sec=1.5, tenant_id="t", api_key_id="k", retry_of=JOB.run_id),
            a_job("default", revision=17, max_attempts=5),
        ],
        ids=["inline", "object", "hints"],
    )
    def test_what_was_written_is_read_back(self, job: Any) -> None:
        """GRID-52"""
        assert decode_job(json.dumps(to_message(job)).encode()) == job

    def test_it_has_the_members_of_the_contract(self) -> None:
        """GRID-52"""
        names = "v run_id job_id group exec_name client_id args timeout_sec inputs tenant_id api_key_id submitted_at"
        assert to_message(JOB).keys() == {*names.split(), "fingerprint", "retry_of"}

    def test_members_that_nobody_knows_are_passed_over(self) -> None:
        assert decode_job(sent(colour="blue")) == JOB

    @pytest.mark.parametrize("hint", [-1, 0, 1.5, "17", True, [], 2**64])
    def test_a_hint_that_cannot_be_one_is_none(self, hint: object) -> None:
        assert decode_job(sent(revision=hint, max_attempts=hint)) == JOB

    def test_the_record_holds_it_without_hints(self) -> None:
        hinted = read_job(to_message(JOB) | {"revision": 4, "max_attempts": 5})
        assert without_delivery_terms(hinted) == JOB

    @pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"null", b'"x"', b'{"v":NaN}', b"[" * 5000])
    def test_what_is_no_json_object_is_no_job(self, data: bytes) -> None:
        """GRID-53"""
        with pytest.raises(InvalidJob) as caught:
            decode_job(data)
        assert caught.value.run_id is None

    @pytest.mark.parametrize(
        "members",
        [
            {"v": 2},
            {"v": True},
            {"v": None},
            {"run_id": "00000000-0000-4000-8000-000000000001"},
            {"run_id": None},
            {"job_id": ID.upper()},
            {"job_id": "x"},
            {"job_id": 5},
            {"group": "a.b"},
            {"group": None},
            {"exec_name": "-x"},
            {"exec_name": ["x"]},
            {"client_id": "a*"},
            {"client_id": "x" * 65},
            {"args": "x"},
            {"args": [1]},
            {"args": ["x"] * 257},
            {"args": ["a\0b"]},
            {"args": None},
            {"timeout_sec": 0},
            {"timeout_sec": "7"},
            {"timeout_sec": True},
            {"timeout_sec": 90_000},
            {"inputs": None},
            {"inputs": {"mode": "carrier pigeon"}},
            {"inputs": {"mode": "inline"}},
            {"inputs": {"mode": "inline", "files": {"../x": ""}}},
            {"inputs": {"mode": "inline", "files": {"x": "not base64!"}}},
            {"inputs": {"mode": "inline", "files": {"x": 5}}},
            {"inputs": {"mode": "inline", "files": {"a": "", "A": ""}}},
            {"inputs": {"mode": "object", "object": "o", "size": 1, "sha256": "a" * 64}},
            {"inputs": {"mode": "object", "object": "", "size": 1, "sha256": "a" * 64, "files": []}},
            {"inputs": {"mode": "object", "object": "o", "size": -1, "sha256": "a" * 64, "files": []}},
            {"inputs": {"mode": "object", "object": "o", "size": 1, "sha256": "A" * 64, "files": []}},
            {"inputs": {"mode": "object", "object": "o", "size": 1, "sha256": "a" * 64, "files": [["x", 1]]}},
            {"inputs": {"mode": "object", "object": "o", "size": 1, "sha256": "a" * 64, "files": [["x", "1", DIGEST]]}},
            {"submitted_at": "now"},
            {"submitted_at": 1e300},
            {"submitted_at": None},
            {"fingerprint": "abc"},
            {"fingerprint": 7},
            {"tenant_id": 7},
            {"api_key_id": ""},
            {"retry_of": ["x"]},
        ],
        ids=str,
    )
    def test_a_member_that_cannot_be_makes_it_no_job(self, members: dict[str, Any]) -> None:
        """GRID-53"""
        with pytest.raises(InvalidJob):
            decode_job(sent(**members))

    def test_the_run_is_told_when_it_can_be_read(self) -> None:
        with pytest.raises(InvalidJob) as caught:
            decode_job(sent(args=7))
        assert caught.value.run_id == JOB.run_id

    @settings(deadline=None)  # a busy machine is no fault
    @given(st.text(min_size=20, max_size=40))
    def test_nothing_of_its_content_is_repeated(self, secret: str) -> None:
        """GRID-169"""
        for members in ({"args": [secret, 7]}, {"inputs": {"mode": "inline", "files": {secret: secret}}}):
            with pytest.raises(InvalidJob) as caught:
                decode_job(sent(**members, exec_name="-"))
            assert secret not in str(caught.value)

    @settings(deadline=None)  # a busy machine is no fault
    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
    def test_any_value_for_any_member_is_a_job_or_refused(self, value: Any) -> None:
        """GRID-195"""
        for name in to_message(JOB):
            try:
                decode_job(sent(**{name: value}))
            except InvalidJob:
                continue

    def test_a_job_has_the_files_that_its_fingerprint_was_made_of(self) -> None:
        """GRID-24: the test value of the contract"""
        ask = JobAsk(
            job_id="6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01",
            group="default",
            client_id="clientA",
            exec_name="calcA",
            args=("--n", "3"),
            files=(InputFile("in.txt", 6, DIGEST),),
        )
        job = job_of(ask, InlineInputs({"in.txt": "aGVsbG8K"}), 1.0)
        assert files_of(job) == ask.files
        assert job.fingerprint == fingerprint(ask)
        assert job.fingerprint == "10a2a64f110d162c734ba4f191da1e6c175b9a8db8c25f53aff33e8178bdbfd1"


class TestDelays:
    @pytest.mark.parametrize(("failed", "delay"), [(1, 1), (2, 2), (3, 4), (4, 8), (6, 32), (7, 60), (5000, 60)])
    def test_they_double_up_to_a_minute_within_a_fifth(self, failed: int, delay: float) -> None:
        """GRID-79"""
        assert retry_delay_seconds(failed, 0.5) == pytest.approx(delay)
        assert retry_delay_seconds(failed, 0.0) == pytest.approx(delay * 0.8)
        assert retry_delay_seconds(failed, 1.0) == pytest.approx(delay * 1.2)


class TestTails:
    def test_what_is_short_is_whole(self) -> None:
        """GRID-145"""
        assert tail_of(b"x" * TAIL_BYTES) == "x" * TAIL_BYTES

    def test_the_end_is_kept(self) -> None:
        """GRID-151"""
        assert tail_of(b"a" + b"x" * TAIL_BYTES + b"end") == "x" * (TAIL_BYTES - 3) + "end"

    def test_a_character_that_was_cut_is_dropped_and_no_other(self) -> None:
        text = "日" * 4000
        tail = tail_of(text.encode())
        assert set(tail) == {"日"}
        assert len(tail) == TAIL_BYTES // 3

    def test_what_is_no_text_is_replaced(self) -> None:
        assert tail_of(b"a\xff\xfeb") == "a\ufffd\ufffdb"
        assert tail_of(b"\x80" * 9000) == "\ufffd" * (TAIL_BYTES - 3)

    @settings(deadline=None)  # a busy machine is no fault
    @given(st.binary(max_size=300), st.integers(4, 64))
    def test_any_bytes_have_a_tail_that_fits(self, data: bytes, size: int) -> None:
        assert len(tail_of(data, size)) <= size
        shortened = cut(data.decode("utf-8", "replace"), size)
        assert shortened is not None
        assert len(shortened.encode()) <= max(size, 0)
