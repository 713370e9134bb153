"""What the url pack may be asked."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.core.packs.spec import Here
from pyoco_server.core.packs.url import URL

HERE = Here(tenant_id="acme", input_bucket="dpp-inputs")
HTTP_HERE = Here(tenant_id="acme", input_bucket="dpp-inputs", allow_http=True)
ONE = "https://example.com/"


@pytest.mark.parametrize(
    "inputs",
    [
        {"urls": [ONE]},
        {"urls": [ONE] * 30, "max_urls": 1},
        {"urls": [ONE], "max_urls": 30.0, "fetch_timeout_sec": 10, "max_redirect_hops": 0},
        {"urls": [ONE], "block_private_ip": True, "allow_https_only": True},
        {"urls": ["not a url", "", "x" * 2048]},
    ],
)
def test_pages_may_be_asked_for(inputs: dict[str, Any]) -> None:
    """PRICED-129: what is wrong within a URL is told in the result"""
    assert URL.check(inputs, HERE) == ()


@pytest.mark.parametrize(
    ("inputs", "loc", "kind"),
    [
        ({}, ("urls",), "missing"),
        ({"urls": ONE}, ("urls",), "type"),
        ({"urls": None}, ("urls",), "type"),
        ({"urls": []}, ("urls",), "length"),
        ({"urls": [ONE] * 31}, ("urls",), "length"),
        ({"urls": [ONE, 1]}, ("urls", 1), "type"),
        ({"urls": [ONE, "x" * 2049]}, ("urls", 1), "length"),
        ({"urls": [ONE], "max_urls": 0}, ("max_urls",), "range"),
        ({"urls": [ONE], "max_urls": 31}, ("max_urls",), "range"),
        ({"urls": [ONE], "max_urls": True}, ("max_urls",), "type"),
        ({"urls": [ONE], "fetch_timeout_sec": 0}, ("fetch_timeout_sec",), "range"),
        ({"urls": [ONE], "fetch_timeout_sec": 11}, ("fetch_timeout_sec",), "range"),
        ({"urls": [ONE], "fetch_timeout_sec": 1.5}, ("fetch_timeout_sec",), "type"),
        ({"urls": [ONE], "max_redirect_hops": -1}, ("max_redirect_hops",), "range"),
        ({"urls": [ONE], "max_redirect_hops": 6}, ("max_redirect_hops",), "range"),
        ({"urls": [ONE], "block_private_ip": False}, ("block_private_ip",), "value"),
        ({"urls": [ONE], "block_private_ip": 0}, ("block_private_ip",), "type"),
        ({"urls": [ONE], "block_private_ip": None}, ("block_private_ip",), "type"),
        ({"urls": [ONE], "allow_https_only": False}, ("allow_https_only",), "value"),
        ({"urls": [ONE], "proxy": "http://10.0.0.1"}, (), "unknown"),
    ],
)
def test_what_may_not_be_asked_is_named_and_not_repeated(
    inputs: dict[str, Any], loc: tuple[str | int, ...], kind: str
) -> None:
    """PRICED-129, PRICED-171"""
    [problem] = URL.check(inputs, HERE)
    assert (problem.loc, problem.type) == (loc, kind)
    assert "example.com" not in str(problem)
    assert "10.0.0.1" not in str(problem)


def test_http_may_be_asked_for_where_the_deployment_allows_it_and_private_addresses_nowhere() -> None:
    """PRICED-135"""
    assert URL.check({"urls": [ONE], "allow_https_only": False}, HTTP_HERE) == ()
    [problem] = URL.check({"urls": [ONE], "block_private_ip": False, "allow_https_only": False}, HTTP_HERE)
    assert problem.loc == ("block_private_ip",)
