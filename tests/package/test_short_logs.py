"""Short log lines, for people at a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from pyoco_server.config import LogSettings
from pyoco_server.logs import configure_logging, get_logger

log = get_logger("pyoco_server.tests.short")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def written(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, settings: LogSettings | None = None) -> list[str]:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        configure_logging("pyoco-server:worker", settings or LogSettings(), name="worker-1")
    log.info("worker started", slots=4, tags=["a", "b"], nothing=None)
    log.warning("turn failed", run_id="r1", error=ValueError("two\nlines"))
    return stream.getvalue().splitlines()


@pytest.mark.usefixtures("plain")
def test_a_terminal_gets_one_short_line_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-1"""
    started, failed = written(Terminal(), monkeypatch)
    assert started[8:] == " info worker-1: worker started (slots: 4; tags: a, b)"
    assert failed[8:] == r" warning worker-1: turn failed (run: r1; error: two\nlines)"
    assert started[2] == started[5] == ":"


def test_a_pipe_gets_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-1"""
    assert [json.loads(line)["level"] for line in written(io.StringIO(), monkeypatch)] == ["INFO", "WARNING"]


def test_an_explicit_format_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-1"""
    lines = written(Terminal(), monkeypatch, LogSettings(log_format="json"))
    assert [json.loads(line)["message"] for line in lines] == ["worker started", "turn failed"]
    text = written(Terminal(), monkeypatch, LogSettings(log_format="text"))
    assert "WARNING  pyoco-server:worker pyoco_server.tests.short: turn failed" in "\n".join(text)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm")])
def test_colour_may_be_turned_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """CLI-1"""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    text = "\n".join(written(Terminal(), monkeypatch))
    assert ("\x1b[33m" in text) == (value == "xterm")
