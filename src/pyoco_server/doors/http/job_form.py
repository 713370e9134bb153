"""The form of `POST /jobs` (GRID-155), parsed as it arrives."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Final

from msgspec import Meta, field
from starlette.requests import Request as HttpRequest

from pyoco_server.core.delays import Delay, delay_problem
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.job import ARGS_BYTES_MAX, ARGS_MAX, TIMEOUT_MAX, JobAsk, check_ask
from pyoco_server.core.programs.names import FILES_MAX, file_name_problem
from pyoco_server.core.unknown import unknown_members
from pyoco_server.doors.http.filters import ClientId, ExecName, Group, JobId
from pyoco_server.doors.http.forms import FormPart, parse_form
from pyoco_server.doors.http.job_files import JobFiles
from pyoco_server.doors.http.reading import members_of
from pyoco_server.doors.http.requests import MalformedProgramRequest, chunks_of
from pyoco_server.doors.http.retries import RETRY_TEXT_BYTES_MAX, MaybeRetryText, read_retry_text
from pyoco_server.doors.http.shapes import Duration, File, FormRequest, Instant
from pyoco_server.doors.http.submissions import Defaults, MaybeDelay, MaybeNotBefore
from pyoco_server.errors import TooLarge, TooSlow

__all__ = ["CLIENT_ID_DEFAULT", "JobForm", "JobSubmitRequest", "read_job_form"]

#: Client id of jobs that name no client and come without a key (GRID-155).
CLIENT_ID_DEFAULT: Final = "http"


class JobSubmitRequest(FormRequest):
    """A program to be run once, with its arguments and files."""

    exec_name: Annotated[ExecName, Meta(description="The program, by the name that workers know.")]
    arg: Annotated[
        list[str],
        Meta(
            max_length=ARGS_MAX,
            description=f"Its arguments, one part each, in their order; {ARGS_BYTES_MAX} bytes together.",
        ),
    ] = field(default_factory=list)
    file: Annotated[
        list[File],
        Meta(
            max_length=FILES_MAX,
            description="Its input files, one part each, under their own names, which hold no path.",
        ),
    ] = field(default_factory=list)
    job_id: (
        Annotated[
            JobId,
            Meta(description="Chosen by the caller: repeating the same job under the same id has no further effect."),
        ]
        | None
    ) = None
    client_id: (
        Annotated[
            ClientId,
            Meta(
                description="Whose job it is, for its cap and its lane: the id of the API key unless given, "
                f"`{CLIENT_ID_DEFAULT}` without one.",
            ),
        ]
        | None
    ) = None
    group: Annotated[Group, Meta(description="Where it is queued: the gateway's own group unless given.")] | None = None
    timeout_sec: (
        Annotated[float, Meta(ge=1, le=TIMEOUT_MAX, description="Run time: `EXEC_JOB_TIMEOUT_SEC` unless given.")]
        | None
    ) = None
    delay: MaybeDelay = None
    not_before: MaybeNotBefore = None
    retry: MaybeRetryText = None
    timeout: (
        Annotated[Duration, Meta(description="The same as `timeout_sec`, also as text; not together with it.")] | None
    ) = None


_FIELD_BYTES_MAX: Final = 1024
_MEMBERS: Final = members_of(JobSubmitRequest)
_ONCE: Final = frozenset(_MEMBERS) - {"arg", "file"}
#: All known parts, and some unknown ones, all of which the response names.
_PARTS_MAX: Final = FILES_MAX + ARGS_MAX + 64
#: Minimum rate, enforced after a grace period: a slower upload would occupy one of few slots for hours.
_PACE_BYTES, _PACE_GRACE_SECONDS = 8 * 1024, 60.0

_DIGITS = re.compile(r"[0-9]{1,9}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,2})?", re.ASCII)


class JobForm:
    """The parts of the form received so far. Anything that is not valid in a job is refused immediately."""

    def __init__(self) -> None:
        self._fields: dict[str, bytearray] = {}
        self._args: list[bytearray] = []
        self._args_bytes = self._parts = self._files = 0
        self._names: set[str] = set()
        #: Names of parts that no job has.
        self._unknown: dict[str, None] = {}
        #: The name of each new file, followed by its bytes.
        self._came: list[str | bytes] = []

    def begin(self, part: FormPart) -> None:
        self._parts += 1
        if self._parts > _PARTS_MAX:
            raise _bad(f"the form has more than {_PARTS_MAX} parts", None)
        if part.name == "file":
            self._begin_file(part)
            return
        if part.file_name is not None and part.name in {*_ONCE, "arg"}:
            raise _bad(f"{part.name} must be a field, not a file", part.name)
        if part.name == "arg":
            if len(self._args) >= ARGS_MAX:
                raise _bad(f"a job has at most {ARGS_MAX} arguments", "Args")
            self._args.append(bytearray())
        elif part.name in _ONCE:
            if part.name in self._fields:
                raise _bad(f"{part.name} is given twice", part.name)
            self._fields[part.name] = bytearray()
        else:
            self._unknown[part.name] = None

    def take(self, part: FormPart, data: bytes) -> None:
        if part.name == "file":
            self._came.append(data)
        elif part.name == "arg":
            self._args_bytes += len(data)
            if self._args_bytes > ARGS_BYTES_MAX:
                raise _bad(f"arguments take at most {ARGS_BYTES_MAX} bytes together", "Args")
            self._args[-1] += data
        elif part.name in _ONCE:
            content = self._fields[part.name]
            content += data
            bytes_max = RETRY_TEXT_BYTES_MAX if part.name == "retry" else _FIELD_BYTES_MAX
            if len(content) > bytes_max:
                raise _bad(f"{part.name} has at most {bytes_max} bytes", part.name)

    def check_names(self) -> None:
        """Raises MalformedProgramRequest with every unknown part (STRICT-1)."""
        problems = unknown_members(("body",), self._unknown, _MEMBERS)
        if problems:
            raise MalformedProgramRequest(problems[0].msg, problems=tuple(problems))

    async def store(self, files: JobFiles) -> None:
        """Move the file data received so far to `files`."""
        came, self._came = self._came, []
        for item in came:
            await (files.begin(item) if isinstance(item, str) else files.write(item))

    @property
    def args(self) -> tuple[str, ...]:
        return tuple(_decoded(each, "Args") for each in self._args)

    def text(self, name: str) -> str | None:
        """Return a field, or None if it is missing."""
        return _decoded(self._fields[name], name) if name in self._fields else None

    def _begin_file(self, part: FormPart) -> None:
        """GRID-96: refuse a bad name before reading the file's bytes."""
        if part.file_name is None:
            raise _bad("file must be a file, not a field: give it a filename", "Files")
        self._files += 1
        if self._files > FILES_MAX:
            raise GridRefused(Code.TOO_LARGE, f"a job has at most {FILES_MAX} files", field="Files")
        problem = file_name_problem(part.file_name)
        if part.is_garbled:
            problem = "a file name must be UTF-8"
        elif part.has_backslash:
            problem = "a file name may not contain '/' or '\\'"
        elif problem is None and part.file_name.casefold() in self._names:
            problem = "two files have the same name, when letter case is ignored"
        if problem is not None:
            raise GridRefused(Code.BAD_FILE_NAME, problem, field="Files")
        self._names.add(part.file_name.casefold())
        self._came.append(part.file_name)


