"""Payloads that break a rule, and the error code of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyoco_server.core.frames import reading
from pyoco_server.core.frames.messages import (
    CancelJob,
    CreditGrant,
    ErrorMessage,
    Heartbeat,
    HelloAck,
    HelloClient,
    HelloWorker,
    JobRequest,
    JobResult,
    NotLeader,
    ObjectAck,
    ObjectGet,
    RunningJob,
    Settled,
    SubmitAck,
)
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.states import RunState
from support.grid.frame_messages import JOB, REFUSED, RESULT, changed, refusal

BAD_JSON = [
    b"",
    b"\xff{}",
    b"\xef\xbb\xbf{}",  # a byte order mark
    '{"a":1}'.encode("utf-16"),
    b"no",
    b"[]",
    b"4",
    b'"text"',
    b"null",
    b"{} {}",
    b'{"a":1,}',
    b"{'a':1}",
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":-Infinity}',
    b'{"a":1,"a":1}',
    b'{"x":[{"a":1,"b":2,"a":3}]}',
    b'{"a":' + b"[" * 32 + b"]" * 32 + b"}",
    b'{"a":' * 33 + b"1" + b"}" * 33,
    b'{"a":' + b"[" * 100_000,
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":' + b"1" * 5_000 + b"}",
    b'{"a":"\n"}',
]


@pytest.mark.parametrize("payload", BAD_JSON, ids=lambda each: repr(each[:24]))
def test_what_is_not_strict_json_is_bad_json(payload: bytes) -> None:
    """GRID-196: any JSON."""
    assert refusal(SubmitAck, payload).code is Code.BAD_JSON


def test_thirty_two_levels_are_not_too_deep() -> None:
    """GRID-196"""
    assert reading.read_object(b'{"a":' + b"[" * 31 + b"]" * 31 + b"}")
    assert reading.read_object(b'{"a":[' + b",".join([b"[]"] * 500) + b"]}")


_WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (HelloAck(door_id="d", group="g", session="s"), {"DoorId": ...}, "DoorId"),
    (HelloAck(door_id="d", group="g", session="s"), {"Doors": "x"}, "Doors"),
    (HelloAck(door_id="d", group="g", session="s"), {"Doors": [1]}, "Doors"),
    (HelloAck(door_id="d", group="g", session="s"), {"MaxFrame": "4"}, "MaxFrame"),
    (NotLeader(reason="draining", group="g"), {"Reason": "tired"}, "Reason"),
    (NotLeader(reason="draining", group="g"), {"RetryAfterMs": -1}, "RetryAfterMs"),
    (NotLeader(reason="draining", group="g"), {"RetryAfterMs": 4.0}, "RetryAfterMs"),
    (NotLeader(reason="draining", group="g"), {"Leader": 5}, "Leader"),
    (ErrorMessage(code="X", message="m"), {"Retry": 0}, "Retry"),
    (ErrorMessage(code="X", message="m"), {"Message": "m" * 513}, "Message"),
    (ErrorMessage(code="X", message="m"), {"Code": None}, "Code"),
    (Heartbeat((RunningJob(JOB, "t"),)), {"Running": {}}, "Running"),
    (Heartbeat((RunningJob(JOB, "t"),)), {"Running": [7]}, "Running"),
    (Heartbeat((RunningJob(JOB, "t"),)), {"Running": [{"JobId": JOB}]}, "Token"),
    (Heartbeat((RunningJob(JOB, "t"),)), {"Running": [{"JobId": JOB, "Token": "t"}] * 20_001}, "Running"),
    (Heartbeat((RunningJob(JOB, "t"),)), {"Cpu": 1.5}, "Cpu"),
    (Heartbeat((RunningJob(JOB, "t"),)), {"Cpu": True}, "Cpu"),
    (Heartbeat((RunningJob(JOB, "t"),)), {"Running": ...}, "Running"),
    (SubmitAck(job_id=JOB, run_id="r", status=RunState.PENDING, duplicate=False), {"Status": "NEW"}, "Status"),
    (SubmitAck(job_id=JOB, run_id="r", status=RunState.PENDING, duplicate=False), {"Duplicate": "no"}, "Duplicate"),
    (Settled(job_id=JOB, token="t", outcome="stale"), {"Outcome": "fine"}, "Outcome"),
    (Settled(job_id=JOB, token="t", outcome="stale"), {"Token": "t" * 65}, "Token"),
    (CancelJob(job_id=JOB), {"Reason": 4}, "Reason"),
    (ObjectGet(job_id=JOB, name="n"), {"Offset": -1}, "Offset"),
    (ObjectGet(job_id=JOB, name="n"), {"Offset": True}, "Offset"),
    (ObjectGet(job_id=JOB, name="n"), {"Name": "n" * 256}, "Name"),
    (ObjectAck(job_id=JOB, name="n", received=1), {"Received": 2**63}, "Received"),
    (ObjectAck(job_id=JOB, name="n", received=1), {"Done": None}, "Done"),
    (RESULT, {"Status": "RUNNING"}, "Status"),
    (RESULT, {"Status": ["COMPLETED"]}, "Status"),
    (RESULT, {"Stdout": None}, "Stdout"),
    (RESULT, {"Stdout": "\ud800"}, "Stdout"),
    (RESULT, {"OutputArchive": "YQ"}, "OutputArchive"),
    (RESULT, {"OutputArchive": "YQ==YQ=="}, "OutputArchive"),
    (RESULT, {"OutputArchive": "Y Q="}, "OutputArchive"),
    (RESULT, {"OutputArchive": "é"}, "OutputArchive"),
    (RESULT, {"OutputArchive": 7}, "OutputArchive"),
    (RESULT, {"OutputRef": "x"}, "OutputRef"),
    (RESULT, {"OutputRef": {"Bucket": "b"}}, "Object"),
    (RESULT, {"ExitCode": 1.0}, "ExitCode"),
    (RESULT, {"ErrorCode": "TIRED"}, "ErrorCode"),
    (RESULT, {"StdoutTruncated": 1}, "StdoutTruncated"),
    (RESULT, {"Attempt": "1"}, "Attempt"),
    (RESULT, {"StartedAt": "now"}, "StartedAt"),
    (RESULT, {"ClientId": "a.b"}, "ClientId"),
]


@pytest.mark.parametrize(("message", "changes", "field"), _WRONG)
def test_a_member_that_breaks_its_rule_is_named(message: Any, changes: dict[str, Any], field: str) -> None:
    """GRID-196, GRID-197: missing, of the wrong type, out of range."""
    error = refusal(type(message), changed(message, **changes))
    assert (error.code, error.field) == (Code.BAD_SCHEMA, field)
    assert field in error.message


def test_a_number_that_becomes_infinite_is_refused() -> None:
    """GRID-196"""
    payload = RESULT.to_payload().replace(b'"StartedAt":null', b'"StartedAt":1e999')
    assert refusal(JobResult, payload).field == "StartedAt"


REQUESTED = JobRequest(job_id=JOB, client_id="clientA", exec_name="calcA")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"JobId": "x"}, Code.BAD_JOB_ID),
        ({"JobId": ...}, Code.BAD_SCHEMA),
        ({"JobId": 7}, Code.BAD_SCHEMA),
        ({"JobId": "00000000-0000-0000-0000-000000000000"}, Code.BAD_JOB_ID),
        ({"JobId": "{" + JOB + "}"}, Code.BAD_JOB_ID),
        ({"JobId": JOB.replace("-", "")}, Code.BAD_JOB_ID),
        ({"ClientId": "a b"}, Code.BAD_SCHEMA),
        ({"ClientId": ...}, Code.BAD_SCHEMA),
        ({"ExecName": "-rf"}, Code.BAD_EXEC_NAME),
        ({"ExecName": "計算"}, Code.BAD_EXEC_NAME),
        ({"ExecName": "a.b"}, Code.BAD_EXEC_NAME),
        ({"ExecName": None}, Code.BAD_SCHEMA),
        ({"Args": "x"}, Code.BAD_SCHEMA),
        ({"Args": [1]}, Code.BAD_SCHEMA),
        ({"Args": ["a"] * 257}, Code.BAD_SCHEMA),
        ({"Args": ["a" * 16_385]}, Code.BAD_SCHEMA),
        ({"Args": ["a\0"]}, Code.BAD_SCHEMA),
        ({"Args": ["\ud800"]}, Code.BAD_SCHEMA),
        ({"Args": ...}, Code.BAD_SCHEMA),
        ({"Files": []}, Code.BAD_SCHEMA),
        ({"Files": {"a": "YQ"}}, Code.BAD_SCHEMA),
        ({"Files": {"a": "YQ==\n"}}, Code.BAD_SCHEMA),
        ({"Files": {"a": None}}, Code.BAD_SCHEMA),
        ({"Files": {str(number): "" for number in range(65)}}, Code.BAD_SCHEMA),
        ({"Files": {"../a": "YQ=="}}, Code.BAD_FILE_NAME),
        ({"Files": {"a/b": "YQ=="}}, Code.BAD_FILE_NAME),
        ({"Files": {"": "YQ=="}}, Code.BAD_FILE_NAME),
        ({"Files": {"A": "YQ==", "a": "YQ=="}}, Code.BAD_FILE_NAME),
        ({"Files": {"\ud800": "YQ=="}}, Code.BAD_FILE_NAME),
        ({"TimeoutSec": 0}, Code.BAD_SCHEMA),
        ({"TimeoutSec": 86_401}, Code.BAD_SCHEMA),
        ({"TimeoutSec": True}, Code.BAD_SCHEMA),
        ({"TimeoutSec": "60"}, Code.BAD_SCHEMA),
    ],
)
def test_a_request_that_breaks_a_rule_gets_its_code(changes: dict[str, Any], code: Code) -> None:
    """GRID-1, GRID-96, GRID-196: SubmitJob."""
    with pytest.raises(GridRefused) as caught:
        JobRequest.read(changed(REQUESTED, **changes)).ask("default")
    assert caught.value.code is code
    assert "JobId" in changes or caught.value.job_id == JOB


def test_an_upper_case_job_id_is_read_in_lower_case() -> None:
    """GRID-1"""
    assert JobRequest.read(changed(REQUESTED, JobId=JOB.upper())).job_id == JOB


@pytest.mark.parametrize(
    "payload",
    [
        b"no",
        b"{}",
        b'{"ClientId":"a.b"}',
        b'{"ClientId":7}',
        *(b'{"ClientId":"c","DesiredParallelism":%s}' % cap for cap in (b"true", b"4.0", b'"4"', b"0", b"-1", b"[]")),
        b'{"ClientId":"c","Token":5}',
        b'{"ClientId":"c","Agent":"%s"}' % (b"a" * 129),
    ],
)
def test_a_client_that_says_hello_wrongly_gets_bad_hello(payload: bytes) -> None:
    """GRID-196: Hello with bad JSON, id or cap."""
    assert refusal(HelloClient, payload).code is Code.BAD_HELLO


@pytest.mark.parametrize(("given", "cap"), [(None, 4), (1, 1), (10_000, 10_000), (10_001, 10_000), (10**15, 10_000)])
def test_a_cap_is_four_when_absent_and_at_most_ten_thousand(given: int | None, cap: int) -> None:
    """GRID-71: section 5.1."""
    payload = json.dumps({"ClientId": "c", "DesiredParallelism": given}).encode()
    assert HelloClient.read(payload).desired_parallelism == cap
    assert HelloClient.read(b'{"ClientId":"c"}').desired_parallelism == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"WorkerId": "a b"},
        {"WorkerId": ...},
        {"Pattern": ...},
        {"Pattern": ""},
        {"Pattern": []},
        {"Pattern": ["job.assign.*"] * 33},
        {"Pattern": ["job.assign.*", "job.>.x"]},
        {"Pattern": [7]},
        {"Pattern": "x" * 256},
        {"MaxParallel": 0},
        {"MaxParallel": 10_001},
        {"MaxParallel": 4.0},
    ],
)
def test_a_worker_that_says_hello_wrongly_gets_bad_hello(changes: dict[str, Any]) -> None:
    """GRID-30, GRID-196: Hello with bad id or pattern."""
    hello = HelloWorker(worker_id="w1", patterns=("job.assign.*",))
    assert refusal(HelloWorker, changed(hello, **changes)).code is Code.BAD_HELLO


@pytest.mark.parametrize(
    "payload", ["00000000", "ffffffff", "11270000", "ffffff7f", "00000080", "", "01", "010000", "0100000000"]
)
def test_a_credit_that_is_none_is_refused(payload: str) -> None:
    """GRID-25"""
    assert refusal(CreditGrant, bytes.fromhex(payload)).code is Code.BAD_CREDIT


def test_a_credit_is_four_bytes_little_endian() -> None:
    """GRID-25"""
    assert (CreditGrant(1).to_payload().hex(), CreditGrant(10_000).to_payload().hex()) == ("01000000", "10270000")


def test_an_ack_needs_a_token_and_a_cause() -> None:
    """GRID-196: AckJob."""
    assert JobResult.read_ack(REFUSED.to_payload()) == REFUSED
    for changes, field in (({"Token": ...}, "Token"), ({"ErrorCode": None}, "ErrorCode")):
        with pytest.raises(GridRefused) as caught:
            JobResult.read_ack(changed(REFUSED, **changes))
        assert (caught.value.code, caught.value.field, caught.value.job_id) == (Code.BAD_SCHEMA, field, JOB)
