"""Invalid JSON bodies: each is refused with an error body, and leaves no trace."""

from __future__ import annotations

import json

import pytest

from support.doors_support import (
    SOMEONE,
    Door,
    check_refusal,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestJson:
    @pytest.mark.parametrize(
        ("body", "loc"),
        [
            (b"", ["body"]),
            (b" ", ["body"]),
            (b"{", ["body"]),
            (b'{"flow_name": "f"}x', ["body"]),
            (b"flow_name=hello", ["body"]),
            (b"null", ["body"]),
            (b"[]", ["body"]),
            (b'"flow_name"', ["body"]),
            (b"1", ["body"]),
            (b'[{"flow_name": "f"}]', ["body"]),
            (b"\xef\xbb\xbf{}", ["body"]),
            (b'{"flow_name": "\xff"}', ["body"]),
            (b'{"flow_name": "\xed\xa0\x80"}', ["body"]),
            ('{"flow_name": "f"}'.encode("utf-16"), ["body"]),
            (b'{"flow_name": "\\ud800"}', ["body"]),
            (b'{"flow_name": "\\ude00\\ud83d"}', ["body"]),
            (b'{"flow_name": "a\x00b"}', ["body"]),
            (b"\x00" * 1000, ["body"]),
            (b"{}", ["body", "flow_name"]),
            (b'{"params": {}}', ["body", "flow_name"]),
            (b'{"flow_name": ""}', ["body", "flow_name"]),
            (b'{"flow_name": null}', ["body", "flow_name"]),
            (b'{"flow_name": 1}', ["body", "flow_name"]),
            (b'{"flow_name": ["f"]}', ["body", "flow_name"]),
            (b'{"flow_name": {}}', ["body", "flow_name"]),
            (b'{"flow_name": true}', ["body", "flow_name"]),
            (b'{"flow_name": "%s"}' % (b"x" * 513), ["body", "flow_name"]),
            (b'{"flow_name": "f", "params": []}', ["body", "params"]),
            (b'{"flow_name": "f", "params": "{}"}', ["body", "params"]),
            (b'{"flow_name": "f", "params": 0}', ["body", "params"]),
            (b'{"flow_name": "f", "params": false}', ["body", "params"]),
            (b'{"flow_name": "f", "params": {1: 2}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": NaN}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": Infinity}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": -Infinity}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": 1e400}}', ["body", "params"]),
            (b'{"flow_name": "f", "params": {"a": [-1e400]}}', ["body", "params", 0]),
            (b'{"flow_name": "f", "params": {"a": %s}}' % (b"9" * 5000), ["body", "params"]),
            (b'{"flow_name": "f", "params": {"a": 01}}', ["body"]),
            (b'{"flow_name": "f", "params": {"a": "\\udfff"}}', ["body"]),
            (b'{"flow_name": "f", "params": {"\\ud800": 1}}', ["body"]),
            (b'{"flow_name": "f", "tag": 1}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": ["a"]}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": ""}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "a.b"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "a b"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "*"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": ">"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "a\\n"}', ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "\\u0000"}', ["body", "tag"]),
            ('{"flow_name": "f", "tag": "é"}'.encode(), ["body", "tag"]),
            ('{"flow_name": "f", "tag": "\u0661"}'.encode(), ["body", "tag"]),
            (b'{"flow_name": "f", "tag": "%s"}' % (b"x" * 129), ["body", "tag"]),
            (b'{"flow_name": "f", "tags": "a"}', ["body", "tags"]),
            (b'{"flow_name": "f", "tags": {"a": 1}}', ["body", "tags"]),
            (b'{"flow_name": "f", "tags": ["a", 1]}', ["body", "tags", 1]),
            (b'{"flow_name": "f", "tags": [null]}', ["body", "tags", 0]),
            (b'{"flow_name": "f", "tags": [["a"]]}', ["body", "tags", 0]),
            (b'{"flow_name": "f", "tags": %s}' % json.dumps(["x"] * 101).encode(), ["body", "tags"]),
            (b'{"flow_name": "f", "tags": ["%s"]}' % (b"x" * 513), ["body", "tags", 0]),
            (b'{"flow_name": "f", "params": {"a": %s%s}}' % (b"[" * 10_000, b"]" * 10_000), ["body"]),
            (b'{"flow_name": "f", "params": %s1%s}' % (b'{"a":' * 10_000, b"}" * 10_000), ["body"]),
            (b'{"flow_name": "f", "params": {"a": %s%s}}' % (b"[" * 100, b"]" * 100), ["body", "params"]),
            (b'{"flow_name": "f", "unknown": %s%s}' % (b"[" * 10_000, b"]" * 10_000), ["body"]),
            (b"[" * 100_000, ["body"]),
        ],
        ids=lambda value: value.decode(errors="replace")[:40] if isinstance(value, bytes) else "",
    )
    async def test_a_body_that_is_no_submission_is_refused(self, door: Door, body: bytes, loc: list[str | int]) -> None:
        """FLOW-33, FLOW-50, FLOW-59, FLOW-65 to FLOW-68, FLOW-70"""
        answer = await door.post(body)
        problems = check_refusal(answer)
        assert [problem["loc"] for problem in problems] == [loc]
        assert answer.json()["detail"] == problems

    @pytest.mark.parametrize("body", [b"", b"  \n"])
    async def test_no_body_at_all_is_told_as_that(self, door: Door, body: bytes) -> None:
        """FLOW-70"""
        (problem,) = check_refusal(await door.post(body))
        assert problem["msg"] == "a JSON object is needed, and there is no body"

    @pytest.mark.parametrize(
        ("body", "loc"),
        [
            (b"[]", ["body"]),
            (b'"because"', ["body"]),
            (b"null", ["body"]),
            (b"{", ["body"]),
            (b'{"reason": 1}', ["body", "reason"]),
            (b'{"reason": ["a"]}', ["body", "reason"]),
            (b'{"reason": {}}', ["body", "reason"]),
            (b'{"reason": "%s"}' % (b"x" * 4097), ["body", "reason"]),
            (b'{"reason": "\\ud800"}', ["body"]),
            (b"\xff", ["body"]),
        ],
    )
    async def test_a_cancel_request_of_another_shape_is_refused(
        self, door: Door, body: bytes, loc: list[str | int]
    ) -> None:
        """FLOW-115"""
        problems = check_refusal(await door.send("POST", f"/runs/{SOMEONE}/cancel", body))
        assert [problem["loc"] for problem in problems] == [loc]
