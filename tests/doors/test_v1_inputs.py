"""`POST /v1/inputs`: a file comes in whole, under its tenant, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiobotocore.config import AioConfig

from pyoco_server.actions.priced.retain import remove_inputs
from pyoco_server.config import AwsSettings, LogSettings, PricedConfig
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.upload import ROOM_BYTES_MIN
from pyoco_server.doors.http import lingering, pace
from pyoco_server.doors.http.state import INPUTS_MAX, INPUTS_OF_TENANT_MAX
from pyoco_server.doors.http.v1 import inputs as inputs_door
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import _Json
from pyoco_server.ports import spool
from pyoco_server.ports.aws import client as aws_client
from pyoco_server.ports.aws.client import open_s3
from pyoco_server.ports.inputs.s3 import S3Inputs
from pyoco_server.ports.ledger.port import LedgerTx
from support.priced.gateways import Payer, PricedDoor, check_problem
from support.wheel_doors import open_spools

pytestmark = pytest.mark.asyncio(loop_scope="module")

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


async def upload(
    door: PricedDoor, payer: Payer, data: Any = PNG, query: str = "?name=scan.png", **headers: str
) -> httpx.Response:
    sent = {**payer.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await door.client.post(f"/v1/inputs{query}", content=data, headers=sent)


async def used(door: PricedDoor, payer: Payer) -> int:
    return await door.priced.ledger.read(lambda tx: tx.uploads.used_bytes(payer.tenant_id))


async def left(door: PricedDoor, payer: Payer) -> list[str]:
    """The keys of every row of the tenant."""

    def look(tx: LedgerTx) -> list[str]:
        return [row.key for row in tx.uploads.expired(10_000) if row.tenant_id == payer.tenant_id]

    with door.later(10**8):
        return await door.priced.ledger.read(look)


@contextlib.contextmanager
def with_config(door: PricedDoor, **settings: Any) -> Iterator[None]:
    priced = door.priced
    with door.with_priced(replace(priced, config=replace(priced.config, **settings))):
        yield


def said(answer: httpx.Response) -> str:
    """The one thing that is wrong."""
    (problem,) = check_problem(answer, Reason.VALIDATION_FAILED)["errors"]
    assert problem["pointer"] == ""
    return str(problem["message"])


async def test_a_file_is_taken_and_its_place_goes_into_a_submission_as_it_is(priced_door: PricedDoor) -> None:
    """PRICED-64, PRICED-66, PRICED-147, PRICED-173"""
    payer = await priced_door.payer()
    answer = await upload(priced_door, payer, content_type="image/png", x_trace_id="t_mine")
    assert answer.status_code == 201, answer.text
    body = answer.json()
    image = {"kind": "s3", "bucket": priced_door.priced.config.pack_input_bucket, "key": body["key"]}
    assert body == {
        **image,
        "sha256": hashlib.sha256(PNG).hexdigest(),
        "bytes": len(PNG),
        "content_type": "image/png",
        "expires_at": body["expires_at"],
        "image": image,
    }
    prefix, tenant_id, upload_id, name = body["key"].split("/")
    assert (prefix, tenant_id, name, len(upload_id)) == ("dpp", payer.tenant_id, "scan.png", 36)
    assert answer.headers["x-trace-id"] == "t_mine"
    assert answer.headers["cache-control"] == "no-store"
    assert {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"} <= set(answer.headers)
    assert answer.headers["x-dpp-budget-remaining"] == "10.0000"
    head = await priced_door.priced.inputs.head(body["key"])
    assert head is not None
    assert (head.size_bytes, head.content_type) == (len(PNG), "image/png")


async def test_the_same_bytes_again_are_the_same_file(priced_door: PricedDoor) -> None:
    payer, other = await priced_door.payer(), await priced_door.payer()
    first = await upload(priced_door, payer)
    again = await upload(priced_door, payer, query="?name=another.png")
    assert (again.status_code, again.json()) == (200, first.json())
    theirs = await upload(priced_door, other)
    assert theirs.status_code == 201
    assert theirs.json()["key"].startswith(f"dpp/{other.tenant_id}/")
    assert await used(priced_door, payer) == ROOM_BYTES_MIN
    half = priced_door.priced.config.priced_retention_sec // 2
    with priced_door.later(half + 1):
        assert (await upload(priced_door, payer)).status_code == 201, "its time is more than half over"


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("", "file"),
        ("?name=", "file"),
        ("?name=Scan%201.PNG", "scan_1.png"),
        ("?name=../../etc/passwd", "passwd"),
        ("?name=..%5C..%5Cboot.ini", "boot.ini"),
        ("?name=..", "file"),
        ("?name=%00%0d%0a", "file"),
        ("?name=%E8%AB%8B%E6%B1%82%E6%9B%B8.tiff", "_.tiff"),
        ("?name=" + "a" * 3000 + ".png", "a" * 60 + ".png"),
    ],
)
async def test_a_name_becomes_the_harmless_end_of_the_key(priced_door: PricedDoor, query: str, name: str) -> None:
    answer = await upload(priced_door, await priced_door.payer(), query=query)
    assert answer.status_code == 201, answer.text
    assert answer.json()["key"].count("/") == 3
    assert answer.json()["key"].split("/")[3] == name


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("image/tiff", "image/tiff"),
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("nonsense", "application/octet-stream"),
        ("text/html\t<script>", "application/octet-stream"),
        ("a/" + "b" * 300, "application/octet-stream"),
    ],
)
async def test_a_type_is_kept_if_it_is_one(priced_door: PricedDoor, given: str, kept: str) -> None:
    answer = await upload(priced_door, await priced_door.payer(), content_type=given)
    assert (answer.status_code, answer.json()["content_type"]) == (201, kept)


async def test_a_digest_that_was_announced_is_compared(priced_door: PricedDoor) -> None:
    """PRICED-169"""
    payer = await priced_door.payer()
    wrong = await upload(priced_door, payer, x_content_sha256="0" * 64)
    assert "X-Content-SHA256" in said(wrong)
    for rubbish in ("", "abc", "g" * 64, "0" * 65):
        assert "64 hex digits" in said(await upload(priced_door, payer, x_content_sha256=rubbish))
    assert await left(priced_door, payer) == []
    right = hashlib.sha256(PNG).hexdigest()
    assert (await upload(priced_door, payer, x_content_sha256=right.upper())).status_code == 201


async def test_what_is_empty_or_compressed_is_refused(priced_door: PricedDoor) -> None:
    payer = await priced_door.payer()
    assert "empty" in said(await upload(priced_door, payer, b""))
    assert "Content-Encoding" in said(await upload(priced_door, payer, content_encoding="gzip"))
    assert await left(priced_door, payer) == []


async def test_too_much_is_refused_without_reading_on(priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the header alone, and as soon as too much has come; who still sends is cut off"""
    monkeypatch.setattr(lingering, "BYTES_MAX", 0)
    payer = await priced_door.payer()
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield bytes(1000)

    with with_config(priced_door, pack_input_max_bytes=10_000):
        large = await upload(priced_door, payer, bytes(10_001))
        assert ("at most 10000 bytes" in said(large), large.headers["connection"]) == (True, "close")
        assert "at most 10000 bytes" in said(await upload(priced_door, payer, endless()))
        assert read < 20
        assert (await upload(priced_door, payer, bytes(10_000))).status_code == 201
    assert await used(priced_door, payer) == ROOM_BYTES_MIN


