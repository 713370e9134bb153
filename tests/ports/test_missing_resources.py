"""What a process learns of a deleted stream: which one, at once, and that nothing was stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from contracts.queue import a_job
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.holds import LOST, Holds
from pyoco_server.errors import DependencyUnavailable, NotStored, ResourceMissing, SendFailed, missing_resource
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.dependency import dependency_errors
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Missing, NotPermitted, Patience, Rejected, gave_up, open_link
from pyoco_server.ports.nats.memory.server import drop_server
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.ports.resources.jetstream import JetStreamResources
from pyoco_server.ports.resources.port import StoreGone
from support.memory_nats import new_memory_url
from support.servers import config_for, forget
from support.waiting import eventually


@pytest.fixture(params=["nats-server", "memory"])
def any_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """What both servers do alike."""
    if request.param == "nats-server":
        yield str(request.getfixturevalue("nats_url"))
        return
    url = new_memory_url()
    yield url
    drop_server(url)


@pytest.fixture
async def prepared_link(any_url: str) -> AsyncIterator[tuple[Link, NatsBackendConfig]]:
    config = config_for(any_url)
    link = await open_link(any_url, "tests")
    await ensure(link, resources_of(config))
    yield link, config
    await forget(link, config)
    await link.close()


Prepared = tuple[Link, NatsBackendConfig]


async def delete(link: Link, stream: str) -> None:
    await link.api(f"STREAM.DELETE.{stream}", {}, dict[str, Any])


async def info(link: Link, stream: str) -> dict[str, Any]:
    return await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])


async def test_a_job_for_a_deleted_queue_is_refused_at_once_and_by_name(prepared_link: Prepared) -> None:
    """SAFE-14: no responders on a connection that is up, and the API says 404: not stored, no retry for 15 s."""
    link, config = prepared_link
    await delete(link, config.work_stream)
    began = time.monotonic()
    with pytest.raises(ResourceMissing) as refused:
        await JetStreamQueue(link, config).put(a_job())
    assert time.monotonic() - began < 12  # and not after the 15 s of retries
    assert refused.value.resource == config.work_stream
    assert isinstance(refused.value, NotStored)


async def test_a_deleted_bucket_is_named_by_reads_and_writes(prepared_link: Prepared) -> None:
    """SAFE-14"""
    link, config = prepared_link
    bucket = Bucket(link, config.runs_kv_bucket)
    await delete(link, bucket.stream)
    for act in (bucket.get("x"), bucket.last_revision(), bucket.write("x", b"", 0)):
        with pytest.raises(ResourceMissing) as refused:
            await act
        assert refused.value.resource == bucket.stream


async def test_every_question_about_a_deleted_stream_names_it(prepared_link: Prepared) -> None:
    """SAFE-14"""
    link, _ = prepared_link
    for asked, request in (
        ("STREAM.INFO.X", {}),
        ("STREAM.MSG.GET.X", {"seq": 1}),
        ("STREAM.PURGE.X", {}),
        ("CONSUMER.INFO.X.y", {}),
        ("CONSUMER.LIST.X", {}),
        ("CONSUMER.CREATE.X.y", {"stream_name": "X", "config": {"name": "y", "ack_policy": "explicit"}}),
    ):
        with pytest.raises(Missing) as refused:
            await link.api(asked, request, dict[str, Any])
        assert refused.value.resource == "X", asked


async def test_no_responders_of_a_stream_that_exists_is_an_election_and_is_waited_for(
    prepared_link: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAFE-14, DESIGN 9: a stream without a leader has no responders either; the API still knows it."""
    link, config = prepared_link
    ask, silent = link.ask, 3

    async def leaderless(subject: str, *args: Any, **more: Any) -> Any:
        nonlocal silent
        if subject.startswith(config.work_subject_prefix) and silent:
            silent -= 1
            raise NotStored(f"no responders on {subject}")
        return await ask(subject, *args, **more)

    monkeypatch.setattr(link, "ask", leaderless)
    await JetStreamQueue(link, config).put(a_job())
    assert (await info(link, config.work_stream))["state"]["messages"] == 1


