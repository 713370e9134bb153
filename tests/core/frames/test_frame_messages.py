"""Payloads: each is read as it was written, and what breaks a rule is refused by its name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.frames.codec import LENGTH_MAX, LENGTH_MIN
from pyoco_server.core.frames.messages import (
    AssignJob,
    BinaryPart,
    CancelJob,
    CreditGrant,
    ErrorMessage,
    Heartbeat,
    HelloAck,
    HelloClient,
    HelloWorker,
    JobRequest,
    JobResult,
    LogChunk,
    LogCredit,
    LogOutcome,
    NotLeader,
    ObjectAck,
    ObjectGet,
    RunningJob,
    Settled,
    SubmitAck,
    fitted,
)
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import InputFile, fingerprint
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.core.states import RunState
from support.grid.frame_messages import JOB, REF, REFUSED, RESULT, SHA, changed, members_of, refusal
from support.grid.frame_vectors import GOOD, REQUEST

MESSAGES: list[Any] = [
    HelloClient(client_id="clientA", desired_parallelism=8, token="pyoco_k.s", agent="mine/1"),
    HelloWorker(worker_id="w1", patterns=("job.assign.*",), max_parallel=4),
    HelloWorker(worker_id="w1", patterns=("job.assign.a", "job.assign.b")),
    HelloAck(door_id="d", group="g", session="s", cap=3, doors=("127.0.0.1:5000",), warnings=("look",)),
    HelloAck(door_id="d", group="g", session="s", heartbeat_sec=0.5),
    HelloAck(door_id="d", group="g", session="s", capabilities=("logs",), log_credits=2),
    HelloWorker(worker_id="w1", patterns=("job.assign.*",), capabilities=("logs", "later")),
    LogChunk(job_id=JOB, token="t", shipment=Shipment(1, 3, 0, 20, False, True, b"a batch", (1, 2, 0, 0))),
    LogCredit(LogOutcome.LATER),
    CreditGrant(1),
    CreditGrant(10_000),
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


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_is_read_as_it_was_written(message: Any) -> None:
    """GRID-22"""
    assert type(message).read(message.to_payload()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_members_that_nobody_knows_are_ignored(message: Any) -> None:
    if not isinstance(message, CreditGrant | BinaryPart | LogChunk) and message.to_payload():
        assert type(message).read(changed(message, Later={"deep": [1, None]})) == message


def test_the_payloads_of_the_vectors_are_written_byte_for_byte() -> None:
    """GRID-22"""
    assert HelloClient(client_id="clientA", desired_parallelism=8).to_payload() == GOOD["V2"][0].payload
    assert HelloWorker(worker_id="w1", patterns=("job.assign.*",), max_parallel=4).to_payload() == GOOD["V3"][0].payload
    assert CreditGrant(4).to_payload() == GOOD["V4"][0].payload
    request = JobRequest(
        job_id=JOB, client_id="clientA", exec_name="calcA", args=("--n", "3"), files={"in.txt": b"hello\n"}
    )
    assert request.to_payload() == REQUEST
    assert fingerprint(JobRequest.read(REQUEST).ask("default")) == (
        "10a2a64f110d162c734ba4f191da1e6c175b9a8db8c25f53aff33e8178bdbfd1"  # GRID-24
    )


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
