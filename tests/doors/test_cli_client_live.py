"""What people see: views that move on a terminal, and nothing of them anywhere else."""

from __future__ import annotations

import asyncio
import io
import json
import re
import subprocess
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from pyoco_server.doors.cli.client import follow
from pyoco_server.doors.cli.client.follow import Listing, follow_runs
from pyoco_server.doors.cli.client.live import picture
from pyoco_server.doors.cli.client.live_list import _page
from pyoco_server.doors.cli.client.output import instant, safe, span
from pyoco_server.doors.cli.client.why import explain
from pyoco_server.http_client import PyocoHttpClient
from support.client_commands import COMMAND, environment, process, terminal
from support.relays import relayed
from support.sites import Site
from support.stalls import once_heard
from support.waiting import eventually

SIGNS = {"PENDING": ".", "RUNNING": ">", "SUCCEEDED": "+", "COMPLETED": "+", "FAILED": "x"}
COLOUR = re.compile(r"\x1b\[(?:\d+;)*[39][0-7](?:;\d+)*m")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def own_tag() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def last_screen(sent: str) -> list[str]:
    """The last picture: what was drawn after the cursor was last moved up to draw over."""
    return [line.rstrip() for line in ESCAPE.sub("", re.split(r"\x1b\[1A\x1b\[2K", sent)[-1]).splitlines()]


# On a terminal


def test_a_watch_draws_the_tasks_as_they_run_and_leaves_the_last_picture(site: Site) -> None:
    """FLOW-449"""
    with site.held() as run_id, terminal(site.url, "watch", run_id) as screen:
        screen.until(lambda sent: "hold" in sent and "RUNNING" in sent)
        site.let_go.set()
        assert screen.left() == 0
        headline, facts, greet, hold = [line for line in last_screen(screen.sent) if line]
        assert re.fullmatch(r"✓ held COMPLETED \d.*s", headline)
        assert facts == f"{run_id} · tag default · anna"
        assert re.fullmatch(r"├── ✓ greet  SUCCEEDED  \d[\d. m]*s", greet)
        assert re.fullmatch(r"└── ✓ hold   SUCCEEDED  \d[\d. m]*s", hold)
        assert COLOUR.search(screen.sent)
        assert screen.sent.count("\x1b[?25l") == screen.sent.count("\x1b[?25h")  # the cursor is back


def test_an_error_is_drawn_without_its_escape_sequences(site: Site) -> None:
    with terminal(site.url, "watch", site.ended("broken"), variables={"NO_COLOR": "1"}) as screen:
        assert screen.left() == 0
    assert "RuntimeError: on \\x1b[31mpurpose" in screen.sent
    assert "\x1b[31m" not in screen.sent


def test_a_run_that_waits_says_what_for(site: Site) -> None:
    tag = own_tag()
    with terminal(site.url, "watch", site.submitted("hello", tag=tag)) as screen:
        screen.until(lambda sent: f"No worker serves tag {tag}" in ESCAPE.sub("", sent))
        assert screen.interrupt() == 130
    assert screen.sent.count("\x1b[?25l") == screen.sent.count("\x1b[?25h")


def test_a_wait_draws_on_stderr_and_leaves_only_the_result(site: Site, tmp_path: Path) -> None:
    """FLOW-430"""
    out = tmp_path / "out"
    with (
        out.open("wb") as stdout,
        site.held() as run_id,
        terminal(site.url, "wait", run_id, "--fail", stdout=stdout) as screen,
    ):
        screen.until(lambda sent: "hold" in sent)
        site.let_go.set()
        assert screen.left() == 0
    assert json.loads(out.read_text())["status"] == "COMPLETED"
    assert [line for line in last_screen(screen.sent) if line] == []


def test_time_that_runs_out_is_told_on_a_terminal_too(site: Site, tmp_path: Path) -> None:
    """FLOW-450"""
    run_id = site.submitted("hello", tag=own_tag())

    def wait() -> str:
        with (
            (tmp_path / "out").open("wb") as stdout,
            terminal(site.url, "wait", run_id, "--timeout-sec", "1", stdout=stdout) as screen,
        ):
            assert screen.left() == 1
            return screen.sent

    assert f"run {run_id} is still PENDING after 1 s" in once_heard(wait)
    assert (tmp_path / "out").read_text() == ""


