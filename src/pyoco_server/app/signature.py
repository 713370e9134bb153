"""The signature of a flow function: the params of its flow, and the type of its value."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from pyoco_server.app.schema import schema_of
from pyoco_server.app.values import Mismatch, revived, to_hint, to_json
from pyoco_server.core.unknown import nearest_of
from pyoco_server.core.values.encode import NotEncodable
from pyoco_server.core.values.forms import KIND, VALUE
from pyoco_server.errors import ParamsRefused

__all__ = ["FlowSignature"]


class FlowSignature:
    """Checks and converts the params of one flow."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """Raises TypeError for parameters that have no name in a submission."""
        self._name, self._function = name, function
        self._signature = inspect.signature(function)
        for each in self._signature.parameters.values():
            if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL, each.VAR_KEYWORD):
                raise TypeError(f"flow {name!r}: parameter {each} has no name of its own; params are given by name")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._signature.parameters)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """Resolved at first use, because a hint may name what its module defines later."""
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except Exception:  # noqa: BLE001  (a hint may be any expression; values are then passed as they are)
            return {}

    @property
    def returns(self) -> Any:
        """The hint of the value; `Any` without one."""
        return self._hints.get("return", Any)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, without defaults. Raises TypeError as a call would."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"flow {self._name}: {error}") from None

    def with_defaults(self, params: Mapping[str, Any], given: Collection[str] = ()) -> dict[str, Any]:
        bound = self._signature.bind(**params, **dict.fromkeys(given))
        bound.apply_defaults()
        return dict(bound.arguments)

    def read(self, params: Mapping[str, Any], given: Collection[str] = ()) -> dict[str, Any]:
        """Return the values for the tasks: decoded, checked against the hints, with defaults. `given`: params that come
        from elsewhere, and are left out. Raises ParamsRefused."""
        for name in (*params, *given):
            if name not in self._signature.parameters:
                known = nearest_of(name, self.names)
                hint = f"; did you mean {known}?" if known else f"; it has {', '.join(self.names) or 'no params'}"
                raise ParamsRefused(f"flow {self._name} has no param {name!r}{hint}")
        for each in self._signature.parameters.values():
            if each.default is each.empty and each.name not in params and each.name not in given:
                raise ParamsRefused(f"flow {self._name} needs param {each.name!r}")
        values = {name: self._value(name, value) for name, value in params.items()}
        return {name: value for name, value in self.with_defaults(values, given).items() if name not in given}

    def _value(self, name: str, value: Any) -> Any:
        try:
            return to_hint(revived(value), self._hints.get(name, Any))
        except (Mismatch, ValueError) as error:
            raise ParamsRefused(f"param {name!r} of flow {self._name}: {error}") from error

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the params."""
        properties, required = {}, []
        for each in self._signature.parameters.values():
            schema = schema_of(self._hints.get(each.name, Any))
            if each.default is each.empty:
                required.append(each.name)
            elif (default := _plain_default(each.default)) is not None or each.default is None:
                schema = schema | {"default": default}
            properties[each.name] = schema
        document: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        return document | ({"required": required} if required else {})

    def schema_of_value(self) -> dict[str, Any] | None:
        return None if "return" not in self._hints else schema_of(self.returns)


def _plain_default(value: Any) -> Any:
    """Return the default as a JSON value. None: it cannot be shown."""
    try:
        document = to_json(value)
    except NotEncodable:
        return None
    # A date is shown as the text that the schema describes.
    is_text = isinstance(document, dict) and KIND in document and isinstance(document[VALUE], str)
    return document[VALUE] if is_text else document
