"""`pyoco-client logs`, and the lines that a wait prints on a terminal."""

from __future__ import annotations

import re

import pytest

from pyoco_server.actions import follow_logs
from support.client_commands import Client, terminal
from support.sites import Site

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: A line of text: the time, the task, the stream, the text.
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\S+) (\S+) (.*)")


TEXT = "\x1b[31mred\x1b[0m and \x1b[2Jnot cleared"


@pytest.fixture(autouse=True)
def quick_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_logs, "QUIET_SECONDS", 0.3)


@pytest.fixture(scope="module")
def run_id(shared_site: Site) -> str:
    """A run that has printed three lines."""
    shared_site.wake()
    run_id = shared_site.ended("hello")
    shared_site.rest()
    shared_site.prints(run_id, TEXT, "careful", "the last one")
    return run_id


@pytest.fixture
def client(shared_site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("PYOCO_SERVER_URL", shared_site.url)
    return Client(capsys, monkeypatch)


def test_a_pipe_gets_json_lines(client: Client, run_id: str) -> None:
    """LOG-29, CLI-3, CLI-7"""
    ended = client("logs", run_id[:13])
    assert (ended.code, ended.err) == (0, "")
    assert [line["text"] for line in ended.lines] == [TEXT, "careful", "the last one"]
    assert "\x1b" not in ended.out
    assert client("run", "logs", run_id).out == ended.out


def test_text_shows_control_characters(client: Client, run_id: str) -> None:
    """LOG-4, LOG-10: no colours but on a terminal"""
    line = client("logs", run_id, "--output", "text").out.splitlines()[0]
    assert LINE.fullmatch(line)
    assert line.endswith(" greet stdout red and \\x1b[2Jnot cleared")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--level", "warning"], 0),
        (["--search", "CARE"], 1),
        (["--tail", "1"], 1),
        (["--attempt", "last", "--task", "greet"], 3),
        (["--attempt", "2"], 0),
        (["--since", "100", "--stream", "stdout", "--stream", "log"], 3),
        (["--since", "1h"], 0),
        (["--task", "-"], 0),
        (["-f", "--search", "the"], 1),
    ],
)
def test_lines_are_chosen(client: Client, run_id: str, words: list[str], count: int) -> None:
    """LOG-29"""
    ended = client("logs", run_id, *words)
    assert (ended.code, ended.err, len(ended.lines)) == (0, "", count)


def test_a_task_that_the_run_does_not_have_is_named(client: Client, run_id: str) -> None:
    """LOG-29: no line may mean a typing error"""
    ended = client("logs", run_id, "--task", "nope", "--task", "greet", "--task", "-")
    assert (ended.code, len(ended.lines)) == (0, 3)
    assert ended.err == "no task 'nope' is known in this run; it has greet\n"


@pytest.mark.parametrize("words", [["--attempt", "0"], ["--tail", "0"], ["--level", "LOUD"], ["--stream", "stdin"]])
def test_a_bad_filter_is_a_usage_error(client: Client, words: list[str]) -> None:
    """CLI-14"""
    assert client("logs", "x", *words).code == 1


def test_an_unknown_run_has_no_log(client: Client) -> None:
    """LOG-20, LOG-29"""
    for words in ([], ["--follow"]):
        ended = client("logs", "00000000-0000-4000-8000-000000000000", *words)
        assert (ended.code, ended.out) == (1, "")
        assert "ERR-PYOCO-0005" in ended.err


def test_a_terminal_gets_colours_and_no_other_sequence(site: Site) -> None:
    """LOG-4, LOG-29: it is followed to its end, with exit code 0"""
    with site.held() as run_id, terminal(site.url, "logs", run_id, "-f") as screen:
        site.prints(run_id, TEXT)
        screen.until(lambda sent: "not cleared" in sent)
        site.let_go.set()
        assert screen.left() == 0
    assert " greet stdout \x1b[31mred\x1b[0m and \\x1b[2Jnot cleared\x1b[0m" in screen.sent
    assert "\x1b[2J" not in screen.sent
    with terminal(site.url, "logs", run_id, variables={"NO_COLOR": "1"}) as screen:
        assert screen.left() == 0
    assert "\x1b" not in screen.sent


def test_a_wait_on_a_terminal_prints_lines_as_they_come_and_then_the_outcome(site: Site) -> None:
    """CLI-4: one that comes after the run's end, too"""
    with site.held() as run_id, terminal(site.url, "wait", run_id) as screen:
        site.prints(run_id, "one", TEXT, is_over=False)
        screen.until(lambda sent: "not cleared" in sent)
        assert "COMPLETED" not in screen.sent
        site.let_go.set()
        assert screen.left() == 0
    shown = ESCAPE.sub("", screen.sent)
    assert shown.index(" greet stdout one") < shown.index("not cleared") < shown.index("COMPLETED  held")
    assert shown.count(" greet stdout ") == 2
    assert "\x1b[2J" not in screen.sent


def test_json_on_a_terminal_is_only_json(site: Site) -> None:
    """CLI-4: lines would be in its way"""
    with site.held() as run_id, terminal(site.url, "wait", run_id, "--output", "json") as screen:
        site.prints(run_id, "one")
        screen.until(lambda sent: "hold" in sent)
        site.let_go.set()
        assert screen.left() == 0
    assert " greet stdout " not in screen.sent


def test_ctrl_c_ends_a_wait_that_prints_lines(site: Site) -> None:
    """CLI-14"""
    with site.held() as run_id, terminal(site.url, "wait", run_id) as screen:
        site.prints(run_id, "one", is_over=False)
        screen.until(lambda sent: " greet stdout one" in ESCAPE.sub("", sent))
        assert screen.interrupt() == 130
    assert "Traceback" not in screen.sent
