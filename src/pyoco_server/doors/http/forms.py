"""A multipart form with one file, read as it arrives: nothing above its cap is ever held in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from pyoco_server.doors.http.requests import Malformed, chunks_of
from pyoco_server.errors import Problem, TooLarge, WorkflowTooLarge

__all__ = ["WorkflowForm", "read_workflow_form"]

_FIELD_BYTES_MAX = 4096
_PARTS_MAX = 16
#: Boundaries, headers and small fields around the file.
_WRAPPING_BYTES_MAX = 64 * 1024


@dataclass
class WorkflowForm:
    """FLOW-79 to FLOW-81."""

    workflow: bytes
    flow_name: str
    tag: str | None


@dataclass
class _Part:
    name: str = ""
    is_file: bool = False
    data: bytearray = field(default_factory=bytearray)


class _Collector:
    """The parser's callbacks. Raises as soon as a part is larger than it may be."""

    def __init__(self, workflow_bytes_max: int) -> None:
        self._workflow_bytes_max = workflow_bytes_max
        self._header = (bytearray(), bytearray())
        self._part = _Part()
        self.parts: dict[str, _Part] = {}
        self.ended = False

    def on_part_begin(self) -> None:
        self._part = _Part()
        if len(self.parts) >= _PARTS_MAX:
            raise _wrong("", f"the form has more than {_PARTS_MAX} parts")

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
            self._part.is_file = b"filename" in options

    def on_headers_finished(self) -> None:
        if not self._part.name:
            raise _wrong("", "a part of the form has no name")
        if self._part.name in self.parts:
            raise _wrong(self._part.name, "is given twice")
        self.parts[self._part.name] = self._part

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        limit = self._workflow_bytes_max if part.name == "workflow" else _FIELD_BYTES_MAX
        if len(part.data) + end - start > limit:
            if part.name == "workflow":
                raise WorkflowTooLarge
            raise _wrong(part.name, f"has at most {limit} bytes")
        part.data += data[start:end]

    def on_end(self) -> None:
        self.ended = True


def _wrong(name: str, message: str, kind: str = "form") -> Malformed:
    loc = ("body", name) if name else ("body",)
    return Malformed(message, problems=(Problem(loc, message, kind),))


async def read_workflow_form(request: Request, workflow_bytes_max: int) -> WorkflowForm:
    """Raises Malformed, or WorkflowTooLarge as soon as the file passes its cap: reading stops there (FLOW-84)."""
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if content_type != b"multipart/form-data" or not boundary:
        raise _wrong("", "must be multipart/form-data with a part named workflow", "content_type")
    collector = _Collector(workflow_bytes_max)
    callbacks = {name: getattr(collector, name) for name in dir(collector) if name.startswith("on_")}
    try:
        parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # a TypedDict of the library
        # The whole may exceed the file's cap by no more than its wrapping: then it is the file that is too large.
        async for chunk in _chunks(request, workflow_bytes_max + _WRAPPING_BYTES_MAX):
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise _wrong("", f"the form cannot be read: {error}") from error
    if not collector.ended:
        raise _wrong("", "the form ends before its last boundary")
    return _form(collector.parts)


async def _chunks(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks_of(request, bytes_max):
            yield chunk
    except TooLarge as error:
        raise WorkflowTooLarge from error


def _form(parts: dict[str, _Part]) -> WorkflowForm:
    if "params" in parts:  # FLOW-85: nobody shall believe that an override took effect
        raise _wrong(
            "params", "cannot be overridden: the params of an uploaded flow are its flow.defaults", "forbidden"
        )
    workflow = parts.get("workflow")
    if workflow is None or not workflow.data:
        raise _wrong("workflow", "is required and must not be empty", "missing")
    if not workflow.is_file:
        raise _wrong("workflow", "must be a file, not a field: give it a filename")
    flow_name = _text(parts, "flow_name")
    if flow_name is None:
        raise _wrong("flow_name", "is required", "missing")
    return WorkflowForm(bytes(workflow.data), flow_name, _text(parts, "tag"))


def _text(parts: dict[str, _Part], name: str) -> str | None:
    part = parts.get(name)
    if part is None:
        return None
    if part.is_file:
        raise _wrong(name, "must be a field, not a file")
    try:
        return part.data.decode()
    except UnicodeDecodeError as error:
        raise _wrong(name, "must be UTF-8 text") from error
