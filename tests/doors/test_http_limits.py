"""More than the gateway takes: it is refused while it comes, and read no further than needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyoco_server.ports.nats.link import Link
from support.doors_support import (
    FLOW_YAML,
    FORM,
    JSON_BYTES_MAX,
    NAME,
    YAML_BYTES_MAX,
    Door,
    call,
    check_refusal,
    endless,
    form,
    workflow,
)
from support.gateways import error, fresh_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


FORM_START = b'--B\r\nContent-Disposition: form-data; name="workflow"; filename="f"\r\n\r\n'


class TestTooMuch:
    @pytest.mark.parametrize("declared", [None, "10", "0", "1048576", "nonsense", "-1", "\u00b2"])
    async def test_an_endless_body_is_refused_while_it_comes(self, door: Door, declared: str | None) -> None:
        """A missing or false content-length is no way around: received bytes are counted."""
        headers = {} if declared is None else {"content-length": declared}
        body = endless(b'{"flow_name": "f", "params": {"a": "', b"x" * 65536)
        status, answer, taken = await call(door.gateway.app, "/runs", body, headers)
        assert (status, answer) == (413, error(2, "request body too large"))
        assert JSON_BYTES_MAX < taken <= JSON_BYTES_MAX + 65536

    @pytest.mark.parametrize("declared", ["1048577", "9" * 18, "9" * 19, "9" * 5000, "00001048577"])
    async def test_a_body_declared_too_large_is_not_read_at_all(self, door: Door, declared: str) -> None:
        body = endless(b"{", b"x")
        status, answer, taken = await call(door.gateway.app, "/runs", body, {"content-length": declared})
        assert (status, answer, taken) == (413, error(2, "request body too large"), 0)

    async def test_the_largest_body_is_still_read(self, door: Door) -> None:
        """It fails for another reason: a snapshot holds less (FLOW-71)."""
        start, end = b'{"flow_name": "f", "params": {"a": "', b'"}}'
        exact = start + b"x" * (JSON_BYTES_MAX - len(start) - len(end)) + end
        assert len(exact) == JSON_BYTES_MAX
        check_refusal(await door.post(exact))
        assert (await door.post(exact + b" ")).json() == error(2, "request body too large")

    async def test_an_endless_file_is_refused_at_its_cap(self, door: Door) -> None:
        """FLOW-57, FLOW-84: reading stops once the cap is passed."""
        body = endless(FORM_START, b"#" * 4096)
        status, answer, taken = await call(door.gateway.app, "/runs/yaml", body, FORM)
        assert (status, answer) == (413, error(16, "workflow file too large"))
        assert YAML_BYTES_MAX < taken <= YAML_BYTES_MAX + 2 * 4096

    @pytest.mark.parametrize(
        "start",
        [
            pytest.param(b"\r\n", id="blank lines before the form"),
            pytest.param(b"--B\r\nX-", id="a header without end"),
            pytest.param(b'--B\r\nContent-Disposition: form-data; name="', id="a name without end"),
            pytest.param(b'--B\r\nContent-Disposition: form-data; name="tag"\r\n\r\n', id="a field without end"),
            pytest.param(FORM_START + b"x\r\n--B--\r\n", id="an epilogue without end"),
        ],
    )
    async def test_an_endless_form_ends_somewhere(self, door: Door, start: bytes) -> None:
        """FLOW-83, FLOW-84"""
        for piece in (b"a" * 4096, b"\r\n" * 2048, b"\x00" * 4096):
            status, answer, taken = await call(door.gateway.app, "/runs/yaml", endless(start, piece), FORM)
            assert status in {413, 422}
            assert answer["err_id"] in {"ERR-PYOCO-0002", "ERR-PYOCO-0016"}
            assert taken <= YAML_BYTES_MAX + 65536 + 2 * 4096

    async def test_a_file_of_exactly_the_cap_is_accepted(self, door: Door) -> None:
        """FLOW-84, FLOW-168"""
        exact = FLOW_YAML + b"#" * (YAML_BYTES_MAX - len(FLOW_YAML))
        assert (await door.upload(form(workflow(exact), NAME))).status_code == 200
        over = await door.upload(form(workflow(exact + b"#"), NAME))
        assert (over.status_code, over.json()) == (413, error(16, "workflow file too large"))

    async def test_the_cap_is_a_setting(self, nats_url: str, link_of_module: Link, tmp_path: Path) -> None:
        """FLOW-84, FLOW-168"""
        small = {"workflow_yaml_max_bytes": 100}
        async with fresh_gateway(link_of_module, nats_url, tmp_path, **small) as gateway:
            own = Door(gateway, link_of_module)
            padded = FLOW_YAML + b"#" * (100 - len(FLOW_YAML))
            assert (await own.upload(form(workflow(padded), NAME))).status_code == 200
            assert (await own.upload(form(workflow(padded + b"#"), NAME))).status_code == 413
            await own.check()
