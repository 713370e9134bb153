"""Wheels through the HTTP door, and looks at what they left behind."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway
from support.wheels import build_wheel

__all__ = ["Left", "artifacts", "history", "left", "open_spools", "register", "upload"]


async def upload(
    gateway: Gateway, file_name: str, content: bytes, headers: dict[str, str] | None = None, **fields: str
) -> httpx.Response:
    return await gateway.client.post("/wheels", files={"wheel": (file_name, content)}, data=fields, headers=headers)


async def register(gateway: Gateway, package: str = "my-tasks", version: str = "1.0", **parts: Any) -> dict[str, Any]:
    """The answer to a wheel that is taken. `fields` go into the form, everything else into the wheel."""
    fields = parts.pop("fields", {})
    answer = await upload(gateway, *build_wheel(package, version, **parts), **fields)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def artifacts(gateway: Gateway) -> list[dict[str, Any]]:
    answer = await gateway.client.get("/wheels")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


async def history(gateway: Gateway, **query: Any) -> list[dict[str, Any]]:
    answer = await gateway.client.get("/wheels/history", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


class Left(msgspec.Struct, frozen=True):
    """The content of the store: objects by the count of their descriptions, stores of chunks by their count, events."""

    metas: int
    chunk_subjects: int
    events: int


class _State(msgspec.Struct):
    messages: int = 0
    subjects: dict[str, int] = {}


class _Info(msgspec.Struct):
    state: _State


async def left(link: Link, config: NatsBackendConfig) -> Left:
    bucket = config.wheel_object_store_bucket
    metas = await _info(link, f"OBJ_{bucket}", f"$O.{bucket}.M.>")
    chunks = await _info(link, f"OBJ_{bucket}", f"$O.{bucket}.C.>")
    events = await _info(link, f"KV_{config.wheel_history_kv_bucket}", ">")
    return Left(len(metas.subjects), len(chunks.subjects), events.messages)


async def _info(link: Link, stream: str, subjects: str) -> _State:
    return (await link.api(f"STREAM.INFO.{stream}", {"subjects_filter": subjects}, _Info)).state


def open_spools(data_dir: str | Path, pid: int | str = "self") -> int:
    """How many spooled files a process holds. They have no names that could be listed."""
    folder = Path(data_dir).resolve() / "tmp"
    assert not folder.exists() or not list(folder.iterdir())
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += link.readlink().is_relative_to(folder)
    return count
