"""JSON lines on stdout, or short lines on a terminal (section 21 of the contract), by the standard library's logging.

    log = get_logger(__name__)
    log.info("run ended", run_id=run.id, status="COMPLETED")
    log.bind(run_id=run.id).error("the snapshot was not written", error=error)

Fields are data, never part of the message. A field named like a secret is not written (FLOW-531), and neither are
credentials in a URL nor anything that looks like one of our API keys, wherever they stand.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from types import TracebackType
from typing import TextIO

from pyoco_server.config import LogSettings
from pyoco_server.errors import CATALOGUE, PyocoError
from pyoco_server.logs.short import clock_of, has_colour, short_text, with_colour

__all__ = ["Log", "configure_logging", "get_logger", "redact_url"]

#: Their records are written like ours. uvicorn must be run with `log_config=None`, or it restores its own handlers.
_LIBRARIES = ("asyncio", "nats", "uvicorn", "uvicorn.access", "uvicorn.error")

#: The record attribute that holds a Log's fields; one attribute, so that no field can overwrite one of logging's.
_FIELDS = "pyoco_fields"
#: Record attributes that are not fields: those of logging, and uvicorn's coloured copy of the message.
_NO_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
    _FIELDS,
}
_RESERVED = frozenset(
    {"ts", "service", "level", "logger", "message", "pathname", "lineno", "func"}
    | {"exc_type", "exc_message", "exc_traceback", "exc_origin", "exc_chain"}
)

#: Only a safety net: code should not log these at all.
_SECRET_NAMES = frozenset({"key", "params", "workflow_yaml", "authorization", "x_api_key"})
_SECRET_ENDINGS = ("api_key", "pepper", "token", "password", "secret")
_HIDDEN = "***"

_USERINFO = re.compile(r"://[^\s/\"'<>]*@")
_API_KEY = re.compile(r"(pyoco_[0-9a-f]{16}_)[A-Za-z0-9_-]+")
#: Characters that some readers treat as line ends or that move a terminal's cursor, and that JSON leaves unescaped.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")

_encode = json.JSONEncoder(ensure_ascii=False).encode

_TEXT_CHARACTERS_MAX = 32_768
_ITEMS_MAX = 100
_DEPTH_MAX = 4
_CHAIN_MAX = 10


def configure_logging(service: str, settings: LogSettings | None = None, *, name: str | None = None) -> None:
    """Send every record of this process to the current stdout (FLOW-422). Another call replaces the earlier one.

    `name` is how this process is called in short lines. [default: the last part of `service`]

    Never raises (FLOW-530): a bad setting or an unusable output causes a warning, ERR-PYOCO-0013, and the program
    continues.
    """
    settings = settings if settings is not None else LogSettings.from_env()
    # Bound now, not looked up for each record: the engine swaps sys.stdout while a task runs, to capture its output.
    handler = _Output(sys.stdout)
    handler.setFormatter(_formatter(service, settings, name))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Output)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(settings.log_level)
    for each in _LIBRARIES:
        library = logging.getLogger(each)
        library.handlers.clear()
        library.propagate = True
    for problem in settings.problems:
        get_logger(__name__).warning("log setting ignored", reason=problem, **_LOG_OUTPUT_FAILED)


def _formatter(service: str, settings: LogSettings, name: str | None) -> logging.Formatter:
    """Return the formatter that the settings name; `auto` depends on whether stdout is a terminal (CLI-1)."""
    if settings.log_format == "text":
        return _Text(service, settings)
    if settings.log_format == "json" or not _is_terminal(sys.stdout):
        return _Json(service, settings)
    return _Short(service, settings, name or service.rpartition(":")[2], coloured=has_colour(sys.stdout))


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


_LOG_OUTPUT_FAILED = {"err_id": CATALOGUE[13].err_id, "msg_id": CATALOGUE[13].msg_id}


def get_logger(name: str) -> Log:
    return Log(logging.getLogger(name))


@dataclass(frozen=True, slots=True)
class Log:
    """A logger with fields.

    `error=` takes an exception: it is written with its causes, and with its error ids if it is one of ours (FLOW-526).
    A record below the level costs one dictionary and one lookup.
    """

    _logger: logging.Logger
    _fields: Mapping[str, object] = field(default_factory=dict)

    def bind(self, **fields: object) -> Log:
        """Return a logger that adds `fields` to every record. The original is not changed."""
        return Log(self._logger, {**self._fields, **fields})

    def debug(self, message: str, /, **fields: object) -> None:
        self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        self._emit(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        self._emit(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        self._emit(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: object) -> None:
        """Like `error`, with the exception being handled."""
        self._emit(logging.ERROR, message, {"error": sys.exception(), **fields})

    def _emit(self, level: int, message: str, fields: Mapping[str, object]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        merged = {**self._fields, **fields}
        error = merged.get("error")
        if error is None or isinstance(error, BaseException):
            merged.pop("error", None)
        if isinstance(error, PyocoError):
            merged = {"err_id": error.text.err_id, "msg_id": error.text.msg_id, **merged}
        raised = error if isinstance(error, BaseException) else None
        # The calling line is three frames up: above this method and above `info`, `error`, …
        self._logger.log(level, message, exc_info=raised, extra={_FIELDS: merged}, stacklevel=3)


def redact_url(url: str) -> str:
    """Return the address without user, password or token. Supports several addresses separated by commas."""
    parts = re.split(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)", url)
    return ",".join(map(_redact_one, parts))


def _redact_one(url: str) -> str:
    """Everything before the last `@` is removed: if in doubt, hide too much."""
    credentials, at, rest = url.rpartition("@")
    if not at:
        return url
    scheme, slashes, _ = credentials.partition("://")
    return f"{scheme}{slashes}{_HIDDEN}@{rest}" if slashes else f"{_HIDDEN}@{rest}"


def _clean(text: str) -> str:
    """Remove credentials and shorten long texts. The end is kept, because it usually holds the meaning of an error."""
    if "://" in text:
        text = _USERINFO.sub(f"://{_HIDDEN}@", text)
    if "pyoco_" in text:
        text = _API_KEY.sub(rf"\g<1>{_HIDDEN}", text)
    if len(text) > _TEXT_CHARACTERS_MAX:
        half = _TEXT_CHARACTERS_MAX // 2
        text = f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"
    return text


def _is_secret(name: str) -> bool:
    name = name.lower().replace("-", "_")
    return name in _SECRET_NAMES or name.endswith(_SECRET_ENDINGS)


def _plain(value: object, depth: int = 0) -> object:
    """Convert any value to one that JSON can represent. For bytes only their number is shown."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _plain_items(value, depth + 1) if depth < _DEPTH_MAX else f"<{type(value).__name__}>"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {_text_of(value)}"
    return _clean(value) if isinstance(value, str) else _text_of(value)


