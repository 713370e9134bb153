"""What people see: views that move on a terminal, and nothing of them anywhere else."""

from __future__ import annotations

import asyncio
import io
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pyoco_server.doors.cli.client.live_list import _page
from support.client_clocks import client_command
from support.client_commands import own_tag, process, terminal
from support.relays import relayed
from support.sites import Site
from support.waiting import eventually

COLOUR = re.compile(r"\x1b\[(?:\d+;)*[39][0-7](?:;\d+)*m")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


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
    words = ("wait", run_id, "--timeout-sec", "1")
    with (
        (tmp_path / "out").open("wb") as stdout,
        terminal(site.url, *words, stdout=stdout, command=client_command()) as screen,
    ):
        assert screen.left() == 1
    assert f"run {run_id} is still PENDING after 1 s" in screen.sent
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
    listed = ["list", "--run-id", run_id, "--output", "table"]
    for words in (listed, ["watch", run_id], ["why", run_id], ["wait", run_id], ["get", run_id]):
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
        assert line() == (runs[0], "CANCELLING")  # it has left the status: printed again
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
    assert err.startswith("ERR-PYOCO-0018: a live table needs a terminal")


def test_a_reader_that_goes_away_ends_a_followed_list_quietly(site: Site) -> None:
    with process(site.url, "list", "--follow", "--limit", "1", "--interval-sec", "0.2") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        site.submitted("f", tag=own_tag())
        assert running.wait(120) == 1
        assert running.stderr.read() == ""
