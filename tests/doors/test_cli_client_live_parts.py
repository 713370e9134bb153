"""The parts of live views: listings, pictures of runs, times and texts."""

from __future__ import annotations

import io
import json
import subprocess
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from pyoco_server.doors.cli.client import follow
from pyoco_server.doors.cli.client.follow import Listing, follow_runs
from pyoco_server.doors.cli.client.live import picture
from pyoco_server.doors.cli.client.output import instant, safe, span
from pyoco_server.doors.cli.client.why import explain
from pyoco_server.http_client import PyocoHttpClient
from support.client_commands import COMMAND, environment, own_tag, process
from support.sites import Site

SIGNS = {"PENDING": ".", "RUNNING": ">", "SUCCEEDED": "+", "COMPLETED": "+", "FAILED": "x"}


# The pieces


def a_run(run_id: str, updated_at: float, status: str = "PENDING", **more: Any) -> dict[str, Any]:
    return {"run_id": run_id, "updated_at": updated_at, "status": status, **more}


def test_a_listing_merges_by_id_and_tells_only_what_is_new() -> None:
    """FLOW-190, FLOW-191"""
    listing = Listing(None, 3)
    assert listing.load([a_run("b", 12.0), a_run("a", 11.0)]) == [a_run("a", 11.0), a_run("b", 12.0)]
    assert listing.updated_after == 7.0
    assert listing.merge([a_run("b", 12.0), a_run("a", 13.0, heartbeat_at=13.0)]) == []  # a heartbeat is no news
    assert [run["run_id"] for run in listing.runs()] == ["a", "b"]
    news = [a_run("a", 14.0, "RUNNING"), a_run("c", 15.0), a_run("d", 16.0)]
    assert listing.merge(news[::-1]) == news
    assert [run["run_id"] for run in listing.runs()] == ["d", "c", "a"]  # at most three
    assert listing.load([a_run("d", 16.0)]) == []  # the others were removed
    assert [run["run_id"] for run in listing.runs()] == ["d"]
    assert Listing(None, 3).updated_after == 0.0


