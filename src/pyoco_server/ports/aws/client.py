"""Clients of S3 and SQS, and the translation of their errors into ours.

The SDK finds the credentials itself: environment variables, profile, or the machine's role.
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

#: Limit of one call including its retries. Callers of a gateway are waiting for it.
ANSWER_SECONDS = 5.0
#: Credentials may come from the instance metadata service, which takes long to report that it has none.
_MAKE_SECONDS = 30.0
#: The form of AWS error codes. Other stores may send anything.
_CODE = re.compile(r"[A-Za-z0-9.]{1,64}", re.ASCII)


@contextlib.asynccontextmanager
async def aws_errors(doing: str, seconds: float = 0.0) -> AsyncIterator[None]:
    """The only place that translates errors of the SDK, or no answer within `seconds` (0: ANSWER_SECONDS), into ours.

    A caller that expects a refusal catches it inside this context; any other refusal counts as an outage. The message
    names the class, the code and the host, nothing else, and the cause is dropped: the SDK's messages contain URLs with
    object keys, and those end with file names of users (PRICED-171).
    """
    seconds = seconds or ANSWER_SECONDS
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DependencyUnavailable(f"cannot {doing}: no answer within {seconds:g} s") from None
    except (BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError, OSError) as error:
        raise DependencyUnavailable(f"cannot {doing}: {_describe(error)}") from None


def code_of(error: ClientError) -> str:
    """Return the error code of AWS. For a HEAD, which has no body, it is the HTTP status."""
    return error.response.get("Error", {}).get("Code", "")


def _describe(error: Exception) -> str:
    what = type(error).__name__
    if isinstance(error, ClientError):
        code = code_of(error)
        return f"{what} {code}" if _CODE.fullmatch(code) else what
    endpoint = getattr(error, "kwargs", {}).get("endpoint_url")
    return f"{what} at {_host_of(endpoint)}" if isinstance(endpoint, str) else what


def _host_of(url: str) -> str:
    """Return host and port only, without path or credentials."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "AWS", parts.port
    except ValueError:
        return "AWS"
    return f"{host}:{port}" if port else host


@contextlib.asynccontextmanager
async def open_s3(settings: AwsSettings) -> AsyncIterator[S3Client]:
    """Open an S3 client.

    Creating one takes 0.1 s, so callers keep it. Makes no request: an unreachable endpoint shows at the first call.
    """
    # A custom endpoint has no host name per bucket, so it needs path-style addresses.
    style = {"addressing_style": "path" if settings.endpoint_url else "auto"}
    config = _config(signature_version="s3v4", s3=style)
    async with contextlib.AsyncExitStack() as opened:
        async with aws_errors("make a client of S3", _MAKE_SECONDS):
            client = get_session().create_client("s3", config=config, **_where(settings))
            s3 = await opened.enter_async_context(client)
        yield s3


@contextlib.asynccontextmanager
async def open_sqs(settings: AwsSettings) -> AsyncIterator[SQSClient]:
    """Open an SQS client, like `open_s3`."""
    async with contextlib.AsyncExitStack() as opened:
        async with aws_errors("make a client of SQS", _MAKE_SECONDS):
            client = get_session().create_client("sqs", config=_config(), **_where(settings))
            sqs = await opened.enter_async_context(client)
        yield sqs


def _where(settings: AwsSettings) -> dict[str, Any]:
    return {"region_name": settings.region, "endpoint_url": settings.endpoint_url}


def _config(**more: Any) -> AioConfig:
    _limit_sdk_logging()
    return AioConfig(
        connect_timeout=2,
        read_timeout=30,  # longer than a long poll; `aws_errors` bounds each call including its retries
        retries={"total_max_attempts": 3, "mode": "standard"},
        max_pool_connections=64,  # each receive holds one connection while it waits
        # Stores other than AWS do not support the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **more,
    )


def _limit_sdk_logging() -> None:
    """At DEBUG the SDK logs complete requests, with keys and bytes (PRICED-171).

    To get that, set a level on its logger.
    """
    for name in ("aiobotocore", "botocore"):
        sdk = logging.getLogger(name)
        if sdk.level == logging.NOTSET:
            sdk.setLevel(logging.INFO)
