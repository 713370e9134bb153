"""Logs: one JSON object per line, whatever is put in, and no secret among it (section 21 of the contract)."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyoco_server import logging_config
from pyoco_server.config import LogSettings
from pyoco_server.errors import NotStored, RunNotFound
from pyoco_server.logs import configure_logging, get_logger, redact_url

SERVICE = "pyoco-server:http"
ALWAYS = {"ts", "service", "level", "logger", "message", "pathname", "lineno", "func"}
log = get_logger("tests.logs")


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


class Lines:
    """A stdout to log to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = io.StringIO()
        self._monkeypatch = monkeypatch

    def configure(self, **settings: Any) -> None:
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", self.stream)
            configure_logging(SERVICE, LogSettings(**settings))

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def only(self) -> dict[str, Any]:
        (record,) = self.records
        return record


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines(monkeypatch)
    lines.configure()
    return lines


def test_every_record_says_when_where_and_what(lines: Lines) -> None:
    """FLOW-521, FLOW-522, FLOW-525"""
    log.info("hello", run_id="r1", tag="gpu")
    here = sys._getframe().f_lineno - 1
    record = lines.only
    moment = datetime.fromisoformat(record.pop("ts"))
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    assert record == {
        "service": SERVICE,
        "level": "INFO",
        "logger": "tests.logs",
        "message": "hello",
        "pathname": __file__,
        "lineno": here,
        "func": "test_every_record_says_when_where_and_what",
        "run_id": "r1",
        "tag": "gpu",
    }


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "exception"])
def test_each_verb_logs_at_its_level_and_names_the_line_that_called_it(lines: Lines, level: str) -> None:
    lines.configure(log_level="DEBUG")
    getattr(log, level)("x")
    assert lines.only["level"] == ("ERROR" if level == "exception" else level.upper())
    assert lines.only["func"] == "test_each_verb_logs_at_its_level_and_names_the_line_that_called_it"


@pytest.mark.parametrize(("level", "count"), [("DEBUG", 4), ("INFO", 3), ("WARNING", 2), ("ERROR", 1), ("CRITICAL", 0)])
def test_records_below_the_level_are_left_out(lines: Lines, level: str, count: int) -> None:
    """FLOW-513"""
    lines.configure(log_level=level)
    for verb in (log.debug, log.info, log.warning, log.error):
        verb("x")
    assert len(lines.records) == count


def test_configuring_twice_does_not_log_twice(lines: Lines) -> None:
    """FLOW-422"""
    lines.configure()
    lines.configure()
    log.info("once")
    assert lines.only["message"] == "once"
    assert logging_config.configure_logging is configure_logging


def test_a_bound_logger_adds_its_fields_and_leaves_the_first_one_alone(lines: Lines) -> None:
    bound = log.bind(run_id="r1", tag="a")
    bound.info("x", tag="b")
    log.info("y")
    first, second = lines.records
    assert (first["run_id"], first["tag"]) == ("r1", "b")
    assert "run_id" not in second


def test_times_are_utc_or_carry_their_offset(lines: Lines) -> None:
    """FLOW-515"""
    log.info("x")
    lines.configure(log_utc=False)
    log.info("y")
    utc, local = (record["ts"] for record in lines.records)
    assert utc.endswith("Z")
    assert datetime.fromisoformat(local).tzinfo is not None
    assert not local.endswith("Z")


def fail() -> None:
    raise ZeroDivisionError("by nothing")


def wrapped() -> NotStored:
    try:
        try:
            fail()
        except ZeroDivisionError as error:
            raise NotStored("no NATS server answers") from error
    except NotStored as error:
        return error
    raise AssertionError


def test_an_error_of_ours_is_logged_with_its_ids_and_its_original(lines: Lines) -> None:
    """FLOW-523, FLOW-524, FLOW-526"""
    log.error("submit failed", error=wrapped())
    record = lines.only
    assert (record["err_id"], record["msg_id"]) == ("ERR-PYOCO-0003", "MSG-PYOCO-0003")
    assert (record["exc_type"], record["exc_message"]) == ("NotStored", "no NATS server answers")
    assert record["exc_origin"]["file"] == __file__
    assert record["exc_origin"]["func"] == "wrapped"
    assert isinstance(record["exc_origin"]["line"], int)
    (cause,) = record["exc_chain"]
    assert (cause["type"], cause["message"], cause["origin"]["func"]) == ("ZeroDivisionError", "by nothing", "fail")
    assert "ZeroDivisionError: by nothing" in record["exc_traceback"]
    assert "error" not in record


def test_without_tracebacks_everything_else_stays(lines: Lines) -> None:
    """FLOW-529"""
    error = wrapped()
    log.error("x", error=error)
    lines.configure(log_include_traceback=False)
    log.error("x", error=error)
    full, short = lines.records
    assert full.keys() - short.keys() == {"exc_traceback"}


