"""Payloads: each is read as it was written, and what breaks a rule is refused by its name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.frames import reading
from pyoco_server.core.frames.codec import LENGTH_MAX, LENGTH_MIN
from pyoco_server.core.frames.messages import (
    AssignJob,
    BinaryPart,
    CancelJob,
    Credit,
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
    OutputRef,
    RunningJob,
    Settled,
    SubmitAck,
    fitted,
)
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import InputFile, fingerprint
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.states import RunState
from support.grid.frame_vectors import GOOD, REQUEST

JOB = "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01"
SHA = "ab" * 32
REF = OutputRef(bucket="pyoco_artifacts", object="r/a1/output.zip", size=9, sha256=SHA, href="/runs/r/artifacts")
RESULT = JobResult(
    job_id=JOB, client_id="clientA", exec_name="calcA", status=RunState.COMPLETED, stdout="ü\n", run_id=JOB, attempt=1
)
REFUSED = JobResult(
    job_id=JOB,
    client_id="clientA",
    exec_name="calcA",
    status=RunState.FAILED,
    stderr="no",
    output_archive=b"zip",
    output_ref=REF,
    exit_code=-9,
    error_code=ErrorCode.SIGNALED,
    error="killed",
    stdout_truncated=True,
    run_id="r",
    attempt=2,
    worker_id="w1",
    started_at=1.5,
    ended_at=3,
    run_seconds=1.5,
    token="t",
)
MESSAGES: list[Any] = [
    HelloClient(client_id="clientA", desired_parallelism=8, token="pyoco_k.s", agent="mine/1"),
    HelloWorker(worker_id="w1", patterns=("job.assign.*",), max_parallel=4),
    HelloWorker(worker_id="w1", patterns=("job.assign.a", "job.assign.b")),
    HelloAck(door_id="d", group="g", session="s", cap=3, doors=("127.0.0.1:5000",), warnings=("look",)),
    HelloAck(door_id="d", group="g", session="s", heartbeat_sec=0.5),
    Credit(1),
    Credit(10_000),
    NotLeader(reason="draining", group="g", leader="127.0.0.1:5001", doors=("127.0.0.1:5001",), retry_after_ms=5),
    NotLeader(reason="no_quorum", group="g"),
    ErrorMessage(code="QUEUE_FULL", message="full", job_id=JOB, retry=True, retry_after_ms=1_000),
    ErrorMessage(code="BAD_FRAME", message="no"),
    Heartbeat(),
    Heartbeat((RunningJob(JOB, "t"),), 0.5),
    Heartbeat((), 0),
    JobRequest(job_id=JOB, client_id="c", exec_name="e", args=("a", "日本"), files={"x": b"\0\xff"}, timeout_sec=2.5),
    JobRequest(job_id=JOB, client_id="c", exec_name="e"),
    AssignJob(
        job_id=JOB,
        client_id="c",
        exec_name="e",
        args=("a",),
        files={"x": b"1"},
        timeout_sec=60,
        run_id="r",
        attempt=1,
        token="t",
        input_refs=(InputFile("big", 5_000_000, SHA),),
    ),
    RESULT,
    REFUSED,
    SubmitAck(job_id=JOB, run_id="r", status=RunState.PENDING, duplicate=True),
    Settled(job_id=JOB, token="t", outcome="stale"),
    CancelJob(job_id=JOB),
    CancelJob(job_id=JOB, reason="superseded", token="t"),
    ObjectGet(job_id=JOB, name="output.zip", offset=7),
    ObjectAck(job_id=JOB, name="output.zip", received=7, done=True, object="r/a1/output.zip"),
    BinaryPart(job_id=JOB, name="output.zip", offset=0, size=9, last=False, data=b"abc", token="t"),
    BinaryPart(job_id=JOB, name="output.zip", offset=7, size=9, last=True, data=b"\0\xff", sha256=SHA),
    BinaryPart(job_id=JOB, name="empty", offset=0, size=0, last=True, data=b"", sha256=SHA),
]


def members_of(message: Any) -> dict[str, Any]:
    members = json.loads(message.to_payload())
    assert isinstance(members, dict)
    return members


def changed(message: Any, **changes: Any) -> bytes:
    """The message's payload with these members changed; `...` leaves one out."""
    members = members_of(message) | changes
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


