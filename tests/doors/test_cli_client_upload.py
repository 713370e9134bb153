"""`pyoco-client price upload`: what it prints goes into a submission as it is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.doors.http import lingering
from support.client_commands import COMMAND, Client, Ended
from support.gateways import listening
from support.priced.gateways import Payer, PricedDoor

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


@in_its_loop
@pytest.mark.parametrize("size", [1, 4096, 700_001])
async def test_a_pipe_is_uploaded_whole(priced_door: PricedDoor, call: Callable[..., Any], size: int) -> None:
    """`price upload <(cat scan.png)`: what was read of it cannot be read again."""
    data, (reading, writing) = os.urandom(size), os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)

    try:
        ended, _ = await asyncio.gather(
            call(await priced_door.payer(), f"/dev/fd/{reading}", "--full"), asyncio.to_thread(write)
        )
    finally:
        os.close(reading)
    (stored,) = json.loads(ended.out)
    assert (ended.code, stored["bytes"], stored["sha256"]) == (0, size, hashlib.sha256(data).hexdigest())


@in_its_loop
async def test_a_pipe_without_end_is_refused_when_it_is_too_much(
    priced_door: PricedDoor, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "BYTES_MAX", 0)
    priced, (reading, writing) = priced_door.priced, os.pipe()
    config = replace(priced.config, pack_input_max_bytes=1_000_000)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                os.write(writing, bytes(65_536))

    endless = asyncio.create_task(asyncio.to_thread(write))
    try:
        with priced_door.with_priced(replace(priced, config=config)):
            ended = await call(await priced_door.payer(), f"/dev/fd/{reading}")
    finally:
        os.close(reading)  # so the writer ends, too
        await endless
        os.close(writing)
    assert (ended.code, ended.out) == (1, "")
    assert "a file has at most 1000000 bytes" in ended.err


def test_a_pipe_that_never_says_anything_can_be_left(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    words = [COMMAND, "--server", "http://127.0.0.1:1", "price", "upload", str(fifo)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started,
        fifo.open("wb"),  # returns when the other end is open
    ):
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=120)
    assert (started.returncode, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("told", ["a\r\nX: y", "image/png\n", " image/png", "", "png", "bild/grün"])
def test_what_is_no_content_type_is_no_content_type(client: Client, tmp_path: Path, told: str) -> None:
    """It does not say that no gateway answers."""
    file = tmp_path / "scan.png"
    file.write_bytes(b"x")
    ended = client("--server", "http://127.0.0.1:1", "price", "upload", str(file), "--content-type", told)
    assert ended.code != 0
    assert "--content-type" in ended.err
    assert "it must be a type, for example image/png" in ended.err
