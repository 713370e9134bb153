"""What `pyoco-server doctor` finds on real servers with something wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.diagnosis import CHECKS
from pyoco_server.ports.nats.link import Link
from pyoco_server.wiring.backend import ensure_resources
from support.backends import opened_backend, submitted
from support.configured_nats import configured_nats
from support.doctor_commands import CONFIG, Doctor, a_worker, announced, doctor, nothing, on
from support.servers import NatsServer

__all__ = ["doctor"]


def edited(stream: str, **settings: Any) -> Callable[[Link], Awaitable[object]]:
    async def edit(link: Link) -> None:
        info = await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])
        await link.api(f"STREAM.UPDATE.{stream}", {**info["config"], **settings}, dict[str, Any])

    return edit


# What is there, and wrong


async def _remove_work(link: Link) -> None:
    await link.api(f"STREAM.DELETE.{CONFIG.work_stream}", {}, dict[str, Any])


async def _work_in_memory(link: Link) -> None:
    await _remove_work(link)
    await link.api(
        f"STREAM.CREATE.{CONFIG.work_stream}",
        {"name": CONFIG.work_stream, "subjects": ["pyoco.work.>"], "retention": "workqueue", "storage": "memory"},
        dict[str, Any],
    )


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        (_remove_work, "stream.present", "danger"),
        (_work_in_memory, "stream.storage", "danger"),
        (edited("PYOCO_WORK", max_age=3600 * 10**9), "stream.age", "danger"),
        (edited("PYOCO_WORK", max_msgs=10), "stream.room", "danger"),
        (edited("KV_pyoco_runs", max_msgs_per_subject=3), "stream.records", "warning"),
        (edited("PYOCO_WORK", subjects=["pyoco.other.>"]), "stream.subjects", "danger"),
        (nothing, "keeper.alive", "danger"),
        (nothing, "worker.alive", "warning"),
    ],
    ids=["missing", "memory", "age", "limit", "history", "subjects", "keeper", "worker"],
)
def test_what_is_wrong_on_a_real_server_is_found(
    change: Callable[[Link], Awaitable[object]], check: str, level: str, doctor: Doctor, own_nats_server: NatsServer
) -> None:
    on(own_nats_server.url, change)
    said = doctor("--nats-url", own_nats_server.url, "--json")
    assert said.code == 1  # there is no keeper either
    found = said.about(check)
    assert found["level"] == level
    assert found["why"]
    assert found["fix"]


def test_streams_as_we_make_them_are_well(doctor: Doctor, own_nats_server: NatsServer) -> None:
    on(own_nats_server.url, nothing)
    said = doctor("--nats-url", own_nats_server.url, "--json")
    for check in (check.id for check in CHECKS if check.id.startswith(("stream.", "jetstream."))):
        assert said.levels(check) <= {"ok"}, check


def test_messages_too_small_for_ours_are_a_danger(doctor: Doctor, tmp_path: Path) -> None:
    with configured_nats(tmp_path, "max_payload: 65536") as nats:
        said = doctor("--nats-url", nats.url, "--json")
    assert said.code == 1
    assert "max_payload: 917504" in said.about("nats.payload")["fix"]


def test_a_network_without_login_and_tls_is_warned_of(doctor: Doctor, tmp_path: Path) -> None:
    with configured_nats(tmp_path, 'host: "0.0.0.0"') as nats:
        said = doctor("--nats-url", nats.url, "--json")
    assert said.levels("nats.login") == said.levels("nats.tls") == {"warning"}


def test_the_monitoring_port_tells_how_often_nats_syncs(doctor: Doctor, tmp_path: Path) -> None:
    for number, (sync, level) in enumerate((("", "warning"), ("sync_interval: always", "ok"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with configured_nats(folder, 'http: "127.0.0.1:-1"', jetstream=sync) as nats:
            unseen = doctor("--nats-url", nats.url, "--json")
            seen = doctor("--nats-url", nats.url, "--nats-http", f"http://127.0.0.1:{nats.http_port}/", "--json")
        assert unseen.levels("nats.sync") == {"note"}
        assert seen.levels("nats.sync") == {level}
        stores = [each for each in seen.document["findings"] if each["about"] == "store of NATS"]
        assert len(stores) == 1


def test_a_monitoring_port_that_is_none_is_told_and_harmless(
    doctor: Doctor, own_nats_server: NatsServer, unused_port: int
) -> None:
    said = doctor("--nats-url", own_nats_server.url, "--nats-http", f"http://127.0.0.1:{unused_port}", "--json")
    assert said.code == 0
    assert "does not respond" in said.about("nats.sync")["what"]


def test_jobs_that_nobody_takes_are_a_danger_with_the_command_that_helps(
    doctor: Doctor, own_nats_server: NatsServer
) -> None:
    async def submit(link: Link) -> None:
        await announced(a_worker())(link)
        async with opened_backend(NatsBackendConfig(nats_url=own_nats_server.url)) as backend:
            await submitted(backend, "f", "default")
            await submitted(backend, "f", "gpu")

    on(own_nats_server.url, submit)
    said = doctor("--nats-url", own_nats_server.url, "--json")
    found = said.about("queue.unserved")
    assert (said.code, found["about"]) == (1, "gpu")
    assert found["fix"] == "pyoco-worker --flow-resolver MODULE:CALLABLE --tags gpu"


def test_an_odd_description_of_a_file_is_a_note(doctor: Doctor, own_nats_server: NatsServer) -> None:
    async def describe(link: Link) -> None:
        await link.store(f"$O.{CONFIG.wheel_object_store_bucket}.M.b2Rk", b"\xff")

    on(own_nats_server.url, describe)
    found = doctor("--nats-url", own_nats_server.url, "--json").about("objects.orphans")
    assert (found["level"], "cannot be read" in found["what"]) == ("note", True)


def test_a_worker_that_does_not_hear_the_queue_is_found(
    doctor: Doctor, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC", "0.1")  # the second look comes sooner
    on(own_nats_server.url, announced(a_worker(last_pull_at=time.time() - 300)))
    said = doctor("--nats-url", own_nats_server.url, "--json")
    assert said.about("worker.hearing")["about"] == "anna"


def test_a_misspelt_variable_is_named(
    doctor: Doctor, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYOCO_NATS_SINC", "always")
    said = doctor("--nats-url", own_nats_server.url, "--json")
    assert said.about("settings.typos")["about"] == "PYOCO_NATS_SINC"


def test_where_streams_were_made_beforehand_a_strict_look_names_what_is_left(
    doctor: Doctor, own_nats_server: NatsServer
) -> None:
    asyncio.run(ensure_resources(NatsBackendConfig(nats_url=own_nats_server.url)))
    said = doctor("--nats-url", own_nats_server.url, "--json", "--strict")
    bad = {each["id"] for each in said.document["findings"] if each["level"] in {"warning", "danger"}}
    assert (said.code, bad) == (1, {"keeper.alive", "worker.alive"})