def refusal(kind: Any, payload: bytes) -> GridRefused:
    with pytest.raises(GridRefused) as caught:
        kind.read(payload)
    return caught.value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_is_read_as_it_was_written(message: Any) -> None:
    """GRID-22"""
    assert type(message).read(message.to_payload()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_members_that_nobody_knows_are_ignored(message: Any) -> None:
    if not isinstance(message, Credit | BinaryPart) and message.to_payload():
        assert type(message).read(changed(message, Later={"deep": [1, None]})) == message


def test_the_payloads_of_the_vectors_are_written_byte_for_byte() -> None:
    """GRID-22"""
    assert HelloClient(client_id="clientA", desired_parallelism=8).to_payload() == GOOD["V2"][0].payload
    assert HelloWorker(worker_id="w1", patterns=("job.assign.*",), max_parallel=4).to_payload() == GOOD["V3"][0].payload
    assert Credit(4).to_payload() == GOOD["V4"][0].payload
    request = JobRequest(
        job_id=JOB, client_id="clientA", exec_name="calcA", args=("--n", "3"), files={"in.txt": b"hello\n"}
    )
    assert request.to_payload() == REQUEST
    assert fingerprint(JobRequest.read(REQUEST).ask("default")) == (
        "10a2a64f110d162c734ba4f191da1e6c175b9a8db8c25f53aff33e8178bdbfd1"  # GRID-24
    )


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
        ({"JobId": ...}, Code.BAD_JOB_ID),
        ({"JobId": 7}, Code.BAD_JOB_ID),
        ({"JobId": "00000000-0000-0000-0000-000000000000"}, Code.BAD_JOB_ID),
        ({"JobId": "{" + JOB + "}"}, Code.BAD_JOB_ID),
        ({"JobId": JOB.replace("-", "")}, Code.BAD_JOB_ID),
        ({"ClientId": "a b"}, Code.BAD_SCHEMA),
        ({"ClientId": ...}, Code.BAD_SCHEMA),
        ({"ExecName": "-rf"}, Code.BAD_EXEC_NAME),
        ({"ExecName": "計算"}, Code.BAD_EXEC_NAME),
        ({"ExecName": "a.b"}, Code.BAD_EXEC_NAME),
        ({"ExecName": None}, Code.BAD_EXEC_NAME),
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
    assert refusal(Credit, bytes.fromhex(payload)).code is Code.BAD_CREDIT


def test_a_credit_is_four_bytes_little_endian() -> None:
    """GRID-25"""
    assert (Credit(1).to_payload().hex(), Credit(10_000).to_payload().hex()) == ("01000000", "10270000")


def test_an_ack_needs_a_token_and_a_cause() -> None:
    """GRID-196: AckJob."""
    assert JobResult.read_ack(REFUSED.to_payload()) == REFUSED
    for changes, field in (({"Token": ...}, "Token"), ({"ErrorCode": None}, "ErrorCode")):
        with pytest.raises(GridRefused) as caught:
            JobResult.read_ack(changed(REFUSED, **changes))
        assert (caught.value.code, caught.value.field, caught.value.job_id) == (Code.BAD_SCHEMA, field, JOB)


def test_a_result_is_a_report_and_back() -> None:
    report = REFUSED.report()
    assert (report.status, report.exit_code, report.error_code) == (RunState.FAILED, -9, ErrorCode.SIGNALED)
    assert (report.stderr, report.stdout_truncated, report.run_seconds) == (b"no", True, 1.5)


PART = BinaryPart(job_id=JOB, name="output.zip", offset=0, size=3, last=True, data=b"abc", sha256=SHA)


def _part(meta: dict[str, Any] | bytes, data: bytes = b"abc") -> bytes:
    raw = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    return len(raw).to_bytes(2, "little") + raw + data


_META = {"JobId": JOB, "Name": "output.zip", "Offset": 0, "Size": 3, "Last": True, "Sha256": SHA}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", Code.BAD_OBJECT),
        (b"\x01", Code.BAD_OBJECT),
        (b"\xff\xff{}", Code.BAD_OBJECT),
        (_part(b"no"), Code.BAD_JSON),
        (_part(_META | {"JobId": "x"}), Code.BAD_JOB_ID),
        (_part(_META | {"Offset": -1}), Code.BAD_SCHEMA),
        (_part(_META | {"Sha256": None}), Code.BAD_SCHEMA),
        (_part(_META | {"Sha256": SHA.upper()}), Code.BAD_SCHEMA),
        (_part(_META | {"Last": 1}), Code.BAD_SCHEMA),
        (_part(_META | {"Size": 2}), Code.BAD_OBJECT),
        (_part(_META | {"Size": 4}), Code.BAD_OBJECT),
        (_part(_META | {"Offset": 1}), Code.BAD_OBJECT),
        (_part(_META | {"Size": 2**21}, bytes(2**20 + 1)), Code.BAD_OBJECT),
    ],
)
def test_a_part_that_does_not_add_up_is_refused(payload: bytes, code: Code) -> None:
    """GRID-196: ObjectPut."""
    assert refusal(BinaryPart, payload).code is code
    assert BinaryPart.read(_part(_META)) == PART


