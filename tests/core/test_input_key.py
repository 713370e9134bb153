"""Where a tenant's files lie: under its own prefix, whatever they are called."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced.input_key import NAME_LENGTH_MAX, input_key, input_prefix, is_own_key, safe_name

UPLOAD = "0b0e8f0a-5d0c-4b7a-9d0e-2f6f1c1a7b11"
SAFE = re.compile(rf"[a-z0-9_][a-z0-9_.-]{{0,{NAME_LENGTH_MAX - 1}}}")


@given(st.text(max_size=300))
def test_any_name_becomes_a_safe_one_and_its_key_is_the_tenants_own(name: str) -> None:
    """PRICED-147"""
    assert SAFE.fullmatch(safe_name(name))
    key = input_key("acme", UPLOAD, name)
    assert key.count("/") == 3
    assert is_own_key(key, "acme")
    assert not is_own_key(key, "acm")
    assert not is_own_key(key, "acme2")


@pytest.mark.parametrize("tenant_id", ["", "a/b", "..", "a b", "x" * 65])
def test_what_is_no_tenant_has_no_prefix(tenant_id: str) -> None:
    """PRICED-147"""
    with pytest.raises(ValueError, match="tenant"):
        input_prefix(tenant_id)


@pytest.mark.parametrize("upload_id", ["", "a/b", "../x", "x" * 65])
def test_what_is_no_upload_has_no_key(upload_id: str) -> None:
    with pytest.raises(ValueError, match="upload"):
        input_key("acme", upload_id, "a.png")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "dpp/acme",
        "dpp/acme/",
        "dpp/acme2/a",
        "dpp/bert/a",
        "DPP/acme/a",
        "/dpp/acme/a",
        "dpp/acme/../bert/a",
        "dpp/acme/./a",
        "dpp/acme//a",
        "dpp/acme/a/",
        "dpp/acme/a\\..\\b",
        "dpp/acme/a\nb",
        "dpp/acme/a\0",
        "dpp/acme/\ud800",
        "dpp/acme/" + "a" * 1016,
        "dpp/acme/" + "\u3042" * 400,
    ],
)
def test_what_is_not_plainly_below_the_prefix_is_not_the_tenants(key: str) -> None:
    """PRICED-147"""
    assert not is_own_key(key, "acme")


@pytest.mark.parametrize("key", ["dpp/acme/a", "dpp/acme/Scan 1.PNG", "dpp/acme/2026/\u8acb\u6c42\u66f8.png"])
def test_files_that_a_tenant_put_there_itself_are_its_own(key: str) -> None:
    """PRICED-147"""
    assert is_own_key(key, "acme")
