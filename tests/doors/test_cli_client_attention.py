"""`pyoco-client queues` and `pyoco-client attention`."""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

import pytest

from support.client_commands import Client, terminal
from support.sites import Site
from support.strangers import response, somebody


@pytest.fixture
def client(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    return Client(capsys, monkeypatch)


def item(kind: str, level: str, message: str) -> dict[str, Any]:
    return {"kind": kind, "level": level, "count": 1, "message": message, "message_ja": "…", "facts": {}}


WELL = json.dumps({"at": 1.0, "items": []})
WARNED = json.dumps({"at": 1.0, "items": [item("dead_letters", "warning", "There are dead letters.")]})
BAD = json.dumps(
    {"at": 1.0, "items": [item("nats_down", "danger", "No\x1b[2J connection."), item("new", "odd", "Something else.")]}
)
QUEUES = {
    "at": 1.0,
    "items": [
        {
            "tag": "gpu",
            "depth": 1200,
            "oldest_at": 1.0,
            "oldest_age_seconds": 65.0,
            "workers_alive": 2,
            "slots": 8,
            "slots_busy": 7,
            "depth_before": 900,
            "drained_per_minute": 20.04,
            "eta_seconds": 3600.0,
        },
        {
            "tag": "cpu",
            "depth": 0,
            "oldest_at": None,
            "oldest_age_seconds": None,
            "workers_alive": 1,
            "slots": 4,
            "slots_busy": 0,
            "depth_before": None,
            "drained_per_minute": None,
            "eta_seconds": None,
        },
    ],
}


def test_queues_are_those_of_the_gateway(client: Client, site: Site) -> None:
    tag = f"t{uuid.uuid4().hex[:12]}"
    run_id = site.submitted("hello", tag=tag)
    found = client("--server", site.url, "queues").result
    queues = {queue["tag"]: queue for queue in found["items"]}
    assert (queues[tag]["depth"], queues[tag]["workers_alive"]) == (1, 0)
    assert queues["default"]["workers_alive"] == 1
    with site.client() as other:
        other.cancel_run(run_id)


def test_attention_is_that_of_the_gateway(client: Client, site: Site) -> None:
    found = client("--server", site.url, "attention").result
    assert found.keys() == {"at", "items"}


def test_queues_as_a_table_have_a_line_for_each(client: Client) -> None:
    with somebody(response("200 OK", json.dumps(QUEUES))) as url:
        shown = client("--server", url, "queues", "--output", "table").out.splitlines()
    assert [line.split("  ") for line in map(squeezed, shown)] == [
        ["tag", "depth", "10 min ago", "oldest", "per minute", "done in", "workers", "slots", "busy"],
        ["gpu", "1200", "900", "1 m 05 s", "20.0", "1 h 00 m", "2", "8", "7"],
        ["cpu", "0", "1", "4", "0"],
    ]


def test_priced_runs_that_wait_are_told_below_the_queues(client: Client) -> None:
    """They wait for no tag"""
    packs = {"depth": 3, "oldest_at": 1.0, "oldest_age_seconds": 65.0, "workers_alive": 0}
    for found, said in (
        (
            QUEUES | {"packs": packs},
            "priced runs waiting: 3, the oldest for 1 m 05 s; see pyoco-client list --kind pack",
        ),
        (QUEUES | {"packs": packs | {"depth": 0, "oldest_age_seconds": None}}, ""),
        (QUEUES, ""),  # of an older gateway
    ):
        with somebody(response("200 OK", json.dumps(found))) as url:
            ended = client("--server", url, "queues", "--output", "table")
        assert (ended.code, ended.err.strip()) == (0, said)


def squeezed(line: str) -> str:
    while "   " in line:
        line = line.replace("   ", "  ")
    return line


@pytest.mark.parametrize(
    ("answer", "shown", "code"),
    [
        (WELL, "Nothing needs attention.\n", 0),
        (WARNED, "warning  There are dead letters.\n", 0),
        (BAD, "danger   No\\x1b[2J connection.\nodd      Something else.\n", 1),
    ],
)
def test_attention_is_told_in_sentences_and_fail_ends_with_1_for_a_danger(
    client: Client, answer: str, shown: str, code: int
) -> None:
    with somebody(response("200 OK", answer)) as url:
        told = client("--server", url, "attention", "--output", "table")
        failed = client("--server", url, "attention", "--fail")
    assert (told.code, told.out, told.err) == (0, shown, "")
    assert (failed.code, json.loads(failed.out), failed.err) == (code, json.loads(answer), "")


def test_a_terminal_gets_sentences_in_colour(client: Client) -> None:
    with somebody(response("200 OK", WARNED)) as url, terminal(url, "attention") as screen:
        screen.until(lambda sent: "There are dead letters." in sent)
        assert screen.left() == 0
        assert "\x1b[33mwarning\x1b[0m  There are dead letters." in screen.sent
