"""`pyoco-client price upload`: what it prints goes into a submission as it is."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from client_commands import Client, Ended
from gateways import listening
from priced_gateways import Payer, PricedDoor

in_its_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(priced_door: PricedDoor) -> AsyncIterator[str]:
    async with listening(priced_door.gateway.app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def client(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    return Client(capsys, monkeypatch)


@pytest.fixture
def call(client: Client, url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command in a thread: the gateway is in this one."""

    async def called(payer: Payer, *words: str) -> Ended:
        monkeypatch.setenv("PYOCO_API_KEY", payer.headers["Authorization"].removeprefix("Bearer "))
        return await asyncio.to_thread(client, "--server", url, "price", "upload", *words)

    return called


@in_its_loop
async def test_what_is_printed_goes_into_images(
    priced_door: PricedDoor, call: Callable[..., Any], tmp_path: Path
) -> None:
    """PRICED-147: exactly kind, bucket and key, once for each file"""
    payer = await priced_door.payer()
    one, two = tmp_path / "one.png", tmp_path / "two.tiff"
    one.write_bytes(os.urandom(300_000))
    two.write_bytes(b"two")
    ended = await call(payer, str(one), str(two))
    assert (ended.code, ended.err.startswith("kept until ")) == (0, True)
    images = json.loads(ended.out)
    bucket = priced_door.priced.config.pack_input_bucket
    assert [sorted(image) for image in images] == [["bucket", "key", "kind"]] * 2
    assert {(image["kind"], image["bucket"]) for image in images} == {("s3", bucket)}
    assert [image["key"].rpartition("/")[2] for image in images] == ["one.png", "two.tiff"]
    assert json.loads((await call(payer, str(one), str(two))).out) == images, "a repeat finds them"
    (full,) = json.loads((await call(payer, str(two), "--full", "--content-type", "image/x-other")).out)
    assert (full["bytes"], full["content_type"], full["image"]) == (3, "image/tiff", images[1])


@in_its_loop
async def test_a_refusal_says_why(priced_door: PricedDoor, call: Callable[..., Any], tmp_path: Path) -> None:
    payer, large = await priced_door.payer(), tmp_path / "large.png"
    large.write_bytes(bytes(priced_door.priced.config.pack_input_max_bytes + 1))
    ended = await call(payer, str(large))
    assert (ended.code, ended.out) == (1, "")
    assert "a file has at most 20971520 bytes" in ended.err


def test_a_file_that_cannot_be_read_is_told_before_anything_is_sent(client: Client, tmp_path: Path) -> None:
    good, empty = tmp_path / "good.png", tmp_path / "empty.png"
    good.write_bytes(b"x")
    empty.write_bytes(b"")
    for words, told in (([str(good), str(tmp_path / "none")], "cannot read"), ([str(empty)], "is empty"), ([], "FILE")):
        ended = client("--server", "http://127.0.0.1:1", "price", "upload", *words)
        assert ended.code != 0
        assert told in ended.err