def _plain_items(value: Mapping[object, object] | Collection[object], depth: int) -> object:
    if not isinstance(value, Mapping):
        return [_plain(each, depth) for each in islice(value, _ITEMS_MAX)]
    named = ((_text_of(name), each) for name, each in islice(value.items(), _ITEMS_MAX))
    return {name: _HIDDEN if _is_secret(name) else _plain(each, depth) for name, each in named}


def _text_of(value: object) -> str:
    try:
        return _clean(str(value))
    except Exception as error:  # noqa: BLE001 - a third-party __str__; a log line must not fail because of it
        return f"<{type(value).__name__}, whose text cannot be had: {type(error).__name__}>"


class _Facts(logging.Formatter):
    """Collects the facts of a record; `_Json` and `_Text` format them."""

    def __init__(self, service: str, settings: LogSettings) -> None:
        super().__init__()
        self._service = service
        self._zone = UTC if settings.log_utc else None
        self._include_traceback = settings.log_include_traceback

    def facts(self, record: logging.LogRecord) -> dict[str, object]:
        facts: dict[str, object] = {
            "ts": self._time(record.created),
            "service": self._service,
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "pathname": record.pathname,
            "lineno": record.lineno,
            "func": record.funcName,
        }
        own = {name: value for name, value in record.__dict__.items() if name not in _NO_FIELDS}
        for name, value in {**own, **getattr(record, _FIELDS, {})}.items():
            free = name
            while free in _RESERVED or free in facts:
                free += "_"
            facts[free] = _HIDDEN if _is_secret(name) else _plain(value)
        if record.exc_info and record.exc_info[1] is not None:
            facts |= _exception_facts(record.exc_info[1], record.exc_info[2], self._include_traceback)
        return facts

    def _time(self, created: float) -> str:
        moment = datetime.fromtimestamp(created, UTC)
        if self._zone is None:
            return moment.astimezone().isoformat(timespec="microseconds")
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return _clean(record.getMessage())
    except Exception as error:  # noqa: BLE001 - a library whose arguments do not fit its format
        return f"{_text_of(record.msg)} (arguments do not fit: {type(error).__name__})"