def test_a_followed_list_is_a_table_that_changes(site: Site) -> None:
    """FLOW-189, FLOW-190"""
    tag = own_tag()
    first = site.submitted("f", tag=tag)
    with terminal(site.url, "list", "--follow", "--tag", tag, "--interval-sec", "0.2") as screen:
        screen.until(lambda sent: first in sent)
        second = site.submitted("[red]f", tag=tag)
        screen.until(lambda sent: second in sent)
        assert screen.interrupt() == 130
    lines = last_screen(screen.sent)
    assert [line.split()[0] for line in lines if tag in line] == [second, first]
    assert any("[red]f" in line for line in lines)


@pytest.mark.parametrize("columns", [80, 109, 110, 200])
def test_of_a_followed_list_only_names_are_cut(columns: int) -> None:
    name = "a-flow-with-a-very-long-name-" * 8
    run = {"run_id": str(uuid.uuid4()), "status": "CANCELLING", "flow_name": name, "tag": "t" * 99, "updated_at": 1e9}
    console = Console(width=columns, file=io.StringIO())
    console.print(_page([run], 10, None, columns))
    shown = console.file.getvalue().splitlines()[1]  # type: ignore[attr-defined]
    assert shown.startswith(f"{run['run_id']}  CANCELLING  a-flow-")
    assert shown.rstrip().endswith("2001-09-09T01:46:40Z" if columns >= 110 else " 01:46:40Z")
    assert len(shown) <= columns


def test_a_followed_list_is_json_on_a_terminal_when_asked_for(site: Site) -> None:
    """FLOW-430"""
    tag = own_tag()
    run_id = site.submitted("f", tag=tag)
    with terminal(site.url, "list", "--follow", "--tag", tag, "--output", "json") as screen:
        screen.until(lambda sent: sent.endswith("\n"))
        assert json.loads(screen.sent)["run_id"] == run_id
        assert screen.interrupt() == 130


def test_many_are_shown_before_they_are_cancelled_and_a_no_is_a_no(site: Site) -> None:
    tag = own_tag()
    run_id = site.submitted("f", tag=tag)
    for answer, code, status in (("n", 1, "PENDING"), ("y", 0, "CANCELLING")):
        with terminal(site.url, "cancel", "--all-matching", "--tag", tag) as screen:
            screen.until(lambda sent: "Cancel them? [y/N]" in sent)
            assert "Runs that match now: 1" in screen.sent
            assert run_id in screen.sent
            screen.type(f"{answer}\n")
            assert screen.left() == code
        assert site.status(run_id) == status


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_that_wants_no_colour_gets_none(site: Site, variables: dict[str, str]) -> None:
    run_id = site.ended("hello")
    for words in (["list", "--limit", "1", "--output", "table"], ["watch", run_id], ["why", run_id]):
        with terminal(site.url, *words, variables=variables) as screen:
            assert screen.left() == 0
        assert not COLOUR.search(screen.sent), words
        if words[0] == "watch" and "TERM" in variables:
            assert json.loads(screen.sent)["snapshot"]["status"] == "COMPLETED"  # nothing can move there


def test_a_table_on_a_terminal_has_coloured_states(site: Site) -> None:
    run_id = site.ended("broken")
    with terminal(site.url, "list", "--status", "FAILED", "--output", "table") as screen:
        assert screen.left() == 0
    assert run_id in screen.sent
    assert "\x1b[31mFAILED\x1b[0m" in screen.sent


# Anywhere else


def test_nothing_is_coloured_or_moves_in_a_pipe(site: Site) -> None:
    """FLOW-430, FLOW-448"""
    run_id = site.ended("broken")
    for words in (["list", "--output", "table"], ["watch", run_id], ["why", run_id], ["wait", run_id], ["get", run_id]):
        with process(site.url, *words) as running:
            out, err = running.communicate(timeout=120)
        assert (running.returncode, err) == (0, "")
        assert "\x1b" not in out


