"""Values of params and results: between Python and JSON, restored by type hints (section 3.1 of the contract)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from pyoco_server.app.named_tuples import as_arrays
from pyoco_server.core.values.decode import Read, decode_value
from pyoco_server.core.values.encode import JSON_TYPE, NotEncodable, encode_value, to_bytes
from pyoco_server.core.values.forms import KIND
from pyoco_server.executors.flow.rich_values import NPY_TYPE, RichForms, read_npy

__all__ = ["Decoder", "Mismatch", "params_document", "restored", "revived", "to_hint", "to_json"]

#: Types that the encoding itself restores: a text is not one of these, even if it could be read as one.
_RESTORED = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)


#: Forms of other libraries, alone and inside of a value.
_OTHERS: dict[str, Read] = {"npy": read_npy, NPY_TYPE: read_npy}


class Decoder:
    """Decodes the values of one flow."""

    def __init__(self, hint: Any = Any, *, pickles: bool = False) -> None:
        """`pickles`: they are values of an app that allows it (RES-23)."""
        self._hint = hint
        self._others = _OTHERS | {"pickle": pickle.loads} if pickles else _OTHERS

    def of_document(self, document: Any) -> Any:
        """Raises Undecodable."""
        return restored(revived(document, self._others), self._hint)

    def of_bytes(self, data: bytes, content_type: str) -> Any:
        """Raises Undecodable."""
        return restored(decode_value(data, content_type, self._others), self._hint)


class Mismatch(ValueError):
    """The value does not fit the type hint."""


def to_json(value: Any) -> Any:
    """Return the value in its encoding as a JSON document. Raises NotEncodable."""
    return _document([value])[0]  # in a list, because some values alone are stored as they are


def _document(value: list[Any] | dict[str, Any]) -> Any:
    pieces: list[bytes] = []
    encode_value(value, pieces.append, RichForms())
    return json.loads(b"".join(pieces))


def params_document(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params for a request. Raises TypeError, naming the type and the place of what cannot be encoded."""
    try:
        document: dict[str, Any] = _document(dict(params))
    except NotEncodable as error:
        raise TypeError(f"the params cannot be encoded: {error}") from error
    return document


def revived(document: Any, others: Mapping[str, Read] = _OTHERS) -> Any:
    """Decode a JSON document that may have encoded parts. Raises Undecodable."""
    text = json.dumps(document, ensure_ascii=False)
    if KIND not in text:
        return document
    return decode_value(to_bytes(text), JSON_TYPE, others)


def to_hint(value: Any, hint: Any) -> Any:
    """Return the value as the hint says; JSON texts become dates, numbers and the like. Raises Mismatch."""
    try:
        return msgspec.convert(as_arrays(value, hint), hint, dec_hook=_as_it_is)
    except msgspec.ValidationError as error:
        raise Mismatch(str(error)) from error
    except TypeError:  # a hint that cannot be checked, such as a union of two classes
        return value


def restored(value: Any, hint: Any) -> Any:
    """Return a decoded value as the hint says: dataclasses and the like instead of dicts. One that does not fit the
    hint is returned as it is: it is what the flow has returned."""
    if hint is Any or hint is None or type(value) is hint:
        return value
    try:
        return msgspec.convert(as_arrays(value, hint), hint, builtin_types=_RESTORED, dec_hook=_as_it_is)
    except (msgspec.ValidationError, TypeError):
        return value


def _as_it_is(_: type, value: Any) -> Any:
    """For classes that msgspec does not know: it then checks that the value is an instance."""
    return value
