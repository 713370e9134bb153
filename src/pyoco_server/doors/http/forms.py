"""A multipart form with one file, parsed as it arrives: nothing above its cap is ever held in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from pyoco_server.doors.http.reading import members_of, read_texts
from pyoco_server.doors.http.requests import Malformed, chunks_of
from pyoco_server.doors.http.retries import RETRY_TEXT_BYTES_MAX, read_retry_text
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.submissions import RunSubmitYamlRequest
from pyoco_server.errors import Problem, PyocoError, TooLarge, WorkflowTooLarge

S = TypeVar("S", bound=Shape)

__all__ = ["Form", "FormPart", "Sink", "WorkflowForm", "parse_form", "read_workflow_form", "wrong_part"]

_FIELD_BYTES_MAX = RETRY_TEXT_BYTES_MAX
_PARTS_MAX = 16
_HEADER_BYTES_MAX = 16 * 1024
#: Boundaries, headers and small fields around the file.
_WRAPPING_BYTES_MAX = 64 * 1024


@dataclass
class FormPart:
    """One part of a form. Files have a file name."""

    name: str = ""
    #: None for a field.
    file_name: str | None = None
    #: The file name contained backslashes, which the parser alters.
    has_backslash: bool = False
    #: The file name was not valid UTF-8, so the decoded name differs from what was sent.
    is_garbled: bool = False
    size_bytes: int = 0
    #: The content of a field. The form's file is passed on as it arrives and not kept here.
    data: bytearray = field(default_factory=bytearray)


class Sink(Protocol):
    """Receives the parts of a form as they arrive, and validates them."""

    def begin(self, part: FormPart) -> None:
        """A part's headers have arrived. Raises the error for the response."""

    def take(self, part: FormPart, data: bytes) -> None:
        """More data of a part has arrived. Raises the error for the response."""


async def parse_form(
    request: Request, chunks: AsyncIterator[bytes], sink: Sink, wrong: Callable[[str, str], PyocoError]
) -> AsyncIterator[None]:
    """Feed the sink chunk by chunk, and yield after each chunk so that the caller can process the data.

    `wrong` makes the error for a form that cannot be parsed, from a message and an error type.
    """
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if content_type != b"multipart/form-data" or not boundary:
        raise wrong("must be multipart/form-data", "content_type")
    collector = _Collector(sink, wrong)
    callbacks = {name: getattr(collector, name) for name in dir(collector) if name.startswith("on_")}
    try:
        parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # a TypedDict of the library
        async for chunk in chunks:
            parser.write(chunk)
            yield
        parser.finalize()
    except FormParserError as error:
        raise wrong(f"the form cannot be read: {error}", "form") from error
    if not collector.ended:
        raise wrong("the form ends before its last boundary", "form")