def test_a_listing_remembers_more_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-190"""
    monkeypatch.setattr("pyoco_server.doors.cli.client.follow._REPORTED_MAX", 3)
    listing = Listing(None, 1)
    listing.load([])
    runs = [a_run("a", 11.0, "RUNNING"), a_run("b", 12.0), a_run("c", 13.0)]
    assert [listing.merge(runs) for _ in range(3)] == [runs, [], []]
    assert listing.merge([a_run("a", 90.0, "RUNNING", heartbeat_at=90.0)]) == []  # long after the overlap
    assert listing.merge([a_run("a", 80.0, "PENDING")]) == []  # of a gateway that is behind
    assert listing.load([a_run("x", 1.0)]) == []  # came up when others were removed: nothing new
    assert listing.merge([a_run("d", 91.0)]) == [a_run("d", 91.0)]
    assert listing.merge([a_run("b", 92.0)]) == [a_run("b", 92.0)]  # no more than three are remembered


def test_following_a_status_begins_with_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-190: the last FAILED run may be a month old; what happened since to others is not walked through"""
    asked: list[dict[str, Any]] = []

    class Pages:
        def list_runs_vnext(self, **filters: Any) -> dict[str, Any]:
            asked.append(filters)
            newest = a_run("new", 5000.0, "COMPLETED")
            return {"items": [a_run("old", 10.0, "FAILED") if filters["status"] else newest], "next_cursor": None}

    class Enough(Exception):
        pass

    def sleep(seconds: float) -> None:
        if len(asked) > 2:
            raise Enough

    monkeypatch.setattr(follow, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    told: list[Any] = []
    monkeypatch.setattr("pyoco_server.doors.cli.client.follow.print_line", told.append)
    with pytest.raises(Enough):
        follow_runs(cast(PyocoHttpClient, Pages()), {"status": "FAILED", "tag": "t"}, 1.0, "json")
    assert [run["run_id"] for run in told] == ["old"]
    assert (asked[-1]["status"], asked[-1]["updated_after"], asked[-1]["tag"]) == (None, 4995.0, "t")


def test_a_run_that_leaves_the_status_is_told_of_once_and_gone() -> None:
    """FLOW-190"""
    listing = Listing("RUNNING", 10)
    listing.load([a_run("a", 11.0, "RUNNING")])
    ended = a_run("a", 12.0, "COMPLETED")
    assert listing.merge([ended, a_run("x", 12.0, "PENDING")]) == [ended]
    assert listing.runs() == []
    assert listing.merge([ended]) == []


def drawn(snapshot: dict[str, Any], rows_max: int = 10, now: float = 100.0, waiting: str | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=80, no_color=True)
    with console.capture() as capture:
        console.print(picture({"run_id": "id", "flow_name": "f", **snapshot}, waiting, now, rows_max, SIGNS))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_picture_folds_what_does_not_fit_and_keeps_what_matters() -> None:
    tasks = {f"t{n}": "SUCCEEDED" for n in range(5)} | {"bad": "FAILED", "now": "RUNNING", "later": "PENDING"}
    records = {"bad": {"error": "no", "started_at": 90.0, "ended_at": 95.0}, "now": {"started_at": 97.0}}
    snapshot = {"status": "RUNNING", "tasks": tasks, "task_records": records, "start_time": 40.0, "error": "boom"}
    assert drawn(snapshot, rows_max=4) == [
        "> f RUNNING 1 m 00 s",
        "id",
        "├── x bad    FAILED     5.0 s",
        "│   └── no",
        "├── > now    RUNNING    3.0 s",
        "├── . later  PENDING",
        "├── … and 5 more: 5 SUCCEEDED",
        "└── boom",
    ]


def test_a_picture_of_a_failed_run_says_which_tasks_did_not_run() -> None:
    """CLI-17"""
    snapshot = {"status": "FAILED", "tasks": {"a": "FAILED", "b": "PENDING"}, "not_run": ["b"]}
    assert drawn(snapshot)[2:] == ["├── x a  FAILED", "└──   b  not run"]


def test_a_picture_counts_wide_characters_as_two() -> None:
    snapshot = {"status": "RUNNING", "tasks": {"日本": "RUNNING", "abc": "PENDING", "\x1b": "PENDING"}}
    assert drawn(snapshot)[2:] == ["├── > 日本  RUNNING", "├── . abc   PENDING", "└── . \\x1b  PENDING"]


def test_a_picture_does_without_what_it_does_not_know() -> None:
    assert drawn({"status": "SOMETHING", "tasks": {"a": "NEW"}}) == ["  f SOMETHING", "id", "└──   a  NEW"]
    assert drawn({"status": "PENDING", "submitted_at": 98.0}, waiting="because") == [
        ". f PENDING for 2.0 s",
        "id",
        "└── because",
    ]


@pytest.mark.parametrize(
    ("snapshot", "told"),
    [
        ({"status": "PENDING", "waiting": {"message": "Wait."}}, ["Wait."]),
        ({"status": "PENDING"}, ["No worker has taken it yet, and the server reports no reason."]),
        ({"status": "COMPLETED"}, ["It is done: all tasks that had to run have succeeded."]),
        ({"status": "CANCELLED", "cancel_reason": "no"}, ["It was cancelled: no."]),
        (
            {"status": "CANCELLING", "cancel_requested_at": 98.0},
            ["Its cancellation was requested 2.0 s ago; no worker runs it."],
        ),
        (
            {"status": "RUNNING", "worker_id": "w", "start_time": 95.0, "attempt": 2, "worker_alive": False},
            [
                "w runs it since 5.0 s.",
                "w sends no heartbeats; another worker takes over when its claim expires.",
                "This is attempt 2: earlier ones were lost with their worker or its host.",
            ],
        ),
        (
            {
                "status": "RUNNING",
                "worker_id": "w",
                "attempt": 3,
                "earlier_attempts": [
                    {"attempt": 1, "worker_id": "v", "started_at": 20.0, "ended_at": 40.0, "why": "handed_back"},
                    {"attempt": 2, "worker_id": None, "started_at": 45.0, "ended_at": 50.0, "why": "lost"},
                ],
                "last_change": {"what": "started", "at": 90.0, "by": {"kind": "worker", "id": "w"}},
            },
            [
                "w runs it.",
                "Attempt 1 on v was released, 1 m 00 s ago.",
                "Attempt 2 on a worker was lost; last heartbeat, 50 s ago.",
                "Last change: started 10 s ago by w.",
            ],
        ),
        (
            {
                "status": "CANCELLING",
                "last_change": {"what": "cancel_requested", "at": 98.0, "by": {"kind": "api_key", "id": "k1"}},
            },
            [
                "Its cancellation was requested; no worker runs it.",
                "Last change: cancel requested 2.0 s ago by key k1.",
            ],
        ),
        (
            {
                "status": "CANCELLED",
                "last_change": {"what": "cancelled", "at": 98.0, "by": {"kind": "keeper", "id": None}},
            },
            ["It was cancelled: no reason was given.", "Last change: cancelled 2.0 s ago by the keeper."],
        ),
        ({"status": "RUNNING", "worker_id": "w", "tasks": {"a": "RUNNING"}}, ["w runs it.", "Running tasks: a"]),
    ],
)
def test_why_has_a_sentence_for_each_state(snapshot: dict[str, Any], told: list[str]) -> None:
    assert list(explain({"run_id": "id", **snapshot}, 100.0)) == told


def test_times_are_written_for_people() -> None:
    spans = [span(seconds) for seconds in (-1, 0.0004, 0.25, 1.26, 59.9, 60, 3599, 3600, 86_399, 90_000)]
    assert spans == [
        "0 ms",
        "0 ms",
        "250 ms",
        "1.3 s",
        "59 s",
        "1 m 00 s",
        "59 m 59 s",
        "1 h 00 m",
        "23 h 59 m",
        "1 d 01 h",
    ]
    assert [instant(value) for value in (0, 1.5, None, True, "x", 1e30)] == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:01Z",
        "",
        "True",
        "x",
        "1e+30",
    ]


def test_no_control_character_reaches_the_terminal() -> None:
    assert safe("a\x1b[2J\r\n\x9b\x7fü") == "a\\x1b[2J\\x0d\\x0a\\x9b\\x7fü"


def test_json_stays_readable_in_another_alphabet(site: Site) -> None:
    """FLOW-430"""
    tag = own_tag()
    run_id = site.submitted("日本\x9b", tag=tag)
    with process(site.url, "get", run_id) as running:
        out, _ = running.communicate(timeout=120)
    assert '"日本\\u009b"' in out
    done = subprocess.run(
        [COMMAND, "get", run_id],
        capture_output=True,
        timeout=120,
        check=True,
        env=environment(site.url, PYTHONIOENCODING="latin-1"),
    )
    assert json.loads(done.stdout)["flow_name"] == "日本\x9b"
    table = subprocess.run(
        [COMMAND, "list", "--output", "table", "--tag", tag],
        capture_output=True,
        timeout=120,
        check=True,
        env=environment(site.url, PYTHONIOENCODING="latin-1"),
    )
    assert b"\\u65e5\\u672c\\x9b" in table.stdout
