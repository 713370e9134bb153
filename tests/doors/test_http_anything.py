"""Whatever hypothesis can think of is answered: never with a 5xx, and never without an error body."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.doors_support import (
    FLOW_YAML,
    GOOD,
    NAME,
    Door,
    disposition,
    form,
    workflow,
)
from support.gateways import error

pytestmark = pytest.mark.asyncio(loop_scope="module")


#: Whatever hypothesis finds is answered in milliseconds; the deadline would measure the machine.
THOROUGH = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


submissions = st.fixed_dictionaries(
    {"flow_name": json_values | st.text(min_size=1)},
    optional={"params": json_values, "tag": json_values, "tags": json_values, "more": json_values},
)


part_names = st.sampled_from(["workflow", "flow_name", "tag", "params", "x"]) | st.text(max_size=5)


pieces = st.sampled_from(
    [
        *(b"--B", b"--B\r\n", b"--B--", b"--", b"\r\n", b"\r\n\r\n", b'"', b";", b":", b"\xff", b"\x00"),
        *(b"Content-Disposition: form-data; ", b'name="workflow"', b'name="flow_name"', b'; filename="f"'),
        *(FLOW_YAML, b"flow:", b"&a ", b"*a", b"!!"),
    ]
)


def check_answer(answer: httpx.Response) -> None:
    """Never a 5xx, and never a refusal without its error body."""
    assert answer.status_code in {200, 413, 422}, answer.text
    body = answer.json()
    if answer.status_code == 200:
        assert body == {"run_id": body["run_id"], "status": "PENDING"}
    else:
        assert error(2, "").keys() <= body.keys()
        assert body["err_id"] in {"ERR-PYOCO-0002", "ERR-PYOCO-0016"}


class TestAnything:
    @THOROUGH
    @given(body=st.binary(max_size=200))
    async def test_any_bytes_are_answered(self, door: Door, body: bytes) -> None:
        """FLOW-50, FLOW-70"""
        check_answer(await door.post(body))
        check_answer(await door.upload(body))

    @THOROUGH
    @given(document=submissions)
    async def test_any_json_is_answered_and_can_be_read_back(self, door: Door, document: dict[str, Any]) -> None:
        """FLOW-50, FLOW-70, FLOW-88"""
        try:
            body = json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            body = json.dumps(document).encode()
        answer = await door.post(body)
        check_answer(answer)
        if answer.status_code == 200:
            snapshot = (await door.send("GET", f"/runs/{answer.json()['run_id']}")).json()
            assert snapshot["params"] == (document.get("params") or {})
            assert snapshot["flow_name"] == document["flow_name"]

    @THOROUGH
    @given(parts=st.lists(pieces | st.binary(max_size=20), max_size=20))
    async def test_any_form_is_answered(self, door: Door, parts: list[bytes]) -> None:
        """FLOW-50, FLOW-83"""
        check_answer(await door.upload(b"".join(parts)))
        check_answer(await door.upload(b"--B\r\n" + b"".join(parts) + b"\r\n--B--\r\n"))

    @THOROUGH
    @given(name=part_names, head=st.binary(max_size=30), data=st.binary(max_size=50))
    async def test_any_part_is_answered(self, door: Door, name: str, head: bytes, data: bytes) -> None:
        """FLOW-50, FLOW-83"""
        odd = (disposition(name).replace(b"\n", b"") + head, data)
        check_answer(await door.upload(form(workflow(FLOW_YAML), NAME, odd)))

    @THOROUGH
    @given(
        text=st.text(max_size=100) | st.lists(pieces, max_size=10).map(lambda some: b"".join(some).decode("latin-1"))
    )
    async def test_any_file_is_answered(self, door: Door, text: str) -> None:
        """FLOW-50, FLOW-169"""
        check_answer(await door.upload(form(workflow(text.encode("utf-8", "replace")), NAME)))
        quoted = json.dumps(text)
        check_answer(await door.upload(form(workflow(f"flow: {{graph: {quoted}, defaults: {quoted}}}".encode()), NAME)))

    @THOROUGH
    @given(content_type=st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=50))
    async def test_any_content_type_is_answered(self, door: Door, content_type: str) -> None:
        """FLOW-83"""
        for value in (
            content_type,
            f"multipart/form-data; {content_type}",
            f"multipart/form-data; boundary={content_type}",
        ):
            headers = [(b"content-type", value.encode("latin-1"))]
            answer = await door.gateway.client.post("/runs/yaml", content=GOOD, headers=headers)
            check_answer(answer)
            door.accepted += answer.status_code == 200

    @THOROUGH
    @given(segment=st.text(max_size=20), query=st.dictionaries(st.text(max_size=5), st.text(max_size=10), max_size=3))
    async def test_any_path_and_query_is_answered(self, door: Door, segment: str, query: dict[str, str]) -> None:
        """FLOW-36, FLOW-50, FLOW-106"""
        path = quote(segment.encode("utf-8", "replace"), safe="")
        asked = urlencode(query, errors="replace")
        for answer in (
            await door.gateway.client.get(f"/runs/{path}/tasks"),
            await door.gateway.client.get(f"/{path}?{asked}"),
            await door.gateway.client.get(f"/runs?{asked}"),
        ):
            assert answer.status_code < 500
            assert answer.status_code < 400 or error(2, "").keys() <= answer.json().keys()