def test_a_tree_in_a_pipe_is_the_last_picture_in_plain_text(site: Site) -> None:
    with process(site.url, "watch", site.ended("hello"), "--output", "tree") as running:
        out, err = running.communicate(timeout=120)
    assert (running.returncode, err) == (0, "")
    assert "\x1b" not in out
    assert "hello COMPLETED" in out
    assert "greet  SUCCEEDED" in out


def test_a_followed_list_in_a_pipe_is_a_line_for_each_change(site: Site) -> None:
    """FLOW-190"""
    tag = own_tag()
    runs = [site.submitted("f", tag=tag) for _ in range(2)]
    asked = ["--tag", tag, "--status", "PENDING", "--interval-sec", "0.2"]
    with process(site.url, "list", "--follow", *asked) as running:
        assert running.stdout is not None
        stdout = running.stdout

        def line() -> Any:
            run = json.loads(stdout.readline())
            return run["run_id"], run["status"]

        assert [line(), line()] == [(run, "PENDING") for run in runs]
        with site.client() as client:
            client.cancel_run(runs[0])
        assert line() == (runs[0], "CANCELLING")  # it has left the status: told once more
        running.terminate()
        assert running.wait(120) == 130


def test_a_followed_list_tells_of_more_changes_than_it_shows_once_each(site: Site) -> None:
    """FLOW-190: the overlap brings them again and again"""
    tag = own_tag()
    asked = ["--tag", tag, "--limit", "1", "--interval-sec", "0.2"]
    with relayed(site.url) as relay, process(relay.url, "list", "--follow", *asked) as running:
        assert running.stdout is not None
        asyncio.run(eventually(lambda: b"updated_after=" in relay.seen))  # it has begun with an empty list
        runs = [site.submitted("f", tag=tag) for _ in range(3)]
        told = [json.loads(running.stdout.readline())["run_id"] for _ in runs]
        looks = relay.seen.count(b"updated_after=")
        asyncio.run(eventually(lambda: relay.seen.count(b"updated_after=") >= looks + 3))
        last = site.submitted("f", tag=tag)
        assert json.loads(running.stdout.readline())["run_id"] == last
        assert sorted(told) == sorted(runs)


def test_a_table_that_cannot_move_is_refused(site: Site) -> None:
    """FLOW-426"""
    with process(site.url, "list", "--follow", "--output", "table") as running:
        out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (1, "")
    assert err.startswith("ERR-PYOCO-0018: a table that is kept up to date needs a terminal")


def test_a_reader_that_goes_away_ends_a_followed_list_quietly(site: Site) -> None:
    with process(site.url, "list", "--follow", "--limit", "1", "--interval-sec", "0.2") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        site.submitted("f", tag=own_tag())
        assert running.wait(120) == 1
        assert running.stderr.read() == ""


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
    monkeypatch.setattr("pyoco_server.doors.cli.client.follow._TOLD_MAX", 3)
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
        ({"status": "PENDING"}, ["Nobody has taken it yet, and the server does not tell why."]),
        ({"status": "COMPLETED"}, ["It is done: all tasks that had to run have succeeded."]),
        ({"status": "CANCELLED", "cancel_reason": "no"}, ["It was cancelled: no."]),
        ({"status": "CANCELLING", "cancel_requested_at": 98.0}, ["It was asked to stop 2.0 s ago; nobody runs it."]),
        (
            {"status": "RUNNING", "worker_id": "w", "start_time": 95.0, "attempt": 2, "worker_alive": False},
            [
                "w runs it since 5.0 s.",
                "w has gone silent; another worker takes over when its claim runs out.",
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
                "Attempt 1 on v was handed back, 1 m 00 s ago.",
                "Attempt 2 on a worker was lost; last sign of life, 50 s ago.",
                "Last change: started 10 s ago by w.",
            ],
        ),
        (
            {
                "status": "CANCELLING",
                "last_change": {"what": "cancel_requested", "at": 98.0, "by": {"kind": "api_key", "id": "k1"}},
            },
            ["It was asked to stop; nobody runs it.", "Last change: cancel requested 2.0 s ago by key k1."],
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