def test_the_largest_part_fits_into_a_frame() -> None:
    data = bytes(2**20)
    part = BinaryPart(
        job_id=JOB, name="n" * 255, offset=0, size=2**20, last=True, data=data, sha256=SHA, token="t" * 64
    )
    assert len(part.to_payload()) < LENGTH_MAX - LENGTH_MIN
    assert BinaryPart.read(part.to_payload()) == part


def test_an_error_says_its_code_in_one_line_of_512_characters() -> None:
    """GRID-169: section 5.7."""
    message = ErrorMessage.of(GridRefused(Code.QUEUE_FULL, "full\nof " + "x" * 600, job_id=JOB))
    assert message.message == ("full of " + "x" * 600)[:512]
    assert (message.code, message.retry, message.retry_after_ms, message.job_id) == ("QUEUE_FULL", True, 1_000, JOB)
    assert ErrorMessage.read(message.to_payload()) == message


def test_keys_tokens_arguments_and_content_are_not_shown() -> None:
    """GRID-169"""
    secret = "sesame"
    for message in (
        HelloClient(client_id="c", token=secret),
        HelloWorker(worker_id="c", patterns=(">",), token=secret),
        JobRequest(exec_name="e", args=(secret,), files={secret: b"x"}),
        JobResult(job_id=JOB, client_id="c", exec_name="e", status=RunState.FAILED, stdout=secret, token=secret),
        Settled(job_id=JOB, token=secret, outcome="stale"),
        RunningJob(JOB, secret),
    ):
        assert secret not in repr(message)


class TestFitting:
    def test_what_fits_stays_whole(self) -> None:
        """GRID-143"""
        assert fitted(RESULT, REF) is RESULT

    def test_an_archive_that_does_not_fit_becomes_a_reference(self) -> None:
        """GRID-143"""
        whole = JobResult(**vars(RESULT) | {"output_archive": bytes(3_200_000), "stdout": "x" * 500_000})
        made = fitted(whole, REF)
        assert (made.output_archive, made.output_ref, made.stdout) == (None, REF, whole.stdout)

    @pytest.mark.parametrize("character", ["\0", "é", "\U0001f600", "\ufffd", '"'])
    def test_the_last_form_always_fits(self, character: str) -> None:
        """GRID-143: and keeps the end of each output."""
        size = len(character.encode())
        text = character * (2 * 2**20 // size) + "end"
        whole = JobResult(**vars(RESULT) | {"stdout": text, "stderr": text, "output_archive": bytes(4_000_000)})
        made = fitted(whole, REF)
        assert len(made.to_payload()) <= LENGTH_MAX - LENGTH_MIN - 128
        for kept, cut in ((made.stdout, made.stdout_truncated), (made.stderr, made.stderr_truncated)):
            assert text.endswith(kept)
            assert not cut or 65_536 - size < len(kept.encode()) <= 65_536

    def test_an_output_that_was_short_is_not_called_cut(self) -> None:
        """GRID-143"""
        made = fitted(JobResult(**vars(RESULT) | {"stdout": "\0" * 2**20, "stderr": "short"}), None)
        assert (made.stdout_truncated, made.stderr_truncated, made.stderr) == (True, False, "short")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
_KINDS: list[Any] = sorted({type(message) for message in MESSAGES}, key=lambda kind: kind.__name__)
_AS_JSON: list[Any] = [each for each in MESSAGES if each.to_payload()[:1] == b"{"]


@given(st.data())
def test_whatever_a_payload_holds_it_is_read_or_refused(data: st.DataObject) -> None:
    """GRID-195"""
    message = data.draw(st.sampled_from(_AS_JSON))
    name = data.draw(st.sampled_from(sorted(members_of(message))))
    payload = json.dumps(members_of(message) | {name: data.draw(_JSON)}).encode()
    with contextlib.suppress(GridRefused):
        type(message).read(payload)


@given(st.sampled_from(_KINDS), st.binary(max_size=200))
def test_whatever_bytes_a_payload_is_it_is_read_or_refused(kind: Any, payload: bytes) -> None:
    """GRID-195"""
    with contextlib.suppress(GridRefused):
        kind.read(payload)