def _exception_facts(
    error: BaseException, trace: TracebackType | None, include_traceback: bool
) -> dict[str, object]:  # FLOW-523
    facts: dict[str, object] = {
        "exc_type": type(error).__name__,
        "exc_message": _text_of(error),
        "exc_origin": _origin(trace),
    }
    causes = [
        {"type": type(cause).__name__, "message": _text_of(cause), "origin": _origin(cause.__traceback__)}
        for cause in _causes(error)
    ]
    if causes:  # FLOW-526: the original error is named even without tracebacks
        facts["exc_chain"] = causes
    if include_traceback:
        facts["exc_traceback"] = _clean("".join(traceback.format_exception(type(error), error, trace)))
    return facts


def _causes(error: BaseException) -> list[BaseException]:
    """Return the causes of an error, nearest first; chains may be long or even circular."""
    found: list[BaseException] = []
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and cause is not error and cause not in found and len(found) < _CHAIN_MAX:
        found.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return found


def _origin(trace: TracebackType | None) -> dict[str, object] | None:
    """Return the innermost frame: where the error was raised."""
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return {"file": code.co_filename, "line": trace.tb_lineno, "func": code.co_name}


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


class _Json(_Facts):
    """One object per line, without any kind of line break inside (FLOW-521)."""

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(_escape, _encode(self.facts(record)))


class _Text(_Facts):
    """The same for people: one line, and an exception's traceback indented below it (FLOW-528)."""

    def format(self, record: logging.LogRecord) -> str:
        facts = self.facts(record)
        trace = str(facts.pop("exc_traceback", ""))
        head = "{ts} {level:<8} {service} {logger}: {message}".format(**facts)
        rest = [f"{name}={_encode(value)}" for name, value in facts.items() if name not in _HEAD]
        place = f"({facts['pathname']}:{facts['lineno']} {facts['func']})"
        line = _CONTROL.sub(_escape, " ".join([head, *rest, place]))
        below = [f"\n    {_CONTROL.sub(_escape, each)}" for each in trace.rstrip("\n").split("\n") if trace]
        return line + "".join(below)


class _Short(_Facts):
    """One short line for people at a terminal, without tracebacks (CLI-1)."""

    def __init__(self, service: str, settings: LogSettings, name: str, *, coloured: bool) -> None:
        super().__init__(service, settings)
        self._name, self._is_coloured = name, coloured

    def format(self, record: logging.LogRecord) -> str:
        facts = self.facts(record)
        line = f"{clock_of(facts)} {short_text(self._name, facts)}"
        return with_colour(line, facts["level"]) if self._is_coloured else line


_HEAD = frozenset({"ts", "level", "service", "logger", "message", "pathname", "lineno", "func"})


class _Output(logging.Handler):
    """Writes lines to one stream, and to stderr once that stream is broken. Never raises into the program."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        if stream is None:
            self._warn("there is no stdout")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - the last stop of every record: no caller could handle an error
            line = json.dumps(
                {"level": record.levelname, "logger": record.name, "message": _message(record), "reason": repr(error)}
            )
        if self._stream is None or not self._written(self._stream, line):
            _write_to_stderr(line)

    def _written(self, stream: TextIO, line: str) -> bool:
        try:
            _write(stream, line)
        except BrokenPipeError as error:
            # The reader has exited. Buffered data would fail again at exit.
            self._stream = None
            self._warn(str(error))
            with contextlib.suppress(OSError, ValueError):
                _redirect_to_null(stream)
        # disk full, stream closed, or called from a signal handler during a write
        except (OSError, ValueError, RuntimeError) as error:
            if getattr(stream, "closed", True):
                self._stream = None
                self._warn(str(error))
            return False
        return self._stream is not None

    def _warn(self, reason: str) -> None:
        warning = {"level": "WARNING", "message": CATALOGUE[13].en, "reason": reason, **_LOG_OUTPUT_FAILED}
        _write_to_stderr(json.dumps(warning))


def _write(stream: TextIO, line: str) -> None:
    try:
        stream.write(line + "\n")
    except UnicodeEncodeError:  # not a UTF-8 stream, or a lone surrogate; \u… is valid JSON, too
        stream.write(_NOT_ASCII.sub(_escape, line) + "\n")
    stream.flush()


def _write_to_stderr(line: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            _write(sys.stderr, line)


def _redirect_to_null(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