async def test_room_is_bounded_for_each_tenant(priced_door: PricedDoor) -> None:
    payer, other = await priced_door.payer(), await priced_door.payer()
    with with_config(priced_door, pack_input_tenant_max_bytes=150_000):
        outcomes = await asyncio.gather(*(upload(priced_door, payer, os.urandom(400)) for _ in range(6)))
        assert sorted(each.status_code for each in outcomes) == [201] * 2 + [422] * 4
        refused = next(each for each in outcomes if each.status_code == 422)
        assert said(refused).startswith("the files of this tenant take ")
        assert "of 150000 bytes, and this one would take 65536; room comes back from " in said(refused)
        assert (await upload(priced_door, other, os.urandom(400))).status_code == 201
    assert await used(priced_door, payer) == 2 * ROOM_BYTES_MIN


async def test_without_a_key_nothing_is_read_and_too_often_is_told_first(priced_door: PricedDoor) -> None:
    """PRICED-62, PRICED-65, PRICED-172, PRICED-174"""
    answer = await priced_door.client.post("/v1/inputs", content=b"")
    check_problem(answer, Reason.AUTH_INVALID)
    payer = await priced_door.payer()
    await priced_door.priced.ledger.transact(lambda tx: tx.tenants.set_rate_limit(payer.tenant_id, 2))
    said(await upload(priced_door, payer, b""))
    said(await upload(priced_door, payer, b""))
    limited = await upload(priced_door, payer, b"")
    check_problem(limited, Reason.RATE_LIMITED)
    assert limited.headers["retry-after"] == "30"


