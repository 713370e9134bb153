"""Random bytes for the decoder, by the million: whatever comes, it gives frames and FrameErrors, and holds little."""

from __future__ import annotations

import json
import random
from uuid import UUID

from pyoco_server.core.frames.codec import LENGTH_MAX, Decoder, Frame, FrameError, Type, encode
from support.grid.frame_vectors import GOOD

__all__ = ["fuzz", "talk"]

_SEEDS = [bytes.fromhex(text) for _, text in GOOD.values()]


def fuzz(count: int, seed: int) -> dict[str, int]:
    """Feed `count` inputs; how often each answer came. Asserts what must hold for every one of them."""
    chance = random.Random(seed)
    seen: dict[str, int] = {}
    for _ in range(count):
        data = _input(chance)
        for name in _answers(chance, data):
            seen[name] = seen.get(name, 0) + 1
    return seen


def _input(chance: random.Random) -> bytes:
    """Noise; a length that is possible and then noise; a good frame with some bytes changed, cut or doubled."""
    kind = chance.random()
    if kind < 0.2:
        return chance.randbytes(chance.randrange(80))
    if kind < 0.4:
        return chance.randrange(30, 200).to_bytes(4, "little") + chance.randbytes(chance.randrange(200))
    data = bytearray(chance.choice(_SEEDS))
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if kind < 0.6:
        del data[chance.randrange(len(data)) :]
    elif kind < 0.8:
        data += chance.choice(_SEEDS)
    return bytes(data)


def _answers(chance: random.Random, data: bytes) -> list[str]:
    decoder = Decoder()
    cut = chance.randrange(len(data) + 1)
    found = decoder.feed(data[:cut]) + decoder.feed(data[cut:])
    assert decoder.held <= len(data)
    names = []
    size = 0
    for place, item in enumerate(found):
        if isinstance(item, FrameError):
            assert not item.is_fatal or place == len(found) - 1
            assert not item.is_fatal or (decoder.held == 0 and decoder.feed(b"x") == [])
            names.append(str(item.code))
        else:
            assert isinstance(item, Frame)
            assert isinstance(item.msg_id, UUID)
            again = encode(item)
            assert again in data
            size += len(again)
            names.append("frame")
    assert size + decoder.held <= len(data) <= LENGTH_MAX
    return names or ["nothing yet"]


_JOB = {"JobId": "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01", "ClientId": "fuzz", "ExecName": "fuzz"}
_PAYLOADS = [
    b"",
    b"{}",
    b"\x01\x00\x00\x00",
    b'{"ClientId":"fuzz"}',
    b'{"WorkerId":"fuzz","Pattern":"job.assign.fuzz"}',
    json.dumps({**_JOB, "Args": ["1"], "Files": {"a": "eA=="}}).encode(),
    json.dumps({**_JOB, "Status": "COMPLETED", "Stdout": "", "Stderr": "", "Token": "t", "ExitCode": 0}).encode(),
    json.dumps({"Running": [{"JobId": _JOB["JobId"], "Token": "t"}], "Cpu": 0.5}).encode(),
    json.dumps({"JobId": _JOB["JobId"], "Name": "output.zip", "Offset": 0}).encode(),
]
_HELLOS = [
    b"",
    encode(Frame(Type.HELLO_CLIENT, _PAYLOADS[3], UUID(int=1))),
    encode(Frame(Type.HELLO_WORKER, _PAYLOADS[4], UUID(int=1))),
]


def talk(chance: random.Random) -> bytes:
    """What somebody might say to a door on one connection: noise; or frames of any type in any state, some of them
    with bytes changed, left out or added. Jobs are those of client `fuzz` and program `fuzz`, and their like."""
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(1, 400))
    frames = [
        Frame(
            chance.choice([*Type, 0x00, 0x55]),
            chance.choice(_PAYLOADS),
            UUID(int=chance.getrandbits(128)),
            subject=chance.choice(["", "job.submit.fuzz"]),
        )
        for _ in range(chance.randrange(1, 8))
    ]
    data = bytearray(b"".join(map(encode, frames)))
    for _ in range(chance.choice([0, 0, 1, 1, 5])):
        place = chance.randrange(len(data))
        data[place : place + chance.choice([0, 1, 4])] = chance.randbytes(chance.choice([0, 1, 4]))
    return chance.choice(_HELLOS) + bytes(data[: chance.randrange(len(data) // 2, len(data) + 1)])
