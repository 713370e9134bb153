"""Keeps what the tasks of a flow have returned, and the result of the flow."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from pyoco.core.models import Flow

from pyoco_server.core.states import TaskState
from pyoco_server.core.values.encode import (
    JSON_TYPE,
    NotEncodable,
    WriteStopped,
    encode_value,
)
from pyoco_server.core.values.kept import PREVIEW_LENGTH_MAX, Kept
from pyoco_server.executors.flow.limits import OutputLimits
from pyoco_server.executors.flow.rich_values import RichForms
from pyoco_server.executors.flow.spool import Spool

__all__ = ["OutputKeeper", "ends_of"]

NOT_ENCODABLE, TOO_LARGE, NOT_THERE = 54, 55, 56

#: Texts up to this length, and numbers, are small without being encoded.
_SHORT = 1000
#: A record also contains values that it could not show otherwise, up to this many times the limit of one.
_INLINE_TIMES = 4
#: Size of an entry without its value, and the maximum of all of them in one record.
_ENTRY_BYTES = 200
_ENTRIES_BYTES_MAX = 64 * 1024
_DETAIL_LENGTH_MAX = 1000


def ends_of(flow: Flow, states: Mapping[str, str], ended_at: Mapping[str, float]) -> list[str] | None:
    """Return the tasks whose outputs are the flow's result (RES-1): those on which no other depends; with loops or
    branches, the one that ended last.

    None: unknown, because a flow may be a third-party object that fails here. O(tasks and edges).
    """
    try:
        if not flow.has_control_flow():
            needed = {other.name for task in flow.tasks for other in task.dependencies}
            return sorted(task.name for task in flow.tasks if task.name not in needed)
    except Exception:  # noqa: BLE001  (a missing result must not fail its run)
        return None
    ended = [name for name, state in states.items() if state == TaskState.SUCCEEDED]
    return [max(ended, key=lambda name: ended_at.get(name, 0.0))] if ended else []


class _Bound(WriteStopped):
    """The value is above a bound: its name, its value, and the size reached."""


class _Sink:
    """Takes one encoded value: into memory while it is small, then into the spool."""

    def __init__(self, spool: Spool, limits: OutputLimits, inline_bytes_max: int) -> None:
        self._spool, self._limits, self._inline_bytes_max = spool, limits, inline_bytes_max
        self._hash = hashlib.sha256()
        self._small: bytearray | None = bytearray()
        self._head = b""
        self._buffer = bytearray()
        self._spooled_before = spool.size
        self.place: tuple[int, int] | None = None
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self._check_bounds()
        if self._small is not None:
            self._small += data
            if len(self._small) > self._inline_bytes_max:
                self._begin()
            return
        self._buffer += data
        if len(self._buffer) >= 1 << 18:
            self._flush()

    def _check_bounds(self) -> None:
        if self.size > self._limits.output_bytes_max:
            raise _Bound("PYOCO_OUTPUT_MAX_BYTES", self._limits.output_bytes_max, self.size)
        if self._small is None and self._spooled_before + self.size > self._limits.run_bytes_max:
            raise _Bound("PYOCO_RUN_OUTPUTS_MAX_BYTES", self._limits.run_bytes_max, self._spooled_before + self.size)

    def _begin(self) -> None:
        data, self._small = bytes(self._small or b""), None
        self._head = data[: 4 * PREVIEW_LENGTH_MAX]
        self._check_bounds()
        try:
            self.place = self._spool.begin()
        except OSError as error:
            raise WriteStopped(str(error)) from error
        self._buffer += data

    def _flush(self) -> None:
        data = bytes(self._buffer)
        self._buffer.clear()
        self._hash.update(data)
        try:
            self._spool.add(data)
        except OSError as error:
            raise WriteStopped(str(error)) from error

    def entry(self, content_type: str) -> dict[str, Any]:
        about: dict[str, Any] = {"content_type": content_type, "bytes": self.size}
        if self._small is not None:
            data = bytes(self._small)
            form, text = ("text", data.decode()) if content_type == JSON_TYPE else ("base64", _base64(data))
            return about | {"sha256": hashlib.sha256(data).hexdigest(), form: text}
        self._flush()
        part, offset = self.place or (0, 0)
        text = self._head.decode("utf-8", "replace") if content_type == JSON_TYPE else repr(self._head)
        preview = text[:PREVIEW_LENGTH_MAX]
        return about | {"sha256": self._hash.hexdigest(), "part": part, "offset": offset, "preview": preview}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class OutputKeeper:
    """Encodes the values of one run. Call it once the run has ended: a task may still change what it has returned."""

    def __init__(self, limits: OutputLimits) -> None:
        self._limits = limits
        self._spool = Spool()
        self._inline_left = _INLINE_TIMES * limits.inline_bytes_max
        self._entries_left = _ENTRIES_BYTES_MAX // _ENTRY_BYTES
        self._result: dict[str, Any] | None = None
        self._outputs: dict[str, dict[str, Any]] = {}
        #: Small outputs that are whole in their task records.
        self._rest: dict[str, Any] = {}
        #: How values of other libraries are encoded.
        self.forms = RichForms()

    def keep_outputs(self, outputs: Iterable[tuple[str, Any, bool]]) -> None:
        """`outputs`: task, output, and whether the task record shows all of it. O(size), except for small ones."""
        for name, value, is_lossless in outputs:
            entry = None if is_lossless and _is_small(value) else self._encoded(value)
            if entry is not None and not (is_lossless and "text" in entry):
                self._add(name, entry)
                continue
            self._inline_left += _text_size(entry) if entry is not None else 0  # the task record has it
            self._rest[name] = value

    def keep_result(self, ends: list[str], outputs: Mapping[str, Any]) -> None:
        """`outputs`: those of the tasks that have succeeded."""
        if len(ends) > 1:
            self._result = self._encoded({name: outputs[name] for name in ends if name in outputs})
        elif ends and ends[0] in outputs:
            self._result = {"task": ends[0]}
        else:
            self._result = self._encoded(None)

    def keep_rest(self) -> None:
        """Keep the small outputs as well: their task records are too large together."""
        rest, self._rest = self._rest, {}
        for name, value in rest.items():
            self._add(name, self._encoded(value))

    def without_stored(self, records: Mapping[str, Any]) -> dict[str, Any]:
        """Return the task records with the beginning of each output that goes to the store, instead of all of it."""
        previews = {name: entry["preview"] for name, entry in self._outputs.items() if "part" in entry}
        return {
            name: record | {"output": previews[name], "output_truncated": True} if name in previews else record
            for name, record in records.items()
        }

    def kept(self) -> Kept:
        of = (self._result or {}).get("task")
        outputs = {
            name: entry if name == of else {key: value for key, value in entry.items() if key != "preview"}
            for name, entry in self._outputs.items()
        }
        return Kept(self._result, outputs, tuple(self._spool.parts))

    @property
    def spool(self) -> Spool:
        return self._spool

    def _add(self, name: str, entry: dict[str, Any]) -> None:
        """An output beyond the limit has no entry; that its task record is not whole shows that it was not kept."""
        if self._entries_left > 0:
            self._entries_left -= 1
            self._outputs[name] = entry

    def _encoded(self, value: Any) -> dict[str, Any]:
        sink = _Sink(self._spool, self._limits, min(self._limits.inline_bytes_max, max(0, self._inline_left)))
        try:
            entry = sink.entry(encode_value(value, sink.write, self.forms))
        except NotEncodable as error:
            return self._failed(sink, NOT_ENCODABLE, f"{error.type_name} at {error.path} cannot be encoded", error.why)
        except _Bound as error:
            name, bound, size = error.args
            return self._failed(sink, TOO_LARGE, f"it takes more than {name}={bound} bytes: at least {size}")
        except WriteStopped as error:
            return self._failed(sink, NOT_THERE, f"it could not be written to a temporary file: {error}")
        if "part" not in entry:
            self._inline_left -= _text_size(entry)
        return entry

    def _failed(self, sink: _Sink, number: int, detail: str, why: str = "") -> dict[str, Any]:
        if sink.place is not None:
            with contextlib.suppress(OSError):  # then its bytes remain, and nothing refers to them
                self._spool.undo(*sink.place)
        return {"error": number, "detail": (f"{detail}: {why}" if why else detail)[:_DETAIL_LENGTH_MAX]}


def _text_size(entry: Mapping[str, Any]) -> int:
    return len(entry.get("text", "")) + len(entry.get("base64", ""))


def _is_small(value: Any) -> bool:
    """Whether a value is certainly small when it is encoded. It is whole in its task record, so it is plain."""
    return len(value) <= _SHORT if isinstance(value, str) else not isinstance(value, list | dict)