async def test_a_body_that_stops_coming_is_given_up(priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_SPAN_SECONDS", 0.05)
    payer = await priced_door.payer()

    async def stops() -> AsyncIterator[bytes]:
        yield PNG
        await asyncio.sleep(5)

    answer = await upload(priced_door, payer, stops())
    check_problem(answer, Reason.VALIDATION_FAILED, 408)
    assert answer.headers["connection"] == "close"
    assert await left(priced_door, payer) == []


async def test_a_body_that_only_drips_is_given_up(priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_door, "_PACE_GRACE_SECONDS", -1.0)
    answer = await upload(priced_door, await priced_door.payer(), PNG)
    check_problem(answer, Reason.VALIDATION_FAILED, 408)


async def test_a_full_disk_is_told_and_nothing_is_left(
    priced_door: PricedDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        with spool._no_room():
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool.Spool, "_append", full)
    payer = await priced_door.payer()
    check_problem(await upload(priced_door, payer), Reason.DEPENDENCY_UNAVAILABLE)
    assert await left(priced_door, payer) == []


async def test_more_at_once_than_there_are_places_are_sent_away(priced_door: PricedDoor) -> None:
    """And no tenant has all of the places"""
    payer, other = await priced_door.payer(), await priced_door.payer()
    turns = priced_door.gateway.app.state.gateway.inputs
    with contextlib.ExitStack() as taken:
        for _ in range(INPUTS_OF_TENANT_MAX):
            taken.enter_context(turns.turn(payer.tenant_id))
        check_problem(await upload(priced_door, payer), Reason.DEPENDENCY_UNAVAILABLE)
        assert (await upload(priced_door, other)).status_code == 201
        for number in range(INPUTS_MAX - INPUTS_OF_TENANT_MAX):
            taken.enter_context(turns.turn(f"tenant-{number}"))
        check_problem(await upload(priced_door, other, b"other bytes"), Reason.DEPENDENCY_UNAVAILABLE)
    assert (await upload(priced_door, payer)).status_code == 201
    assert turns.taken == 0


class _Away:
    """A store of inputs that does not answer."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket

    def __getattr__(self, name: str) -> Any:
        async def away(*_: object) -> None:
            raise DependencyUnavailable(f"cannot {name}")

        return away


async def test_a_store_that_is_away_is_told_and_nothing_is_half_done(priced_door: PricedDoor) -> None:
    payer, priced = await priced_door.payer(), priced_door.priced
    away: Any = _Away(priced.inputs.bucket)
    with priced_door.with_priced(replace(priced, inputs=away)):
        answer = await upload(priced_door, payer)
        problem = check_problem(answer, Reason.DEPENDENCY_UNAVAILABLE)
        assert problem["detail"] == "A part of the service did not answer. Try again with the same file."
        assert answer.headers["retry-after"] == "5"
        ready = await priced_door.client.get("/readyz")
        assert ready.status_code == 503
        assert {name for name, word in ready.json()["checks"].items() if word != "ok"} == {"results"}
    assert await used(priced_door, payer) == 0
    assert (await upload(priced_door, payer)).status_code == 201
    with priced_door.with_priced(None):
        check_problem(await upload(priced_door, payer), Reason.DEPENDENCY_UNAVAILABLE)


async def test_a_large_file_is_on_disk_meanwhile_and_its_spool_goes(priced_door: PricedDoor) -> None:
    payer, data = await priced_door.payer(), os.urandom(5_000_000)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 65_536):
            yield data[start : start + 65_536]

    answer = await upload(priced_door, payer, chunks())
    assert answer.status_code == 201
    assert answer.json()["sha256"] == hashlib.sha256(data).hexdigest()
    folder = priced_door.gateway.config.data_dir
    assert open_spools(folder) <= 1, "its thread may be closing it"
    assert list((Path(folder) / "tmp").iterdir()) == []


async def test_nothing_of_a_file_is_logged_or_repeated(
    priced_door: PricedDoor, caplog: pytest.LogCaptureFixture
) -> None:
    """PRICED-171"""
    caplog.set_level(logging.DEBUG, "pyoco_server")
    marker = "Zq7marker"
    payer = await priced_door.payer()
    answers = [
        await upload(priced_door, payer, marker.encode(), f"?name={marker}", content_type=f"a/{marker}"),
        await upload(priced_door, payer, marker.encode(), x_content_sha256=marker),
        await upload(priced_door, payer, marker.encode() * 2, x_content_sha256="0" * 64),
    ]
    assert [each.status_code for each in answers] == [201, 422, 422]
    assert not any(marker.lower() in each.text.lower() for each in answers[1:])
    assert "stored an input" in caplog.text
    assert not any(marker.lower() in str(vars(record)).lower() for record in caplog.records if _is_ours(record))


async def test_nothing_of_a_file_is_logged_or_repeated_while_its_store_is_away(
    priced_door: PricedDoor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    """PRICED-171: when it is uploaded, found again and removed"""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    usual = aws_client._config
    once = AioConfig(retries={"total_max_attempts": 1})  # the SDK pauses for seconds between its attempts
    monkeypatch.setattr(aws_client, "_config", lambda **more: usual(**more).merge(once))
    caplog.set_level(logging.DEBUG, "pyoco_server")
    marker, payer, priced = "zq7marker", await priced_door.payer(), priced_door.priced
    stored = await upload(priced_door, payer, marker.encode(), f"?name={marker}")
    assert stored.status_code == 201
    endpoint = AwsSettings(endpoint_url=f"http://127.0.0.1:{unused_port}")
    async with open_s3(endpoint) as nobody:
        gone = replace(priced, inputs=S3Inputs(nobody, PricedConfig(), endpoint.region))
        with priced_door.with_priced(gone):
            answers = await asyncio.gather(
                upload(priced_door, payer, marker.encode(), f"?name={marker}"),
                upload(priced_door, payer, marker.encode() * 2, f"?name={marker}"),
            )
        with priced_door.later(priced.config.priced_retention_sec + 1):
            await remove_inputs(gone, lambda: False)
    for answer in answers:
        check_problem(answer, Reason.DEPENDENCY_UNAVAILABLE)
        assert marker not in answer.text
    written = _Json("tests", LogSettings())
    lines = [written.format(record) for record in caplog.records if _is_ours(record)]
    assert any(f"EndpointConnectionError at 127.0.0.1:{unused_port}" in line for line in lines)
    assert any("inputs were not deleted" in line for line in lines)
    assert not any(marker in line.lower() for line in lines)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.startswith("pyoco_server")
