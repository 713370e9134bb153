"""Logs in JetStream: their contract, and the stream that they are in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from contracts.run_logs import RunLogsContract
from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import log_stream
from pyoco_server.ports.run_logs.jetstream import JetStreamRunLogs
from support.servers import config_for


class TestJetStreamRunLogs(RunLogsContract):
    @pytest.fixture
    async def logs(self, nats_url: str) -> AsyncIterator[JetStreamRunLogs]:
        config = config_for(nats_url)
        link = await open_link(nats_url, "test", Patience())
        try:
            await ensure(link, [log_stream(config)])
            yield JetStreamRunLogs(link, config.logs_stream)
            await link.api(f"STREAM.DELETE.{config.logs_stream}", {}, dict[str, Any])
        finally:
            await link.close()


def test_the_stream_has_the_bounds_of_the_settings() -> None:
    """LOG-25: and keeps nothing longer than runs are kept"""
    config = log_stream(NatsBackendConfig(logs_max_age_sec=100.0, logs_max_bytes=5000)).config
    assert config["subjects"] == ["pyoco.logs.PYOCO_LOGS.>"]
    assert (config["max_age"], config["max_bytes"], config["discard"]) == (100 * 10**9, 5000, "old")
    assert log_stream(NatsBackendConfig(runs_retention_sec=60.0)).config["max_age"] == 60 * 10**9
    assert log_stream(NatsBackendConfig(runs_retention_sec=0.0)).config["max_age"] == 2_592_000 * 10**9


async def test_the_default_size_is_a_tenth_of_what_the_account_may_store(
    link: Link, config: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-25"""
    asked = link.api

    async def limited(subject: str, request: object, answer: type[Any], seconds: float | None = None) -> Any:
        if subject == "INFO":
            return answer(limits=type(answer().limits)(max_storage=50 * 2**20))
        return await asked(subject, request, answer, seconds)

    monkeypatch.setattr(link, "api", limited)
    resource = log_stream(config)
    resource.config["max_bytes"] = NatsBackendConfig.logs_max_bytes
    await ensure(link, [resource])
    found = await asked(f"STREAM.INFO.{resource.name}", {}, dict[str, Any])
    assert found["config"]["max_bytes"] == 5 * 2**20
