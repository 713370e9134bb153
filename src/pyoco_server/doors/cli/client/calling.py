"""The server, for as long as a command needs it; and what a person reads when a call fails."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn, cast

import click

from pyoco_server.client.connection import Asked, Connection, resolve, shown_address
from pyoco_server.discovery import is_quiet
from pyoco_server.doors.cli.client.output import note, safe
from pyoco_server.doors.cli.client.problems import lines_of
from pyoco_server.errors import CATALOGUE, UsageError

if TYPE_CHECKING:
    import httpx

    from pyoco_server.http_client import PyocoHttpClient

__all__ = ["calling", "fail", "is_outage", "note_source", "told"]

#: A person waits: two more tries for a gateway that is just being restarted, and then the truth.
_RETRIES = 2
_RETRY_SECONDS = 5.0
#: Errors whose message says little without the detail.
_GENERAL = frozenset(CATALOGUE[number].err_id for number in (2, 25, 28, 44))


@contextlib.contextmanager
def calling(asked: Asked) -> Iterator[PyocoHttpClient]:
    """A client for the server that is in force. What goes wrong with a call ends the command with 1, and stderr says
    why: status, error id, message and the places of the input (FLOW-427). Nothing of it shows the key."""
    connection = resolve(asked)
    note_source(connection)
    _leave_out_the_command_line_of_httpx()
    import httpx  # noqa: PLC0415 - 80 ms: not for --help

    from pyoco_server.doors.cli.client.answers import LookedAt  # noqa: PLC0415
    from pyoco_server.http_client import AnswerDamaged, PyocoHttpClient, SourceChanged  # noqa: PLC0415

    try:
        with PyocoHttpClient(
            connection.server,
            api_key=connection.api_key,
            api_key_header=connection.api_key_header,
            timeout=connection.timeout_sec,
            retries=_RETRIES,
            retry_seconds=_RETRY_SECONDS,
        ) as client:
            yield cast("PyocoHttpClient", LookedAt(client))
    except httpx.HTTPStatusError as error:
        fail(told(error.response, connection))
    except AnswerDamaged as error:
        address = shown_address(connection.server)
        fail(f"{CATALOGUE[1].err_id}: what answers at {address} is no pyoco gateway, or its answer is damaged: {error}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        fail(_unreachable(error, connection))
    except SourceChanged as error:
        raise UsageError(str(error)) from error
    except UnicodeEncodeError as error:
        raise UsageError(f"{safe(error.object)!r} is not text") from error
    except TimeoutError as error:
        fail(str(error))


def note_source(connection: Connection) -> None:
    """Before anything is sent: which local server is used, and what is wrong with the config file."""
    if connection.found is not None and not is_quiet(os.environ):
        note(connection.found.line)
    for line in connection.warnings:
        note(line)


def fail(message: str) -> NoReturn:
    """Says it on stderr, and ends the command with 1."""
    note(message)
    raise click.exceptions.Exit(1)


def is_outage(error: Exception) -> bool:
    """Whether the same call may succeed in a while. For commands that go on by themselves."""
    import httpx  # noqa: PLC0415 - it is there: it has raised the error

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in {502, 503, 504}
    return isinstance(error, httpx.TransportError)


def told(response: httpx.Response, connection: Connection) -> str:
    """FLOW-427"""
    status = response.status_code
    lines = lines_of(response)
    if lines is None:
        lines = _lines(response)
    if status in {401, 403}:
        lines.append(_about_key(status, connection))
    return "\n".join(lines)


def _lines(response: httpx.Response) -> list[str]:
    status = response.status_code
    try:
        body = response.json()
        lines = [f"HTTP {status} {body['err_id']}: {body['message']}"]
        if isinstance(body.get("detail"), str) and body["err_id"] in _GENERAL:
            lines.append(f"  {body['detail']}")
        lines += [f"  {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in body.get("errors", [])]
    except (ValueError, KeyError, TypeError, AttributeError):
        # No word of ours: a proxy's, or another server's.
        lines = [f"HTTP {status}: {response.text[:200].strip() or response.reason_phrase}"]
    return lines


def _about_key(status: int, connection: Connection) -> str:
    origin = connection.origins["api_key"]
    if connection.api_key is not None:
        return f"  the key came from {origin}; it was sent as {connection.api_key_header}"
    where = f"{connection.config_file}: api_key or api_key_file"
    return f"  no key was sent ({origin}): set PYOCO_API_KEY, or write it into {where}"


def _unreachable(error: Exception, connection: Connection) -> str:
    address, origin = shown_address(connection.server), connection.origins["server"]
    why = str(error) or type(error).__name__
    return "\n".join(
        [
            f"{CATALOGUE[1].err_id}: no gateway answers at {address} ({origin}): {why}",
            "  start one with `pyoco-server up`, or say where it is: --server, PYOCO_SERVER_URL or the config file",
        ]
    )


def _leave_out_the_command_line_of_httpx() -> None:
    """`import httpx` brings its own command with it when it can: click, rich and pygments, 50 ms of each start."""
    if "httpx" not in sys.modules:
        sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # as if it were not installed
