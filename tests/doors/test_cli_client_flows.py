"""`pyoco-client flow`: what workers announce, as a table and as JSON (APP-11)."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from contracts.registry import a_worker
from pyoco_server.core.offered_flow import OfferedFlow
from support.client_commands import Client
from support.servers import unique
from support.sites import Site

SCHEMA = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "format": "uri"},
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "mode": {"enum": ["fast", "exact"], "default": "fast"},
        "any": {},
    },
    "required": ["url", "any"],
    "additionalProperties": False,
}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, site: Site) -> Any:
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    client = Client(capsys, monkeypatch)
    return lambda *words: client("--server", site.url, *words)


@pytest.fixture
def tag(site: Site) -> str:
    """Of a worker with two flows of its own."""
    tag, now = unique("tag"), time.time() + 3600  # it stays alive however long a test takes
    measure = OfferedFlow(name=f"{tag}-measure", app="reports", doc="Measure a page.\nIn bytes.", params=SCHEMA)
    flows = (measure, OfferedFlow(name=f"{tag}-report", app="reports"))
    more = {"flows": flows, "flows_complete": True, "last_seen_at": now, "last_heartbeat_at": now}
    site.announce(a_worker(f"worker-{tag}", tags=(tag,), **more))
    return tag


def test_flows_are_listed_and_shown(call: Any, tag: str) -> None:
    """APP-11, CLI-3"""
    for words in (("flow", "list"), ("flows",)):
        page = call(*words, "--tag", tag).result
        assert [each["name"] for each in page["items"]] == [f"{tag}-measure", f"{tag}-report"]
    assert call("flows", "--tag", tag, "--search", "bytes measure").result["items"] == page["items"][:1]
    assert call("flow", "show", f"{tag}-measure").result == page["items"][0]
    missing = call("flow", "show", f"{tag}-other")
    assert (missing.code, "ERR-PYOCO-0006" in missing.err) == (1, True)
    first = call("flows", "--tag", tag, "--limit", "1", "--output", "table")
    assert "--cursor" in first.err
    header, line = first.out.splitlines()
    assert header.split() == ["name", "app", "params", "tag", "workers", "conflict", "doc"]
    assert line.split(maxsplit=6)[2:] == ["url,size?,mode?,any", tag, "1", "no", "Measure a page."]


def test_a_person_sees_types_defaults_and_choices_of_params(call: Any, tag: str) -> None:
    """APP-11, CLI-3"""
    shown = call("flow", "show", f"{tag}-measure", "--output", "text").out
    _, _, table = shown.partition("\n\n")
    assert [line.split("  ") for line in (" ".join(each.split()) for each in table.splitlines())] == [
        ["param type default choices"],
        ["url string (uri) (required)"],
        ["size integer or null null"],
        ['mode "fast" "fast", "exact"'],
        ["any (required)"],
    ]
    bare = call("flow", "show", f"{tag}-report", "--output", "text").out
    assert "param" not in bare


def test_a_name_that_nobody_offers_is_refused_with_the_nearest_one(call: Any, tag: str) -> None:
    """APP-12"""
    ended = call("submit", f"{tag}-mesure", "--tag", tag)
    assert (ended.code, "ERR-PYOCO-0006" in ended.err) == (1, True)
    assert f"body.flow_name: no live worker with the tag {tag} announces" in ended.err
    assert f"did you mean {tag}-measure?" in ended.err
