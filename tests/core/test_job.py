"""The job on the queue: what a gateway writes every worker reads, and nothing else gets through."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.flow_moves import accept
from pyoco_server.core.job import Job, decode_job, encode_job, job_of, run_of
from pyoco_server.core.run import Caller, Submission
from pyoco_server.errors import InvalidJob

RUN_ID = "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11"
GOOD: dict[str, Any] = {"run_id": RUN_ID, "flow_name": "f", "tag": "cpu", "submitted_at": 1.5}

text = st.text(st.characters(codec="utf-8"), max_size=8)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
jobs = st.builds(
    Job,
    run_id=st.uuids(version=4).map(str),
    flow_name=words,
    tag=st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
    submitted_at=st.floats(0, 1e11),
    tags=st.lists(text, max_size=3).map(tuple),
    params=st.dictionaries(text, json_values, max_size=3),
    workflow_yaml=st.none() | words,
    workflow_yaml_sha256=st.none() | words,
    workflow_yaml_bytes=st.none() | st.integers(0, 9999),
    tenant_id=st.none() | words,
    api_key_id=st.none() | words,
    revision=st.none() | st.integers(0, 2**63),
)


def a_message(**more: Any) -> bytes:
    return json.dumps(GOOD | more).encode()


@given(jobs)
def test_a_job_comes_back_as_it_was_sent(job: Job) -> None:
    """FLOW-296 to FLOW-304"""
    assert decode_job(encode_job(job)) == job


def test_a_worker_can_rebuild_the_record_the_gateway_wrote() -> None:
    """FLOW-310"""
    ask = Submission(
        flow_name="f", tag="cpu", tags=("a",), params={"n": 1}, workflow_yaml="y", workflow_yaml_sha256="0" * 64
    )
    run = accept(ask, Caller("acme", "k1"), RUN_ID, 10.0)
    job = decode_job(encode_job(job_of(run, ask, 7)))
    assert run_of(job) == run
    assert (job.workflow_yaml, job.revision) == ("y", 7)


def test_non_ascii_text_is_sent_as_it_is() -> None:
    """FLOW-306"""
    job = Job(run_id=RUN_ID, flow_name="流れ", tag="cpu", submitted_at=1.0)
    assert "流れ".encode() in encode_job(job)


def test_fields_a_worker_does_not_know_are_ignored() -> None:
    """FLOW-305"""
    assert decode_job(a_message(schema=2, colour="red")) == decode_job(a_message())


def test_optional_fields_may_be_null_or_absent() -> None:
    """FLOW-299, FLOW-300, FLOW-302"""
    assert decode_job(a_message(tags=None, params=None, workflow_yaml=None, tenant_id=None)) == decode_job(a_message())


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_required_field_that_is_missing_makes_the_job_invalid(name: str) -> None:
    """FLOW-296, FLOW-297, FLOW-298, FLOW-301, FLOW-316"""
    message = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(InvalidJob) as caught:
        decode_job(json.dumps(message).encode())
    assert [problem.loc for problem in caught.value.problems] == [(name,)]
    assert caught.value.run_id == (None if name == "run_id" else RUN_ID)


WRONG: list[tuple[str, Any]] = [
    ("run_id", "not-a-uuid"),
    ("run_id", 5),
    ("run_id", RUN_ID.upper()),
    ("flow_name", ""),
    ("flow_name", 1),
    ("tag", ""),
    ("tag", "a.b"),
    ("tag", "a b\r\nPUB x"),
    ("tags", "abc"),
    ("tags", [1]),
    ("params", []),
    ("submitted_at", "now"),
    ("submitted_at", True),
    ("submitted_at", 10**400),
    ("submitted_at", -1),
    ("workflow_yaml", ["x"]),
    ("workflow_yaml_bytes", 1.5),
    ("workflow_yaml_bytes", -1),
    ("tenant_id", {}),
    ("revision", "7"),
    ("revision", True),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}={value!r:.20}" for name, value in WRONG])
def test_a_field_of_the_wrong_kind_makes_the_job_invalid(name: str, value: Any) -> None:
    """FLOW-32, FLOW-316"""
    with pytest.raises(InvalidJob, match=name) as caught:
        decode_job(a_message(**{name: value}))
    assert [problem.loc for problem in caught.value.problems] == [(name,)]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    """FLOW-316"""
    with pytest.raises(InvalidJob) as caught:
        decode_job(b'{"tag": 1, "tags": 2}')
    assert {problem.loc[0] for problem in caught.value.problems} == {
        "run_id",
        "flow_name",
        "tag",
        "tags",
        "submitted_at",
    }


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000])
def test_bytes_that_are_no_object_are_no_job(data: bytes) -> None:
    """FLOW-316"""
    with pytest.raises(InvalidJob):
        decode_job(data)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_number_json_does_not_have_makes_the_job_invalid(number: bytes) -> None:
    """FLOW-316, FLOW-345: it could never be written into a snapshot."""
    with pytest.raises(InvalidJob):
        decode_job(a_message()[:-1] + b', "params": {"x": ' + number + b"}}")


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: a_message()[:-1] + tail))
def test_decoding_arbitrary_bytes_raises_nothing_but_invalid_job(data: bytes) -> None:
    """FLOW-316"""
    with contextlib.suppress(InvalidJob):
        decode_job(data)


@given(st.dictionaries(st.sampled_from([*GOOD, "tags", "params", "workflow_yaml", "revision", "x"]), json_values))
def test_decoding_arbitrary_json_gives_a_job_that_can_be_stored_or_invalid_job(message: dict[str, Any]) -> None:
    """FLOW-316"""
    for data in (json.dumps(message).encode(), json.dumps(GOOD | message).encode()):
        try:
            job = decode_job(data)
        except InvalidJob:
            continue
        assert decode_job(encode_job(job)) == job
