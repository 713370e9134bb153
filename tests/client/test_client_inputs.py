"""Both clients and files for packs: sent as they are read, compared, and tried again where that is safe."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.http_client import AnswerDamaged, PackProblem
from support.client_twins import MakeClient
from support.scripted_gateway import answer, cut, scripted

DATA = b"\x89PNG" + bytes(600_000)
IMAGE = {"kind": "s3", "bucket": "dpp-inputs", "key": "dpp/a/1/scan.png"}
STORED: dict[str, Any] = {
    **IMAGE,
    "sha256": hashlib.sha256(DATA).hexdigest(),
    "bytes": len(DATA),
    "content_type": "image/png",
    "expires_at": "2026-01-31T12:00:00Z",
    "image": IMAGE,
}
PROBLEM = {"content-type": "application/problem+json"}


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    path = tmp_path / "Scan 1.png"
    path.write_bytes(DATA)
    return path


async def test_a_path_is_sent_as_it_is_with_its_name_and_type(make: MakeClient, scan: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    async with scripted(answer(STORED, 201)) as server, make(server.url, api_key="k") as client:
        stored = await client.upload_input(scan, progress=lambda done, size: seen.append((done, size)))
    assert stored == STORED
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/inputs?name=Scan+1.png")
    assert asked.body == DATA
    assert asked.headers["content-type"] == "image/png"
    assert asked.headers["content-length"] == str(len(DATA))
    assert seen[-1] == (len(DATA), len(DATA))


@pytest.mark.parametrize("kind", [bytes, bytearray, io.BytesIO])
async def test_bytes_need_no_name(make: MakeClient, kind: Callable[[bytes], Any]) -> None:
    async with scripted(answer(STORED)) as server, make(server.url) as client:
        await client.upload_input(kind(DATA))
    (asked,) = server.asked
    assert (asked.path, asked.body) == ("/v1/inputs", DATA)
    assert asked.headers["content-type"] == "application/octet-stream"


async def test_what_is_said_counts_before_what_the_path_says(make: MakeClient, scan: Path) -> None:
    async with scripted(answer(STORED)) as server, make(server.url) as client:
        await client.upload_input(str(scan), "image/tiff", name="x.tiff")
    (asked,) = server.asked
    assert asked.path == "/v1/inputs?name=x.tiff"
    assert asked.headers["content-type"] == "image/tiff"


async def test_it_is_tried_again_from_its_beginning(make: MakeClient, scan: Path) -> None:
    unready = answer({"reason_code": "DEPENDENCY_UNAVAILABLE"}, 503, **PROBLEM)
    async with scripted(unready, cut, answer(STORED)) as server, make(server.url) as client:
        assert await client.upload_input(scan) == STORED
    assert len(server.asked) == 3
    assert server.asked[-1].body == DATA


async def test_a_refusal_is_a_problem_and_is_not_repeated(make: MakeClient) -> None:
    refused = answer({"reason_code": "VALIDATION_FAILED", "errors": []}, 422, **PROBLEM)
    async with scripted(refused) as server, make(server.url) as client:
        with pytest.raises(PackProblem) as caught:
            await client.upload_input(DATA)
    assert caught.value.reason_code == "VALIDATION_FAILED"
    assert len(server.asked) == 1


async def test_other_bytes_than_were_sent_are_told(make: MakeClient) -> None:
    async with scripted(answer(STORED)) as server, make(server.url) as client:
        with pytest.raises(AnswerDamaged, match="sha256"):
            await client.upload_input(b"something else")


async def test_a_file_that_is_not_there_is_not_asked_about(make: MakeClient, tmp_path: Path) -> None:
    async with scripted() as server, make(server.url) as client:
        with pytest.raises(FileNotFoundError):
            await client.upload_input(tmp_path / "none.png")
    assert server.asked == []


@pytest.mark.parametrize("told", ["a\r\nX: y", "image/png ", "bild/gr\u00fcn"])
async def test_a_type_that_no_header_can_carry_is_not_sent(make: MakeClient, told: str) -> None:
    async with make("http://127.0.0.1:1") as client:
        with pytest.raises(ValueError, match="no HTTP header can carry"):
            await client.upload_input(DATA, told)
