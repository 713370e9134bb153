"""Translates the errors of the HTTP clients, in one place: their own texts point to web pages about HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from pyoco_server.app.failures import RequestFailed, ResultUnavailable
from pyoco_server.app.values import params_document
from pyoco_server.client.faults import err_id_of

__all__ = ["changes_for", "no_value", "refusal_of", "request_errors"]


@contextlib.contextmanager
def request_errors(doing: str) -> Iterator[None]:
    """Raise RequestFailed instead of httpx errors."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise RequestFailed(f"{doing}: {_words_of(error)}", err_id=err_id_of(error), status_code=status) from error
    except httpx.HTTPError as error:
        raise RequestFailed(f"{doing}: the server did not answer: {str(error) or type(error).__name__}") from error


#: APP-7
_CHANGES = ("params", "tag", "tags", "delay", "not_before", "retry", "timeout")


def changes_for(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a rerun for the clients. Raises TypeError for an unknown one."""
    for name in changes:
        if name not in _CHANGES:
            raise TypeError(f"a rerun has no option {name!r}; there are {', '.join(_CHANGES)}")
    params = changes.get("params")
    return dict(changes) if params is None else {**changes, "params": params_document(params)}


def refusal_of(doing: str, body: Any, status_code: int | None) -> RequestFailed:
    """Return the error of one item of a batch."""
    err_id = body.get("err_id") if isinstance(body, dict) else None
    return RequestFailed(f"{doing}: {_text_of(body)}", err_id=err_id, status_code=status_code)


def no_value(run_id: str, error: httpx.HTTPStatusError) -> ResultUnavailable | None:
    """Return the error if the server says that there is no value. None: the request itself has failed."""
    err_id = err_id_of(error)
    if err_id is None or error.response.status_code not in {404, 409, 410}:
        return None
    return ResultUnavailable(run_id, _words_of(error), err_id)


def _words_of(error: httpx.HTTPStatusError) -> str:
    try:
        return _text_of(error.response.json())
    except ValueError:
        return f"HTTP {error.response.status_code}"


def _text_of(body: Any) -> str:
    """Return the server's words: its message, and what exactly is wrong."""
    if not isinstance(body, dict):
        return "an answer that is not from a gateway"
    detail = body.get("detail")
    if isinstance(detail, list):
        detail = "; ".join(
            f"{'.'.join(map(str, each.get('loc', ())))} {each.get('msg', '')}"
            for each in detail
            if isinstance(each, dict)
        )
    return " ".join(str(part) for part in (body.get("message"), detail) if part)
