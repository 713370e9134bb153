"""A multipart form with one file, read as it arrives: nothing above its cap is ever held in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from pyoco_server.doors.http.requests import Malformed, chunks_of
from pyoco_server.errors import Problem, TooLarge, WorkflowTooLarge

__all__ = ["Form", "WorkflowForm", "read_workflow_form", "wrong_part"]

_FIELD_BYTES_MAX = 4096
_PARTS_MAX = 16
#: Boundaries, headers and small fields around the file.
_WRAPPING_BYTES_MAX = 64 * 1024


@dataclass
class Part:
    """One part of a form. A file has a name of its own."""

    name: str = ""
    #: None: it is a field, not a file.
    file_name: str | None = None
    #: The file name came with backslashes, of which the parser makes something else.
    has_backslash: bool = False
    size_bytes: int = 0
    #: What a field holds. The form's file goes on as it comes, and is not kept here.
    data: bytearray = field(default_factory=bytearray)


class Form:
    """One file and small fields, in any order. `parts` is filled while `pieces` are taken."""

    def __init__(self, file_part: str, file_bytes_max: int, too_large: TooLarge, field_bytes_max: int) -> None:
        self._file_part, self._file_bytes_max, self._too_large = file_part, file_bytes_max, too_large
        self._field_bytes_max = field_bytes_max
        self.parts: dict[str, Part] = {}

    async def pieces(self, request: Request) -> AsyncIterator[bytes]:
        """The bytes of the file, as they come. Raises Malformed, and what it was given for a file that is too large,
        as soon as it shows: reading stops there."""
        content_type, options = parse_options_header(request.headers.get("content-type", ""))
        boundary = options.get(b"boundary", b"")
        if content_type != b"multipart/form-data" or not boundary:
            message = f"must be multipart/form-data with a part named {self._file_part}"
            raise wrong_part("", message, "content_type")
        collector = _Collector(self)
        callbacks = {name: getattr(collector, name) for name in dir(collector) if name.startswith("on_")}
        try:
            parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # a TypedDict of the library
            async for chunk in self._chunks(request):
                parser.write(chunk)
                for piece in collector.take():
                    yield piece
            parser.finalize()
        except FormParserError as error:
            raise wrong_part("", f"the form cannot be read: {error}") from error
        if not collector.ended:
            raise wrong_part("", "the form ends before its last boundary")

    def file(self) -> Part:
        """Raises Malformed when there is none, or an empty one."""
        part = self.parts.get(self._file_part)
        if part is None or not part.size_bytes:
            raise wrong_part(self._file_part, "is required and must not be empty", "missing")
        if part.file_name is None:
            raise wrong_part(self._file_part, "must be a file, not a field: give it a filename")
        return part

    def text(self, name: str) -> str | None:
        """What a field holds. None: there is no such field. Raises Malformed."""
        part = self.parts.get(name)
        if part is None:
            return None
        if part.file_name is not None:
            raise wrong_part(name, "must be a field, not a file")
        try:
            return part.data.decode()
        except UnicodeDecodeError as error:
            raise wrong_part(name, "must be UTF-8 text") from error

    def grow(self, part: Part, size_bytes: int) -> bool:
        """So much more has come of a part. Returns whether it is the file. Raises as soon as it is too large."""
        part.size_bytes += size_bytes
        if part.name != self._file_part:
            if part.size_bytes > self._field_bytes_max:
                raise wrong_part(part.name, f"has at most {self._field_bytes_max} bytes")
            return False
        if part.size_bytes > self._file_bytes_max:
            raise self._too_large
        return True

    async def _chunks(self, request: Request) -> AsyncIterator[bytes]:
        """The whole may exceed the file's cap by no more than its wrapping: then it is the file that is too large."""
        try:
            async for chunk in chunks_of(request, self._file_bytes_max + _WRAPPING_BYTES_MAX):
                yield chunk
        except TooLarge as error:
            raise self._too_large from error


class _Collector:
    """The parser's callbacks."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._header = (bytearray(), bytearray())
        self._part = Part()
        self._pieces: list[bytes] = []
        self.ended = False

    def take(self) -> list[bytes]:
        """What has come of the file since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def on_part_begin(self) -> None:
        self._part = Part()
        if len(self._form.parts) >= _PARTS_MAX:
            raise wrong_part("", f"the form has more than {_PARTS_MAX} parts")

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def on_header_end(self) -> None:
        name, value = (bytes(item) for item in self._header)
        self._header = (bytearray(), bytearray())
        if name.lower() == b"content-disposition":
            _, options = parse_options_header(value)
            self._part.name = options.get(b"name", b"").decode("utf-8", "replace")
            if b"filename" in options:
                self._part.file_name = options[b"filename"].decode("utf-8", "replace")
                self._part.has_backslash = b"\\" in value

    def on_headers_finished(self) -> None:
        if not self._part.name:
            raise wrong_part("", "a part of the form has no name")
        if self._part.name in self._form.parts:
            raise wrong_part(self._part.name, "is given twice")
        self._form.parts[self._part.name] = self._part

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        is_file = self._form.grow(self._part, end - start)
        if is_file:
            self._pieces.append(data[start:end])
        else:
            self._part.data += data[start:end]

    def on_end(self) -> None:
        self.ended = True


def wrong_part(name: str, message: str, kind: str = "form") -> Malformed:
    """One thing that is wrong with a part; no name: with the whole form."""
    loc = ("body", name) if name else ("body",)
    return Malformed(message, problems=(Problem(loc, message, kind),))


@dataclass
class WorkflowForm:
    """FLOW-79 to FLOW-81."""

    workflow: bytes
    flow_name: str
    tag: str | None


async def read_workflow_form(request: Request, workflow_bytes_max: int) -> WorkflowForm:
    """Raises Malformed, or WorkflowTooLarge as soon as the file passes its cap: reading stops there (FLOW-84)."""
    form = Form("workflow", workflow_bytes_max, WorkflowTooLarge(), _FIELD_BYTES_MAX)
    workflow = b"".join([piece async for piece in form.pieces(request)])
    if "params" in form.parts:  # FLOW-85: nobody shall believe that an override took effect
        message = "cannot be overridden: the params of an uploaded flow are its flow.defaults"
        raise wrong_part("params", message, "forbidden")
    form.file()
    flow_name = form.text("flow_name")
    if flow_name is None:
        raise wrong_part("flow_name", "is required", "missing")
    return WorkflowForm(workflow, flow_name, form.text("tag"))