class Form:
    """One file and small fields, in any order. `parts` is filled while `pieces` is consumed."""

    def __init__(self, file_part: str, file_bytes_max: int, too_large: TooLarge, field_bytes_max: int) -> None:
        self._file_part, self._file_bytes_max, self._too_large = file_part, file_bytes_max, too_large
        self._field_bytes_max = field_bytes_max
        self._pieces: list[bytes] = []
        self.parts: dict[str, FormPart] = {}

    async def pieces(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the bytes of the file as they arrive.

        Raises Malformed, or `too_large` as soon as the file exceeds its cap; reading stops there.
        """
        async for _ in parse_form(request, self._chunks(request), self, self._wrong):
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                yield piece

    def file(self) -> FormPart:
        """Return the file part. Raises Malformed if the file is missing or empty."""
        part = self.parts.get(self._file_part)
        if part is None or not part.size_bytes:
            raise wrong_part(self._file_part, "is required and must not be empty", "missing")
        if part.file_name is None:
            raise wrong_part(self._file_part, "must be a file, not a field: give it a filename")
        return part

    def text(self, name: str) -> str | None:
        """Return the content of a field, or None if it is missing. Raises Malformed."""
        part = self.parts.get(name)
        if part is None:
            return None
        if part.file_name is not None:
            raise wrong_part(name, "must be a field, not a file")
        try:
            return part.data.decode()
        except UnicodeDecodeError as error:
            raise wrong_part(name, "must be UTF-8 text") from error

    def read(self, shape: type[S]) -> S:
        """Return the fields by their shape. Raises Malformed with every problem, those of the file included."""
        problems: list[Problem] = []
        given: dict[str, list[str]] = {}
        known = members_of(shape)
        for name in (self._file_part, *(each for each in self.parts if each != self._file_part)):
            try:
                if name == self._file_part:
                    self.file()
                else:
                    given[name] = [self.text(name) or "" if name in known else ""]
            except Malformed as error:
                problems += error.problems
        reading = read_texts(shape, given, "body")
        bad = {problem.loc for problem in problems}
        reading.problems = problems + [each for each in reading.problems if each.loc not in bad]
        return reading.checked()

    def begin(self, part: FormPart) -> None:
        if len(self.parts) >= _PARTS_MAX:
            raise wrong_part("", f"the form has more than {_PARTS_MAX} parts")
        if part.name in self.parts:
            raise wrong_part(part.name, "is given twice")
        self.parts[part.name] = part

    def take(self, part: FormPart, data: bytes) -> None:
        part.size_bytes += len(data)
        if part.name != self._file_part:
            if part.size_bytes > self._field_bytes_max:
                raise wrong_part(part.name, f"has at most {self._field_bytes_max} bytes")
            part.data += data
        elif part.size_bytes > self._file_bytes_max:
            raise self._too_large
        else:
            self._pieces.append(data)

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        """The body may exceed the file's cap only by the form overhead; beyond that, the file must be too large."""
        try:
            async for chunk in chunks_of(request, self._file_bytes_max + _WRAPPING_BYTES_MAX):
                yield chunk
        except TooLarge as error:
            raise self._too_large from error

    def _wrong(self, message: str, kind: str) -> Malformed:
        if kind == "content_type":
            message = f"{message} with a part named {self._file_part}"
        return wrong_part("", message, kind)


class _Collector:
    """The parser's callbacks."""

    def __init__(self, sink: Sink, wrong: Callable[[str, str], PyocoError]) -> None:
        self._sink, self._wrong = sink, wrong
        self._header = (bytearray(), bytearray())
        self._part = FormPart()
        self.ended = False

    def on_part_begin(self) -> None:
        self._part = FormPart()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._grow(self._header[0], data[start:end])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._grow(self._header[1], data[start:end])

    def on_header_end(self) -> None:
        name, value = (bytes(item) for item in self._header)
        self._header = (bytearray(), bytearray())
        if name.lower() == b"content-disposition":
            _, options = parse_options_header(value)
            self._part.name = options.get(b"name", b"").decode("utf-8", "replace")
            if b"filename" in options:
                self._part.file_name = options[b"filename"].decode("utf-8", "replace")
                self._part.is_garbled = self._part.file_name.encode() != options[b"filename"]
                self._part.has_backslash = b"\\" in value.replace(b'\\"', b"")

    def on_headers_finished(self) -> None:
        if not self._part.name:
            raise self._wrong("a part of the form has no name", "form")
        self._sink.begin(self._part)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._sink.take(self._part, data[start:end])

    def on_end(self) -> None:
        self.ended = True

    def _grow(self, header: bytearray, data: bytes) -> None:
        header += data
        if len(header) > _HEADER_BYTES_MAX:
            raise self._wrong(f"a header of a part has more than {_HEADER_BYTES_MAX} bytes", "form")


def wrong_part(name: str, message: str, kind: str = "form") -> Malformed:
    """Build the error for one problem of a part; without a name, of the form itself."""
    loc = ("body", name) if name else ("body",)
    return Malformed(message, problems=(Problem(loc, message, kind),))


@dataclass
class WorkflowForm:
    """The fields of FLOW-79 to FLOW-81."""

    workflow: bytes
    flow_name: str
    tag: str | None
    delay: float | None = None
    not_before: float | None = None
    retry: Mapping[str, Any] | None = None
    timeout: float | None = None


async def read_workflow_form(request: Request, workflow_bytes_max: int) -> WorkflowForm:
    """Raises Malformed, or WorkflowTooLarge as soon as the file exceeds its cap; reading stops there (FLOW-84)."""
    form = Form("workflow", workflow_bytes_max, WorkflowTooLarge(), _FIELD_BYTES_MAX)
    workflow = b"".join([piece async for piece in form.pieces(request)])
    if "params" in form.parts:  # FLOW-85: refuse, so that no client assumes that an override took effect
        message = "cannot be overridden: the params of an uploaded flow are its flow.defaults"
        raise wrong_part("params", message, "forbidden")
    asked = form.read(RunSubmitYamlRequest)
    retry = read_retry_text(asked.retry)
    return WorkflowForm(workflow, asked.flow_name, asked.tag, asked.delay, asked.not_before, retry, asked.timeout)