def test_exception_logs_what_is_being_handled(lines: Lines) -> None:
    try:
        fail()
    except ZeroDivisionError:
        log.exception("turn failed", loop="Reaper")
    assert lines.only["exc_type"] == "ZeroDivisionError"
    assert lines.only["exc_origin"]["func"] == "fail"


def test_an_error_that_was_never_raised_and_one_in_a_circle_are_logged(lines: Lines) -> None:
    circle = ValueError("a")
    circle.__cause__ = KeyError("b")
    circle.__cause__.__cause__ = circle
    log.warning("x", error=RunNotFound())
    log.warning("y", error=circle)
    first, second = lines.records
    assert (first["err_id"], first["exc_origin"]) == ("ERR-PYOCO-0005", None)
    assert len(second["exc_chain"]) == 1


def test_an_id_that_is_given_wins_over_the_error_s_own(lines: Lines) -> None:
    log.warning("x", error=RunNotFound(), err_id="ERR-PYOCO-0008")
    assert lines.only["err_id"] == "ERR-PYOCO-0008"


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("日本", "日本"),
        (Colour.RED, "red"),
        (b"secret bytes", "12 bytes"),
        (Path("/a"), "/a"),
        (ValueError("v"), "ValueError: v"),
        ((1, [2]), [1, [2]]),
        ({"a": {1: b"x"}}, {"a": {"1": "1 bytes"}}),
        ({"outer": {"password": "p", "ok": 1}}, {"outer": {"password": "***", "ok": 1}}),
        ([[[[[1]]]]], [[[["<list>"]]]]),
        (list(range(1000)), list(range(100))),
        (Odd(), "<Odd, whose text cannot be had: RuntimeError>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_can_be_a_field(lines: Lines, value: object, written: object) -> None:
    log.info("x", value=value)
    assert lines.only["value"] == written


def test_a_field_cannot_take_the_place_of_another(lines: Lines) -> None:
    log.info("real", ts=1, message="a", message_="b", service="c", exc_type="d", name="e", msg="f", self="g")
    record = lines.only
    assert record["message"] == "real"
    assert record["service"] == SERVICE
    assert {record["message_"], record["message__"]} == {"a", "b"}
    assert (record["service_"], record["exc_type_"], record["ts_"]) == ("c", "d", 1)
    assert (record["name"], record["msg"], record["self"]) == ("e", "f", "g")


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "key",
        "pepper",
        "auth_pepper",
        "Authorization",
        "params",
        "workflow_yaml",
        "token",
        "password",
        "X-API-Key",
        "client_secret",
    ],
)
def test_a_field_named_like_a_secret_is_not_written(lines: Lines, name: str) -> None:
    """FLOW-531"""
    log.bind(**{name: "hush"}).info("x")
    logging.getLogger("another.library").info("y", extra={name: "hush"})
    assert "hush" not in lines.text
    assert [record[name] for record in lines.records] == ["***", "***"]


