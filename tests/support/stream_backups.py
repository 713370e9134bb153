"""Streams of JetStream to back up and to restore, for tests."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from contracts.backups import Store
from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.backups.jetstream import JetStreamStreams
from pyoco_server.ports.nats.link import Link, Missing, Rejected

__all__ = ["JetStreamStore", "_job_id", "store", "streams"]


class JetStreamStore(Store):
    def __init__(self, link: Link, config: NatsBackendConfig) -> None:
        self._link, self._config = link, config
        self._prefix = f"$KV.{config.runs_kv_bucket}."

    async def write(self, key: str, value: bytes) -> int:
        # With a condition, as everybody writes; it must not be asked again at a restore.
        found = (await self.contents_of(key))[0]
        return await self._link.store(
            self._prefix + key, value, {"Nats-Expected-Last-Subject-Sequence": str(found), "Nats-TTL": "3600"}
        )

    async def delete(self, key: str) -> None:
        await self._link.store(self._prefix + key, b"", {"KV-Operation": "DEL"})

    async def contents_of(self, key: str) -> tuple[int, bytes | None]:
        try:
            found = await self._link.api(
                f"STREAM.MSG.GET.KV_{self._config.runs_kv_bucket}", {"last_by_subj": self._prefix + key}, dict[str, Any]
            )
        except (Missing, Rejected):
            return 0, None
        message = found["message"]
        gone = b"KV-Operation" in base64.b64decode(message.get("hdrs", ""))
        return message["seq"], None if gone else base64.b64decode(message.get("data", ""))

    async def contents(self) -> dict[str, tuple[int, bytes | None]]:
        name = f"STREAM.INFO.KV_{self._config.runs_kv_bucket}"
        info = await self._link.api(name, {"subjects_filter": ">"}, dict[str, Any])
        keys = [subject.removeprefix(self._prefix) for subject in info["state"].get("subjects") or {}]
        return {key: await self.contents_of(key) for key in keys}

    async def put_job(self, job_id: str) -> None:
        subject = f"{self._config.work_subject_prefix}.default"
        await self._link.store(subject, json.dumps({"run_id": job_id}).encode(), {"Nats-Msg-Id": job_id})

    async def take_job(self) -> str:
        first = (await self._messages())[0]
        await self._link.api(f"STREAM.MSG.DELETE.{self._config.work_stream}", {"seq": first["seq"]}, dict[str, Any])
        return _job_id(first)

    async def jobs(self) -> list[str]:
        return [_job_id(message) for message in await self._messages()]

    async def _messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = 0
        while True:
            request = {"seq": after + 1, "next_by_subj": ">"}
            try:
                answer = await self._link.api(f"STREAM.MSG.GET.{self._config.work_stream}", request, dict[str, Any])
            except (Missing, Rejected):
                return found
            found.append(answer["message"])
            after = answer["message"]["seq"]


def _job_id(message: dict[str, Any]) -> str:
    return str(json.loads(base64.b64decode(message["data"]))["run_id"])


@pytest.fixture
def streams(link: Link, prepared: NatsBackendConfig) -> JetStreamStreams:
    return JetStreamStreams(link, prepared)


@pytest.fixture
def store(link: Link, prepared: NatsBackendConfig) -> JetStreamStore:
    return JetStreamStore(link, prepared)