async def test_an_api_that_does_not_answer_during_an_election_is_no_proof(
    prepared_link: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAFE-14"""
    link, config = prepared_link

    async def nobody(subject: str, *_: Any, **__: Any) -> Any:
        raise NotStored(f"no responders on {subject}")

    with monkeypatch.context() as patch:
        patch.setattr(link, "ask", nobody)
        patch.setattr(link, "patience", Patience(unanswered_seconds=0.3))
        with pytest.raises(NotStored) as refused:
            await JetStreamQueue(link, config).put(a_job())
    assert missing_resource(refused.value) is None


async def test_what_was_deleted_is_told_in_one_round_trip(prepared_link: Prepared) -> None:
    """SAFE-14"""
    link, config = prepared_link
    resources = JetStreamResources(link)
    assert await resources.missing() == ()
    wheels = f"OBJ_{config.wheel_object_store_bucket}"
    for name in (config.work_stream, wheels):
        await delete(link, name)
    told = {StoreGone(config.work_stream, Holds.JOBS), StoreGone(wheels, Holds.WHEELS)}
    assert set(await resources.missing()) == told


async def test_a_user_that_may_not_list_streams_asks_for_each(
    prepared_link: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAFE-14: as users had been made before there was this right."""
    link, config = prepared_link

    async def refuse() -> frozenset[str]:
        raise NotPermitted("publish to $JS.API.STREAM.NAMES")

    monkeypatch.setattr(link, "stream_names", refuse)
    await delete(link, config.work_stream)
    resources = JetStreamResources(link)
    for _ in range(2):
        assert await resources.missing() == (StoreGone(config.work_stream, Holds.JOBS),)


async def test_a_queue_that_is_created_again_has_its_settings_and_higher_sequences(prepared_link: Prepared) -> None:
    """SAFE-15: an acknowledgement of a job of the deleted queue must not take a job out of the new one."""
    link, config = prepared_link
    queue, resources = JetStreamQueue(link, config), JetStreamResources(link)
    await queue.put(a_job())
    before = await info(link, config.work_stream)
    began = await resources.begun_at(Holds.JOBS)
    await delete(link, config.work_stream)
    assert await resources.begun_at(Holds.JOBS) is None
    assert await resources.make_again(config.work_stream)
    made_ms = int(time.time() * 1000)
    await eventually(lambda: int(time.time() * 1000) > made_ms)
    assert not await resources.make_again(config.work_stream), "another keeper was faster"
    assert await resources.missing() == ()
    after = await info(link, config.work_stream)
    wanted = {key: value for key, value in before["config"].items() if key != "metadata"}
    assert wanted.items() <= after["config"].items()
    assert after["state"]["messages"] == 0
    assert after["state"]["first_seq"] > before["state"]["last_seq"] + 1_000_000
    assert began is not None
    assert (await resources.begun_at(Holds.JOBS) or 0) > began
    await queue.put(a_job())
    last = (await info(link, config.work_stream))["state"]["last_seq"]
    assert last == after["state"]["first_seq"]


async def test_a_settings_conflict_is_somebody_elses_stream(
    prepared_link: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, config = prepared_link

    async def refuse(*_: Any, **__: Any) -> Any:
        raise Rejected(10058, "stream name already in use")

    with monkeypatch.context() as patch:
        patch.setattr(link, "api", refuse)
        assert not await JetStreamResources(link).make_again(config.work_stream)


def test_an_ambiguous_write_before_the_loss_is_not_certain() -> None:
    """SAFE-14: an earlier try may have been stored before the stream was deleted."""
    certain, ambiguous = (gave_up("write", Missing("PYOCO_WORK"), ambiguous=each) for each in (False, True))
    assert isinstance(certain, NotStored)
    assert not isinstance(ambiguous, NotStored)
    assert isinstance(ambiguous, ResourceMissing)
    assert certain.resource == ambiguous.resource == "PYOCO_WORK"  # type: ignore[attr-defined]


def test_every_content_says_in_both_languages_what_is_lost() -> None:
    """SAFE-15"""
    assert LOST.keys() == set(Holds)
    assert all(english.isascii() and japanese for english, japanese in LOST.values())


async def test_many_writers_learn_of_it_together(prepared_link: Prepared) -> None:
    """SAFE-14"""
    link, config = prepared_link
    await delete(link, config.work_stream)
    queue = JetStreamQueue(link, config)
    began = time.monotonic()
    ends = await asyncio.gather(*(queue.put(a_job()) for _ in range(50)), return_exceptions=True)
    assert {type(end) for end in ends} == {Missing}
    assert time.monotonic() - began < 12  # and not after the 15 s of retries


def test_a_missing_resource_of_priced_runs_keeps_its_name() -> None:
    """SAFE-14: through the errors of `/v1`, a run that could not be queued and was refunded among them."""
    with pytest.raises(DependencyUnavailable) as refused, dependency_errors("send a priced run"):
        raise Missing("DPP_RUNS")
    assert isinstance(refused.value, ResourceMissing)
    assert (refused.value.resource, refused.value.text.err_id) == ("DPP_RUNS", "ERR-PYOCO-0050")
    undone = SendFailed("6f1c2b3a-0000-4000-8000-00000000000a")
    undone.__cause__ = refused.value
    assert missing_resource(undone) is refused.value
