"""Invalid forms and uploaded flows: refused, with each problem and its place."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator

import pytest

from support.doors_support import (
    FLOW_YAML,
    FORM,
    GOOD,
    NAME,
    Door,
    call,
    check_refusal,
    disposition,
    form,
    workflow,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestForms:
    @pytest.mark.parametrize(
        "content_type",
        [
            "multipart/form-data; boundary=B",
            'Multipart/Form-Data; charset=utf-8; boundary="B"',
        ],
    )
    async def test_a_good_form_is_accepted(self, door: Door, content_type: str) -> None:
        """FLOW-79, FLOW-80"""
        assert (await door.upload(GOOD, content_type)).status_code == 200

    @pytest.mark.parametrize(
        "content_type",
        [
            "",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            'multipart/form-data; boundary=""',
            "multipart/form-data; boundary=C",
            "multipart/form-data; boundary=" + "B" * 300,
            "multipart/mixed; boundary=B",
            "application/json",
            "application/x-www-form-urlencoded",
            "text/plain; boundary=B",
            "; boundary=B",
            '"; boundary="',
            "multipart/form-data; boundary*=utf-8''B%",
            "multipart/form-data;" * 100,
        ],
    )
    async def test_a_form_that_does_not_say_where_it_ends_is_refused(self, door: Door, content_type: str) -> None:
        """FLOW-83"""
        assert check_refusal(await door.upload(GOOD, content_type))[0]["loc"] == ["body"]

    @pytest.mark.parametrize("cut", range(0, len(GOOD) - 4, 7))
    async def test_a_form_that_was_cut_is_refused(self, door: Door, cut: int) -> None:
        """FLOW-83"""
        check_refusal(await door.upload(GOOD[:cut]))

    @pytest.mark.parametrize(
        ("body", "loc"),
        [
            pytest.param(form(workflow(FLOW_YAML), NAME, end=b""), ["body"], id="no end"),
            pytest.param(form(), ["body", "workflow"], id="no part"),
            pytest.param(form(NAME), ["body", "workflow"], id="no file"),
            pytest.param(form(workflow(b""), NAME), ["body", "workflow"], id="an empty file"),
            pytest.param(form(workflow(FLOW_YAML)), ["body", "flow_name"], id="no flow name"),
            pytest.param(form(workflow(FLOW_YAML), (disposition("flow_name"), b"")), ["body", "flow_name"], id="empty"),
            pytest.param(
                form(workflow(FLOW_YAML), (disposition("flow_name"), b"x" * 513)), ["body", "flow_name"], id="long name"
            ),
            pytest.param(
                form(workflow(FLOW_YAML), (disposition("flow_name"), b"x" * 5000)), ["body", "flow_name"], id="too long"
            ),
            pytest.param(
                form(workflow(FLOW_YAML), (disposition("flow_name"), b"\xff")), ["body", "flow_name"], id="not UTF-8"
            ),
            pytest.param(
                form(workflow(FLOW_YAML), (disposition("flow_name", "n"), b"n")), ["body", "flow_name"], id="a file"
            ),
            pytest.param(
                form((disposition("workflow"), FLOW_YAML), NAME), ["body", "workflow"], id="the file as a field"
            ),
            pytest.param(form(workflow(FLOW_YAML), workflow(FLOW_YAML), NAME), ["body", "workflow"], id="two files"),
            pytest.param(form(workflow(FLOW_YAML), NAME, NAME), ["body", "flow_name"], id="two names"),
            pytest.param(
                form(workflow(FLOW_YAML), NAME, (disposition("params"), b"{}")),
                ["body", "params"],
                id="FLOW-85: params",
            ),
            pytest.param(
                form(workflow(FLOW_YAML), NAME, (disposition("params", "p.json"), b"")),
                ["body", "params"],
                id="FLOW-85: params as a file",
            ),
            pytest.param(form(workflow(FLOW_YAML), NAME, (disposition("tag"), b"a.b")), ["body", "tag"], id="bad tag"),
            pytest.param(form(workflow(FLOW_YAML), NAME, (disposition("tag"), b"")), ["body", "tag"], id="empty tag"),
            pytest.param(form(workflow(FLOW_YAML), NAME, (disposition("tag"), b"\0")), ["body", "tag"], id="NUL tag"),
            pytest.param(
                form(workflow(FLOW_YAML), NAME, (b"Content-Disposition: form-data", b"x")), ["body"], id="no name"
            ),
            pytest.param(form(workflow(FLOW_YAML), NAME, (disposition(""), b"x")), ["body"], id="an empty name"),
            pytest.param(form(workflow(FLOW_YAML), NAME, (b"X-Other: 1", b"x")), ["body"], id="no disposition"),
            pytest.param(b"--B\r\n\r\nx\r\n--B--\r\n", ["body"], id="no headers"),
            pytest.param(b"--B\r\nno colon\r\n\r\nx\r\n--B--\r\n", ["body"], id="a header without colon"),
            pytest.param(b"--B\r\n\xff: x\r\n\r\nx\r\n--B--\r\n", ["body"], id="a header of no letters"),
            pytest.param(GOOD.replace(b"\r\n", b"\n"), ["body"], id="line feeds alone"),
            pytest.param(b"junk\r\n" + GOOD, ["body"], id="a preamble"),
            pytest.param(
                form(*((disposition(f"p{n}"), b"") for n in range(100)), workflow(FLOW_YAML), NAME),
                ["body"],
                id="100 parts",
            ),
        ],
    )
    async def test_a_broken_form_is_refused(self, door: Door, body: bytes, loc: list[str]) -> None:
        """FLOW-79 to FLOW-81, FLOW-83, FLOW-85"""
        answer = await door.upload(body)
        assert check_refusal(answer)[0]["loc"] == loc
        assert answer.json()["detail"] == answer.json()["errors"]

    async def test_a_form_may_come_byte_by_byte(self, door: Door) -> None:
        async def bytewise() -> AsyncIterator[bytes]:
            for byte in GOOD:
                yield bytes([byte])

        status, answer, _ = await call(door.gateway.app, "/runs/yaml", bytewise(), FORM)
        assert (status, answer["status"]) == (200, "PENDING")
        door.accepted += 1


BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + n, 98 + n, b", ".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
)


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "loc"),
        [
            pytest.param(b"\xff\xfe", ["workflow"], id="FLOW-169: not UTF-8"),
            pytest.param(FLOW_YAML.decode().encode("utf-16"), ["workflow"], id="FLOW-169: UTF-16"),
            pytest.param(b"flow: [", ["workflow"], id="FLOW-169: no YAML"),
            pytest.param(b"\tflow: 1", ["workflow"], id="FLOW-169: a tab"),
            pytest.param(b"flow: \x00", ["workflow"], id="FLOW-169: NUL"),
            pytest.param(b'"\\ud800": 1', ["workflow"], id="FLOW-169: half a surrogate pair"),
            pytest.param(b"--- {}\n--- {}\n", ["workflow"], id="FLOW-161: two documents"),
            pytest.param(b"# nothing", ["workflow"], id="FLOW-164: empty"),
            pytest.param(b"[]", ["workflow"], id="FLOW-165: a list"),
            pytest.param(b"hello", ["workflow"], id="FLOW-165: text"),
            pytest.param(b"flow: {graph: a}\nflows: {}", ["workflow", "flows"], id="FLOW-162: flows"),
            pytest.param(b"flow: {graph: a}\ndiscovery: {}", ["workflow", "discovery"], id="FLOW-162: discovery"),
            pytest.param(b"flow: {graph: a}\nnope: 1", ["workflow", "nope"], id="FLOW-163: an unknown key"),
            pytest.param(b"flow: {graph: a, name: x}", ["workflow", "flow", "name"], id="FLOW-163: in flow"),
            pytest.param(b"tasks: {}", ["workflow", "flow"], id="FLOW-164: no flow"),
            pytest.param(b"flow: {}", ["workflow", "flow", "graph"], id="FLOW-164: no graph"),
            pytest.param(b"flow: {graph: ' '}", ["workflow", "flow", "graph"], id="FLOW-164: an empty graph"),
            pytest.param(b"flow: {graph: a}\nversion: 2", ["workflow", "version"], id="FLOW-165: version"),
            pytest.param(b"flow: {graph: a, defaults: []}", ["workflow", "flow", "defaults"], id="FLOW-165: defaults"),
            pytest.param(
                b"flow: {graph: a}\ntasks: {a: {use: x, callable: 'y:z'}}",
                ["workflow", "tasks", "a"],
                id="FLOW-165: two",
            ),
            pytest.param(b"flow: {graph: 'a >> >> b'}", ["workflow", "flow", "graph"], id="FLOW-166: no graph"),
            pytest.param(
                b"flow: {graph: '%s'}" % (b"(" * 5000), ["workflow", "flow", "graph"], id="FLOW-166: too deep"
            ),
            pytest.param(
                b"flow: {graph: a, defaults: {d: 2020-01-01}}",
                ["workflow", "flow", "defaults", "d"],
                id="FLOW-172: a date",
            ),
            pytest.param(
                b"flow: {graph: a, defaults: {d: .nan}}", ["workflow", "flow", "defaults", "d"], id="FLOW-172: NaN"
            ),
            pytest.param(b"flow: {graph: a, defaults: {1: 2}}", ["workflow", "flow", "defaults"], id="FLOW-172: a key"),
            pytest.param(BOMB, ["workflow", "e", 5], id="FLOW-172: a bomb of aliases"),
            pytest.param(b"flow: {graph: a, defaults: {d: &d [*d]}}", None, id="FLOW-172: a value inside itself"),
            pytest.param(b"flow: !!python/object/apply:os.system ['true']", ["workflow", "flow"], id="FLOW-169: a tag"),
            pytest.param(b"flow: {graph: !!python/name:os.system ''}", None, id="FLOW-169: a name of Python"),
            pytest.param(b"flow: " + b"[" * 50_000, None, id="FLOW-169: too deep"),
            pytest.param(b"flow: {graph: a, graph: b}", ["workflow", "flow"], id="a repeated key"),
        ],
    )
    async def test_a_file_that_breaks_the_policy_is_refused(
        self, door: Door, text: bytes, loc: list[str | int] | None
    ) -> None:
        """FLOW-83, FLOW-161 to FLOW-172"""
        began = time.monotonic()
        answer = await door.upload(form(workflow(text), NAME))
        problems = check_refusal(answer)
        assert answer.json()["detail"] == "invalid request"
        assert loc is None or loc in [problem["loc"] for problem in problems]
        assert time.monotonic() - began < 60

    async def test_the_gateway_imports_no_task_code(self, door: Door) -> None:
        """FLOW-167"""
        text = b"flow: {graph: a}\ntasks: {a: {callable: 'antigravity:fly'}, b: {use: nobody/knows}}\n"
        assert (await door.upload(form(workflow(text), NAME))).status_code == 200
        assert "antigravity" not in sys.modules
