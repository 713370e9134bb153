"""Nothing of an input's key, which ends with what somebody has called a file, is in a message or a log (PRICED-171)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError

from contracts.inputs import MANY, put
from pyoco_server.config import AwsSettings, LogSettings, PricedConfig
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import _Json, get_logger
from pyoco_server.ports.aws.client import aws_errors, open_s3
from pyoco_server.ports.inputs.jetstream import JetStreamInputs
from pyoco_server.ports.inputs.s3 import S3Inputs
from pyoco_server.ports.nats.link import Link, Missing, Patience, Rejected, open_link
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.objects.meta import key_of
from support.faults import open_faulty_link
from support.priced.aws_clients import settings_of
from support.priced.servers import Aws
from support.servers import NatsServer, unique
from support.waiting import eventually

MARKER = "zq7marker"
KEY = f"dpp/t_a/0b0e8f0a-5d0c-4b7a-9d0e-2f6f1c1a7b11/{MARKER}.png"
URL = f"http://somebody:{MARKER}@store.example:9000/dpp-inputs/{KEY}?X-Amz-Signature={MARKER}"
IMPATIENT = Patience(down_seconds=0.5, unanswered_seconds=1.0, answer_seconds=0.5)

log = get_logger("pyoco_server.tests")


class Told:
    """What was logged, as it is written: with causes and tracebacks."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self._form = _Json("tests", LogSettings())

    def check(self, *errors: object) -> str:
        """Log these as a door and as a loop do; all that is in the log by now."""
        for error in errors:
            assert isinstance(error, DependencyUnavailable), repr(error)
            log.error("a request was answered with a problem", error=error)
            log.warning("it is tried again", cause=error)
        text = "\n".join(self._form.format(record) for record in self._caplog.records)
        assert MARKER not in text.lower()
        assert key_of(KEY) not in text
        return text


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Told]:
    levels = {name: logging.getLogger(name).level for name in ("aiobotocore", "botocore")}
    caplog.set_level(logging.DEBUG)
    yield Told(caplog)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (sdk.EndpointConnectionError(endpoint_url=URL, error=OSError(URL)), "EndpointConnectionError at store.example"),
        (sdk.ReadTimeoutError(endpoint_url=URL, error=OSError(URL)), "ReadTimeoutError at store.example:9000"),
        (sdk.ConnectionClosedError(endpoint_url="http://[broken", error=OSError(URL)), "ConnectionClosedError at AWS"),
        (sdk.EndpointConnectionError(endpoint_url=f"https://s3.aws/{KEY}", error=""), "ConnectionError at s3.aws"),
        (sdk.HTTPClientError(error=OSError(URL)), "HTTPClientError"),
        (sdk.ParamValidationError(report=KEY), "ParamValidationError"),
        (sdk.ClientError({"Error": {"Code": "SlowDown", "Message": KEY}}, "PutObject"), "ClientError SlowDown"),
        (sdk.ClientError({"Error": {"Code": f"No {KEY}"}}, "PutObject"), "ClientError"),
        (ResponseParserError(f"invalid XML received: <Key>{KEY}</Key>"), "ResponseParserError"),
        (aiohttp.ClientPayloadError(URL), "ClientPayloadError"),
        (FileNotFoundError(2, "No such file", KEY), "FileNotFoundError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_error_of_the_sdk_tells_its_class_its_code_and_whom_we_asked(
    told: Told, error: Exception, said: str
) -> None:
    """PRICED-171"""
    with pytest.raises(DependencyUnavailable) as caught:
        async with aws_errors("store an input"):
            raise error
    assert str(caught.value).startswith("cannot store an input: ")
    assert said in told.check(caught.value)


def raise_for(url: str) -> None:
    raise OSError(url)


async def test_silence_in_the_middle_of_a_repeat_tells_nothing_of_the_try_before(told: Told) -> None:
    """PRICED-171"""

    async def repeats() -> None:
        try:
            raise_for(URL)
        except OSError:
            await asyncio.sleep(600)

    with pytest.raises(DependencyUnavailable) as caught:
        async with aws_errors("store an input", 0.01):
            await repeats()
    assert "no answer within 0.01 s" in told.check(caught.value)


