"""What names may look like."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.names import (
    TAG_LENGTH_MAX,
    WORKER_ID_LENGTH_MAX,
    is_run_id,
    is_tag,
    tag_problem,
    worker_id_problem,
)


@pytest.mark.parametrize("tag", ["default", "GPU_1", "a-b", "0", "x" * TAG_LENGTH_MAX])
def test_a_tag_of_letters_digits_dash_and_underscore_is_good_everywhere(tag: str) -> None:
    """FLOW-33, FLOW-41"""
    assert is_tag(tag)
    assert tag_problem(tag) is None


@pytest.mark.parametrize("tag", ["", "a.b", "a b", "a\n", "*", ">", "タグ", "a/b", "x" * (TAG_LENGTH_MAX + 1)])
def test_any_other_tag_is_refused_over_http(tag: str) -> None:
    """FLOW-32, FLOW-33"""
    assert not is_tag(tag)


@pytest.mark.parametrize(
    "tag", ["", ".", "a.b", " ", "a b", "a\tb", "a\n", "a\x00", "a/b", "*", "a*", ">", "\u3000", "x" * 129]
)
def test_a_worker_refuses_a_tag_that_is_not_one_subject_token(tag: str) -> None:
    """FLOW-32, FLOW-34"""
    assert tag_problem(tag)


@pytest.mark.parametrize("tag", ["タグ", "a:b", "a=b"])
def test_a_worker_may_serve_a_tag_that_http_refuses(tag: str) -> None:
    """FLOW-34: the pattern is a recommendation there."""
    assert tag_problem(tag) is None


@given(st.text(max_size=10))
def test_every_tag_accepted_over_http_can_be_served(tag: str) -> None:
    """FLOW-33, FLOW-34"""
    assert not is_tag(tag) or tag_problem(tag) is None


@pytest.mark.parametrize("worker_id", ["worker", "a", "w-1", "host.example.1", "a=b", "_", "x" * WORKER_ID_LENGTH_MAX])
def test_a_worker_id_is_a_key_of_the_registry(worker_id: str) -> None:
    """FLOW-38"""
    assert worker_id_problem(worker_id) is None


@pytest.mark.parametrize("worker_id", ["", ".", ".a", "a.", "a..b", "a b", "a/b", "a\n", "ä", "*", "x" * 201])
def test_what_cannot_be_a_key_is_no_worker_id(worker_id: str) -> None:
    """FLOW-38"""
    assert worker_id_problem(worker_id)


@given(st.uuids())
def test_a_canonical_uuid_is_a_run_id(value: uuid.UUID) -> None:
    """FLOW-36"""
    assert is_run_id(str(value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0B0E9A52-6B1F-4C3C-9D0A-3C1A7D2F9A11",
        "0b0e9a526b1f4c3c9d0a3c1a7d2f9a11",
        "{0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a1}",
        "urn:uuid:0b0e9a52-6b1f-4c3c-9d0a-3c1",
        "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a1\n",
        "٠b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11",
    ],
)
def test_any_other_form_is_answered_like_an_unknown_run(text: str) -> None:
    """FLOW-36"""
    assert not is_run_id(text)


@given(st.text(max_size=40))
def test_a_run_id_is_never_anything_but_a_uuid_in_lower_case(text: str) -> None:
    """FLOW-36"""
    assert not is_run_id(text) or str(uuid.UUID(text)) == text
