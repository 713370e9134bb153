"""Clients of S3 and SQS, and where their errors become ours.

The keys are the SDK's own business: variables, profile, or the machine's role.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from pyoco_server.config import AwsSettings
from pyoco_server.errors import DependencyUnavailable

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_sqs import SQSClient

__all__ = ["ANSWER_SECONDS", "aws_errors", "code_of", "open_s3", "open_sqs"]

#: For one question with its repeats. A gateway has a caller who waits.
ANSWER_SECONDS = 5.0
#: The keys may come from the machine itself, which takes its time to say that it has none.
_MAKE_SECONDS = 30.0
#: As AWS writes them. Another store may write whatever it likes.
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}", re.ASCII)


@contextlib.asynccontextmanager
async def aws_errors(doing: str, seconds: float = 0.0) -> AsyncIterator[None]:
    """The only place where an error of the SDK, or its silence for `seconds` (0: ANSWER_SECONDS), becomes ours.

    Whoever expects a refusal catches it inside; every other one is an outage: the message tells its class and code,
    and whom we asked. Nothing else, and not its cause: the words of the SDK hold addresses with the keys of objects,
    and those end with what somebody has called a file (PRICED-171).
    """
    seconds = seconds or ANSWER_SECONDS
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DependencyUnavailable(f"cannot {doing}: no answer within {seconds:g} s") from None
    except (BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError, OSError) as error:
        raise DependencyUnavailable(f"cannot {doing}: {_told(error)}") from None


def code_of(error: ClientError) -> str:
    """AWS' word for a refusal. A HEAD is answered without words: then it is the status."""
    return error.response.get("Error", {}).get("Code", "")


def _told(error: Exception) -> str:
    what = type(error).__name__
    if isinstance(error, ClientError):
        code = code_of(error)
        return f"{what} {code}" if _CODE.fullmatch(code) else what
    asked = getattr(error, "kwargs", {}).get("endpoint_url")
    return f"{what} at {_host_of(asked)}" if isinstance(asked, str) else what


def _host_of(url: str) -> str:
    """Without the path, and without a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "AWS", parts.port
    except ValueError:
        return "AWS"
    return f"{host}:{port}" if port else host


@contextlib.asynccontextmanager
async def open_s3(settings: AwsSettings) -> AsyncIterator[S3Client]:
    """To make a client takes a tenth of a second, so it is kept. Asks nobody anything: an endpoint that is down shows
    at the first call."""
    # Behind an address of one's own there is no name for each bucket.
    style = {"addressing_style": "path" if settings.endpoint_url else "auto"}
    config = _config(signature_version="s3v4", s3=style)
    async with contextlib.AsyncExitStack() as opened:
        async with aws_errors("make a client of S3", _MAKE_SECONDS):
            client = get_session().create_client("s3", config=config, **_where(settings))
            s3 = await opened.enter_async_context(client)
        yield s3


@contextlib.asynccontextmanager
async def open_sqs(settings: AwsSettings) -> AsyncIterator[SQSClient]:
    """As `open_s3`."""
    async with contextlib.AsyncExitStack() as opened:
        async with aws_errors("make a client of SQS", _MAKE_SECONDS):
            client = get_session().create_client("sqs", config=_config(), **_where(settings))
            sqs = await opened.enter_async_context(client)
        yield sqs


def _where(settings: AwsSettings) -> dict[str, Any]:
    return {"region_name": settings.region, "endpoint_url": settings.endpoint_url}


def _config(**more: Any) -> AioConfig:
    _hush()
    return AioConfig(
        connect_timeout=2,
        read_timeout=30,  # longer than a long poll; `aws_errors` bounds each call as a whole
        retries={"total_max_attempts": 3, "mode": "standard"},
        max_pool_connections=64,  # each receive holds one while it waits
        # Other stores than AWS' own do not know the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **more,
    )


def _hush() -> None:
    """At DEBUG the SDK writes whole requests down, keys and bytes (PRICED-171). Who wants that gives it a level."""
    for name in ("aiobotocore", "botocore"):
        sdk = logging.getLogger(name)
        if sdk.level == logging.NOTSET:
            sdk.setLevel(logging.INFO)
