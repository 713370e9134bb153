"""Bytes from NATS in, messages out: cut anywhere, as the library's own parser has them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from pyoco_server.ports.nats.parser import QuickParser

HEARD, PLAIN = 7, 8
Told = list[tuple[Any, ...]]


class _Client:
    """What a parser calls."""

    def __init__(self) -> None:
        self.told: Told = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.told.append((sid, subject, reply, bytes(data), headers or b""))

    async def _process_ping(self) -> None:
        self.told.append(("ping",))

    async def _process_pong(self) -> None:
        self.told.append(("pong",))

    async def _process_err(self, text: str) -> None:
        self.told.append(("err", text))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.told.append(("info", info))


def quick() -> tuple[QuickParser, Told]:
    client = _Client()

    def hear(listener: str, *parts: bytes) -> None:
        assert listener == "a listener"
        assert {type(part) for part in parts} == {bytes}
        client.told.append((HEARD, *parts))

    return QuickParser(client, {HEARD: "a listener"}, hear), client.told


def fed(parser: Parser, pieces: list[bytes]) -> None:
    async def feed() -> None:
        for piece in pieces:
            await parser.parse(piece)

    asyncio.run(feed())


TEXTS = st.sampled_from([b"", b"x", b"\r\n", b"MSG a 7 1\r\nx\r\n", b"PING\r\n", b"\x00\xff" * 40, b"y" * 70_000])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    sid, reply, body = draw(st.sampled_from([HEARD, PLAIN])), draw(st.sampled_from(["", "in.box "])), draw(TEXTS)
    space = draw(st.sampled_from([" ", "  ", "\t"]))
    head = draw(st.sampled_from([b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0 404 No Messages\r\nA: b\r\n\r\n"]))
    if not head:
        return f"MSG{space}a.b {sid} {reply}{len(body)}\r\n".encode() + body + b"\r\n"
    sizes = f"{len(head)} {len(head) + len(body)}"
    return f"HMSG{space}a.b {sid} {reply}{sizes}\r\n".encode() + head + body + b"\r\n"


OTHERS = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'slow consumer'\r\n", b'INFO {"a": 1}\r\n'])


@given(st.lists(messages() | OTHERS, max_size=8), st.lists(st.integers(0, 400), max_size=12))
def test_whatever_comes_is_told_as_the_library_tells_it(parts: list[bytes], cuts: list[int]) -> None:
    wire = b"".join(parts)
    at = sorted({min(cut * len(wire) // 400, len(wire)) for cut in cuts} | {0, len(wire)})
    pieces = [wire[begin:end] for begin, end in itertools.pairwise(at)]
    client = _Client()
    fed(Parser(client), pieces)
    parser, told = quick()
    fed(parser, pieces)
    assert told == client.told


@given(st.lists(messages(), min_size=1, max_size=4))
def test_byte_by_byte_is_as_good_as_at_once(parts: list[bytes]) -> None:
    wire = b"".join(part for part in parts if len(part) < 1000)
    (at_once, told), (slowly, told_slowly) = quick(), quick()
    fed(at_once, [wire])
    fed(slowly, [wire[at : at + 1] for at in range(len(wire))])
    assert told == told_slowly


def test_a_new_connection_knows_nothing_of_a_message_that_was_cut_off() -> None:
    parser, told = quick()
    fed(parser, [b"MSG a.b 7 5\r\nhel"])
    parser.reset()
    fed(parser, [b"MSG a.b 7 2\r\nhi\r\n"])
    assert told == [(HEARD, b"a.b", b"", b"hi", b"")]


@pytest.mark.parametrize("line", [b"MSG a.b x 1\r\n", b"MSG a.b 7 x\r\n", b"WHAT 1\r\n", b"MSG 7\r\n"])
def test_what_is_no_message_is_an_error_as_it_is_for_the_library(line: bytes) -> None:
    async def parse(parser: Parser) -> None:
        await parser.parse(line)

    for parser in (Parser(_Client()), quick()[0]):
        with pytest.raises(ProtocolError):
            asyncio.run(parse(parser))