def test_credentials_and_keys_inside_any_text_are_not_written(lines: Lines) -> None:
    """FLOW-531, FLOW-533"""
    url = "nats://a:4222,nats://anna:hush@b:4222"
    key = "pyoco_0123456789abcdef_" + "hush" * 11
    error = NotStored(f"no answer from {url} with {key}")
    log.error(f"{url} {key}", error=error, url=url, nested=[key, {"u": url}])
    logging.getLogger("nats").error("cannot reach %s", url)
    assert "hush" not in lines.text
    assert lines.records[0]["url"] == "nats://a:4222,nats://***@b:4222"
    assert "pyoco_0123456789abcdef_***" in lines.records[0]["message"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://anna:pw@h:4222", "nats://***@h:4222"),
        ("tls://token@h", "tls://***@h"),
        ("anna:pw@h:4222", "***@h:4222"),
        ("nats://a:4222,nats://anna:pw@b", "nats://a:4222,nats://***@b"),
        ("nats://anna:p,w@b, nats://c", "nats://***@b, nats://c"),
        ("nats://anna:p@w/x@b", "nats://***@b"),
        ("nats:/anna:pw@b", "***@b"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_its_credentials(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@given(secret=st.text(st.characters(exclude_characters=",")), host=st.from_regex(r"[a-z.]{1,20}", fullmatch=True))
def test_no_address_shows_what_stands_before_its_host(secret: str, host: str) -> None:
    assert redact_url(f"nats://{secret}XXXX@{host}") == f"nats://***@{host}"


@example(message="a\u2028b\x85c\x7f\r\n", value=None)
@example(message="half a pair: \ud800", value=None)
@given(message=st.text(), value=st.text() | st.binary() | st.recursive(st.none() | st.floats(), st.lists))
def test_whatever_is_logged_is_one_line_of_json(message: str, value: object) -> None:
    """FLOW-521"""
    stream, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    # Without pytest's own handlers: half a pair of surrogates in a report ends the process that sends it.
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        configure_logging(SERVICE, LogSettings())
        log.info(message, value=value, **{message: message})
        written = cast("io.BytesIO", sys.stdout.buffer).getvalue().decode()
    finally:
        sys.stdout = stream
        root.handlers = handlers
    assert written.endswith("\n")
    (line,) = written.splitlines()
    assert json.loads(line).keys() >= ALWAYS


def test_a_stream_that_is_not_utf_8_gets_valid_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    configure_logging(SERVICE, LogSettings())
    log.info("日本 é 😀")
    assert json.loads(raw.getvalue())["message"] == "日本 é 😀"


def test_very_long_texts_keep_their_beginning_and_their_end(lines: Lines) -> None:
    log.info("a" * 100_000 + "end")
    assert len(lines.text) < 40_000
    assert lines.only["message"].endswith("end")


def test_text_lines_say_the_same_and_cannot_be_forged(lines: Lines) -> None:
    """FLOW-528"""
    lines.configure(log_format="text")
    log.error("bad\n2020 INFO forged", error=wrapped(), run_id="r1", reason="two\nlines")
    first, *below = lines.text.rstrip("\n").split("\n")
    for part in ("ERROR", SERVICE, "tests.logs", r"bad\n2020", 'run_id="r1"', "ERR-PYOCO-0003", __file__, "NotStored"):
        assert part in first
    assert below
    assert all(line.startswith("    ") for line in below)
    assert "ZeroDivisionError: by nothing" in lines.text


def test_other_libraries_use_the_same_lines(lines: Lines) -> None:
    own = logging.getLogger("uvicorn.access")
    own.addHandler(logging.StreamHandler(io.StringIO()))
    own.propagate = False
    lines.configure()
    own.info('%s - "%s"', "127.0.0.1", "GET /health", extra={"color_message": "\x1b[1m"})
    logging.getLogger("asyncio").error("slow", extra={"seconds": 3})
    misfit = logging.makeLogRecord({"msg": "%d of %d", "args": (1,)})
    logging.getLogger().handlers[-1].handle(misfit)  # only ours: pytest's own handler would raise
    access, slow, unfit = lines.records
    assert access["message"] == '127.0.0.1 - "GET /health"'
    assert "color_message" not in access
    assert slow["seconds"] == 3
    assert unfit["message"].startswith("%d of %d (arguments do not fit")
    assert not own.handlers


def test_bad_log_settings_are_reported_and_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLOW-530"""
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "0")
    monkeypatch.setenv("PYOCO_LOG_LEVEL", "LOUD")
    configure_logging("pyoco-server:worker")
    log.info("on we go")
    warning, record = map(json.loads, capsys.readouterr().out.splitlines())
    assert (warning["level"], warning["err_id"], warning["msg_id"]) == ("WARNING", "ERR-PYOCO-0013", "MSG-PYOCO-0013")
    assert "PYOCO_LOG_LEVEL='LOUD'" in warning["reason"]
    assert record["service"] == "pyoco-server:worker"


@pytest.mark.parametrize("stdout", ["closed", "missing"])
def test_without_a_usable_stdout_lines_go_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdout: str
) -> None:
    """FLOW-530"""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream if stdout == "closed" else None)
    configure_logging(SERVICE, LogSettings())
    stream.close()
    log.info("still here")
    log.info("and here")
    warning, *records = map(json.loads, capsys.readouterr().err.splitlines())
    assert warning["err_id"] == "ERR-PYOCO-0013"
    assert [record["message"] for record in records] == ["still here", "and here"]


def test_with_no_stream_at_all_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    configure_logging(SERVICE, LogSettings())
    log.error("nobody hears", error=wrapped())


BROKEN_PIPE = """
import sys
from pyoco_server.config import LogSettings
from pyoco_server.logs import configure_logging, get_logger
configure_logging("pyoco-server:worker", LogSettings())
sys.stdin.readline()
for number in range(3):
    get_logger("x").info("line", number=number)
print("a task prints")
"""


def test_a_reader_that_goes_away_does_not_stop_the_process() -> None:
    """FLOW-530"""
    source = Path(__file__).parents[2] / "src"
    child = subprocess.Popen(
        [sys.executable, "-c", BROKEN_PIPE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(source)},
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with child, child.stderr as stderr:
        child.stdout.close()
        child.stdin.write("go\n")
        child.stdin.close()
        warning, *records = map(json.loads, stderr.read().splitlines())
    assert child.returncode == 0
    assert warning["err_id"] == "ERR-PYOCO-0013"
    assert [record["number"] for record in records] == [0, 1, 2]