async def test_an_outage_of_s3_tells_host_and_port_and_no_key(
    told: Told, aws: Aws, monkeypatch: pytest.MonkeyPatch, unused_port: int, tmp_path: Path
) -> None:
    """PRICED-171: also when everything is logged"""
    settings_of(aws, monkeypatch)
    async with open_s3(AwsSettings(endpoint_url=f"http://127.0.0.1:{unused_port}", region="eu-central-1")) as nobody:
        inputs = S3Inputs(nobody, PricedConfig(), "eu-central-1")
        outcomes = await asyncio.gather(
            inputs.head(KEY),
            inputs.fetch(KEY, tmp_path / "copy", MANY),
            put(inputs, MARKER.encode(), KEY, f"a/{MARKER}"),
            put(inputs, bytes(9_000_000), KEY),
            inputs.delete(KEY),
            return_exceptions=True,
        )
    assert f"EndpointConnectionError at 127.0.0.1:{unused_port}" in told.check(*outcomes)


def store(link: Link, bucket: str) -> JetStreamInputs:
    return JetStreamInputs(link, JetStreamObjects(link, bucket), PricedConfig(pack_input_bucket=bucket), 1)


@pytest.fixture
async def bucket(link: Link) -> AsyncIterator[str]:
    name = unique("inputs")
    await store(link, name).start()
    yield name
    with contextlib.suppress(Missing, Rejected):  # gone
        await link.api(f"STREAM.DELETE.OBJ_{name}", {}, dict[str, Any])


async def test_an_outage_of_jetstream_tells_no_key(told: Told, own_nats_server: NatsServer, tmp_path: Path) -> None:
    """PRICED-171"""
    link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=0.5))
    inputs = store(link, "inputs")
    await inputs.start()
    await put(inputs, b"one", KEY)
    own_nats_server.kill()
    await eventually(lambda: not link.is_up)
    outcomes = await asyncio.gather(
        inputs.head(KEY),
        inputs.fetch(KEY, tmp_path / "copy", MANY),
        put(inputs, b"one", KEY),
        inputs.delete(KEY),
        return_exceptions=True,
    )
    told.check(*outcomes)
    await link.close()


@pytest.mark.parametrize("fault", ["unheard", "before"])
async def test_a_write_that_fails_for_good_tells_no_key(told: Told, nats_url: str, bucket: str, fault: str) -> None:
    """PRICED-171: nor what NATS makes of it"""
    faulty = await open_faulty_link(nats_url, IMPATIENT)
    faulty.faults.extend(["", *[fault] * 100])
    with pytest.raises(DependencyUnavailable) as caught:
        await put(store(faulty, bucket), b"one", KEY)
    assert "cannot store an input: " in told.check(caught.value)
    await faulty.close()


async def test_a_write_whose_answer_was_lost_tells_no_key(told: Told, nats_url: str, bucket: str) -> None:
    """PRICED-171"""
    faulty = await open_faulty_link(nats_url)
    faulty.faults.extend(["", "after"])
    await put(store(faulty, bucket), b"one", KEY)
    assert "a write without a response had been stored" in told.check()
    await faulty.close()


@pytest.mark.parametrize("damage", ["digest", "bytes", "words"])
async def test_a_damaged_input_is_told_without_its_key(
    told: Told, link: Link, bucket: str, tmp_path: Path, damage: str
) -> None:
    """PRICED-171"""
    inputs = store(link, bucket)
    await put(inputs, b"one", KEY)
    subject = f"$O.{bucket}.M.{key_of(KEY)}"
    found = await link.api(f"STREAM.MSG.GET.OBJ_{bucket}", {"last_by_subj": subject}, dict[str, Any])
    meta = json.loads(base64.b64decode(found["message"]["data"]))
    if damage == "digest":
        meta["digest"] = "SHA-256=AAAA"
    if damage == "bytes":
        meta["digest"] = "SHA-256=" + base64.urlsafe_b64encode(bytes(32)).decode()
    if damage == "words":
        meta["size"] = MARKER
    await link.store(subject, json.dumps(meta).encode(), {"Nats-Rollup": "sub"})
    with pytest.raises(DependencyUnavailable) as caught:
        await inputs.fetch(KEY, tmp_path / "copy", MANY)
    text = told.check(caught.value)
    assert "a stored input is damaged" in text
    assert "cannot read an input: Corrupt" in text