async def read_job_form(
    request: HttpRequest,
    files: JobFiles,
    bytes_max: int,
    *,
    group: str,
    client_id: str,
    job_id: str,
    defaults: Defaults,
) -> JobAsk:
    """Read the job request; the file data goes to `files` as it arrives. The keyword arguments are the defaults.

    Raises GridRefused: TOO_LARGE as soon as the limit is exceeded, BAD_SCHEMA and others of section 26.2; TooSlow,
    NoRoom, TooManyTransfers.
    """
    form, began = JobForm(), time.monotonic()
    async for _ in parse_form(request, _chunks(request, bytes_max, began), form, lambda text, _: _bad(text, None)):
        await form.store(files)
    form.check_names()
    exec_name = form.text("exec_name")
    if exec_name is None:
        raise _bad("exec_name is required", "ExecName")
    ask = JobAsk(
        job_id=_or(form.text("job_id"), job_id),
        group=_or(form.text("group"), group),
        client_id=_or(form.text("client_id"), client_id),
        exec_name=exec_name,
        args=form.args,
        files=await files.finish(),
        timeout_sec=_timeout(form),
        delay=_delay(form, defaults),
        retry=read_retry_text(form.text("retry")),
    )
    return check_ask(ask)


def _timeout(form: JobForm) -> float | None:
    seconds, text = form.text("timeout_sec"), form.text("timeout")
    if text is None:
        return None if seconds is None else _number(seconds)
    if seconds is not None:
        raise _bad("timeout cannot be given together with timeout_sec", "timeout")
    try:
        return Duration.text_rule(text)
    except ValueError as error:
        raise _bad(f"timeout {error}", "timeout") from error


def _delay(form: JobForm, defaults: Defaults) -> Delay:
    """DELAY-1 to DELAY-3"""
    times: dict[str, float] = {}
    for name, rule in (("delay", Duration.text_rule), ("not_before", Instant.text_rule)):
        text = form.text(name)
        try:
            if text is not None:
                times[name] = rule(text)
        except ValueError as error:
            raise _bad(f"{name} {error}", name) from error
    asked = Delay(times.get("delay"), times.get("not_before"))
    problem = delay_problem(asked, defaults.now, defaults.delay_seconds_max, "PYOCO_DELAY_MAX_SEC")
    if problem is not None:
        raise _bad(f"{problem[0]} {problem[1]}", problem[0])
    return asked


async def _chunks(request: HttpRequest, bytes_max: int, began: float) -> AsyncIterator[bytes]:
    size = 0
    try:
        async for chunk in chunks_of(request, bytes_max):
            yield chunk
            size += len(chunk)
            if size < (time.monotonic() - began - _PACE_GRACE_SECONDS) * _PACE_BYTES:
                raise TooSlow("the job comes too slowly")
    except TooLarge:
        text = f"a job has at most {bytes_max} bytes (EXEC_HTTP_MAX_BYTES)"
        raise GridRefused(Code.TOO_LARGE, text) from None


def _or(given: str | None, otherwise: str) -> str:
    return otherwise if given is None else given


def _number(text: str) -> float:
    """Parse as JSON does: 60 and 60.0 stay distinct, because their fingerprints differ."""
    if _DIGITS.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    raise _bad("timeout_sec must be a number of seconds", "TimeoutSec")


def _decoded(data: bytearray, field: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _bad(f"{field} must be UTF-8 text", field) from None


def _bad(message: str, field: str | None) -> GridRefused:
    return GridRefused(Code.BAD_SCHEMA, message, field=field)
