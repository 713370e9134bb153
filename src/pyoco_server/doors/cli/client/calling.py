"""Opens the client that a command uses, and turns failed calls into error messages."""

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

__all__ = ["calling", "describe_error", "fail", "is_outage", "note_source"]

#: A person is waiting: retry twice, in case the gateway is restarting, then report the failure.
_RETRIES = 2
_RETRY_SECONDS = 5.0
#: Errors whose message means little without the detail.
_GENERAL = frozenset(CATALOGUE[number].err_id for number in (2, 25, 28, 44, 53, 54, 55, 56))


@contextlib.contextmanager
def calling(asked: Asked) -> Iterator[PyocoHttpClient]:
    """Yield a client for the configured server.

    A failed call ends the command with exit code 1. stderr shows the status, the error id, the message and the
    locations of invalid input (FLOW-427), never the API key.
    """
    connection = resolve(asked)
    note_source(connection)
    _leave_out_the_command_line_of_httpx()
    import httpx  # 80 ms: not for --help

    from pyoco_server.doors.cli.client.answers import LookedAt
    from pyoco_server.http_client import AnswerDamaged, PyocoHttpClient, SourceChanged

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
        fail(describe_error(error.response, connection))
    except AnswerDamaged as error:
        address = shown_address(connection.server)
        fail(f"{CATALOGUE[1].err_id}: {address} is not a pyoco gateway, or its response is damaged: {error}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        fail(_unreachable(error, connection))
    except SourceChanged as error:
        raise UsageError(str(error)) from error
    except UnicodeEncodeError as error:
        raise UsageError(f"{safe(error.object)!r} is not text") from error
    except TimeoutError as error:
        fail(str(error))


def note_source(connection: Connection) -> None:
    """Before the first request, print which local server is used, and any warnings about the config file."""
    if connection.found is not None and not is_quiet(os.environ):
        note(connection.found.line)
    for line in connection.warnings:
        note(line)


def fail(message: str) -> NoReturn:
    """Print the message on stderr and end the command with exit code 1."""
    note(message)
    raise click.exceptions.Exit(1)


def is_outage(error: Exception) -> bool:
    """Return whether the same call may succeed later. For commands that keep running through an outage."""
    import httpx  # already imported: it raised the error

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in {502, 503, 504}
    return isinstance(error, httpx.TransportError)


def describe_error(response: httpx.Response, connection: Connection) -> str:
    """Describe an error response (FLOW-427)."""
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
        # Not our error format: from a proxy or from another server.
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
            "  start one with `pyoco-server up`, or name its address: --server, PYOCO_SERVER_URL or the config file",
        ]
    )


def _leave_out_the_command_line_of_httpx() -> None:
    """Keep `import httpx` from importing its own command line with click, rich and pygments: 50 ms per start."""
    if "httpx" not in sys.modules:
        sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # as if it were not installed
