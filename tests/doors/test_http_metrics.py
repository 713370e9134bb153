"""`GET /metrics`: names, values, and what happens when they cannot be told."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyoco_server.core.api_key import make_key
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.flow_moves import ask_cancel, beat, claim, conclude, put_back
from pyoco_server.core.outcome import NOTHING_YET, Completed, DeadReason, Failed
from pyoco_server.core.run import Owner, Run
from pyoco_server.core.run_log.counts import LogTotals
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_description import WorkerDescription
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.http.exposition import METRICS, PROCESS_METRICS
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, BERT
from support.gateways import Gateway, claimed, ended, error, open_gateway, shown, stored, submit
from support.memory_nats import MemoryServer
from support.servers import config_for, forget
from support.waiting import eventually

Values = dict[tuple[str, ...], float]


def values(text: str, name: str) -> Values:
    """The samples of this name: label values in the order of label names, and what was measured. The parser is slow:
    it need not read the other lines each time."""
    own = [line for line in text.split("\n") if line.startswith(name)]
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families("\n".join([*own, ""]))
        for sample in family.samples
        if sample.name == name
    }


async def text_of(gateway: Gateway, **headers: str) -> str:
    answer = await gateway.client.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


async def figure(gateway: Gateway, name: str, *labels: str) -> float | None:
    return values(await text_of(gateway), name).get(labels)


async def shows(gateway: Gateway, name: str, wanted: float | None, *labels: str) -> None:
    """The figure becomes this one, and soon: lists lag by a moment."""
    seen: list[float | None] = []

    async def is_shown() -> bool:
        seen.append(await figure(gateway, name, *labels))
        return seen[-1] == wanted

    try:
        await eventually(is_shown)
    except AssertionError:
        raise AssertionError(f"{name}{labels} is {seen[-1]}, not {wanted}") from None


async def runs_by_status(gateway: Gateway) -> dict[str, float]:
    return {status: count for (status,), count in values(await text_of(gateway), "pyoco_runs_total").items()}


async def write(gateway: Gateway, run_id: str, change: Any) -> Run:
    found = await stored(gateway, run_id)
    written = await gateway.backend.runs.replace(change(found.run), found.revision)
    assert isinstance(written, Stored)
    return written.run


class TestText:
    async def test_the_contracts_metrics_are_gauges_with_exactly_their_names(self, gateway: Gateway) -> None:
        """FLOW-129 to FLOW-133"""
        answer = await gateway.client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = answer.text.splitlines()
        assert lines[:8] == [
            "# HELP pyoco_runs_total Runs stored now, by status, of all tenants.",
            "# TYPE pyoco_runs_total gauge",
            *(
                f'pyoco_runs_total{{status="{status}"}} 0.0'
                for status in ("PENDING", "RUNNING", "CANCELLING", "COMPLETED", "FAILED", "CANCELLED")
            ),
        ]
        for name in ("pyoco_workers_alive_total", "pyoco_dlq_messages_total"):
            at = lines.index(f"{name} 0.0")
            assert lines[at - 1] == f"# TYPE {name} gauge"
            assert lines[at - 2].startswith(f"# HELP {name} ")

    async def test_every_metric_is_as_the_table_describes_it_and_there_are_no_others(self, gateway: Gateway) -> None:
        await ended(gateway, await submit(gateway), Completed())
        await shows(gateway, "pyoco_run_wait_seconds_count", 1, "hello", "COMPLETED")
        text = await text_of(gateway)
        heads = [line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# ")]
        told = {name: " ".join(rest) for name, *rest in heads[::2]}
        kinds = {name: " ".join(rest) for name, *rest in heads[1::2]}
        assert len(heads) == 2 * len(told), "HELP and TYPE once each"
        assert {name: kinds[name] for name in kinds if name not in PROCESS_METRICS} == {
            each.name: each.kind for each in METRICS
        }
        assert {name: told[name] for name in told if name not in PROCESS_METRICS} == {
            each.name: each.help for each in METRICS
        }
        assert set(PROCESS_METRICS) <= set(kinds)
        for family in text_string_to_metric_families(text):
            described = [each for each in METRICS if each.name in (family.name, f"{family.name}_total")]
            labels = set(described[0].labels) if described else set()
            assert all(sample.labels.keys() - {"le"} == labels for sample in family.samples), family.name

    async def test_the_size_of_the_logs_is_shown_and_what_workers_have_captured(self, gateway: Gateway) -> None:
        """LOG-28"""
        totals = LogTotals(Counter(stdout=3, stderr=1), 50, Counter(limit=7))
        worker = WorkerDescription(me=Owner("w1", "i1"), logs=totals)
        await gateway.backend.registry.announce(worker.record([], gateway.backend.clock()))
        await shows(gateway, "pyoco_log_lines_total", 3, "stdout")
        await shows(gateway, "pyoco_log_dropped_lines_total", 7, "limit")
        assert await figure(gateway, "pyoco_log_bytes_total") == 50
        assert gateway.backend.logs is not None
        await gateway.backend.logs.append("8a4f1f8e-8a55-4f0c-9f3e-1f5f0d0c7a11", 1, b"a batch of lines", 0)
        assert (await figure(gateway, "pyoco_log_stored_bytes") or 0) > 16

    async def test_names_of_any_letters_come_through(self, gateway: Gateway) -> None:
        names = ['q"uote', "new\nline", "back\\slash", "日本語 🎉", "{curly}", "a=b,c", "\\n", "r\r"]
        for name in names:
            await ended(gateway, await submit(gateway, flow_name=name), Completed())

        async def all_counted() -> bool:
            found = values(await text_of(gateway), "pyoco_run_duration_seconds_count")
            return found == {(name, "COMPLETED"): 1.0 for name in names}

        await eventually(all_counted)

    async def test_the_version_is_told(self, gateway: Gateway) -> None:
        assert values(await text_of(gateway), "pyoco_build_info") == {(gateway.app.version,): 1.0}


class TestRuns:
    async def test_runs_are_counted_as_they_move_and_when_they_go(self, gateway: Gateway) -> None:
        """FLOW-130, FLOW-134"""
        zeros = dict.fromkeys(RunState, 0.0)
        a, b, c = [await submit(gateway) for _ in range(3)]
        assert await runs_by_status(gateway) == zeros | {"PENDING": 3}  # a returned run id is counted at once
        await claimed(gateway, a)
        await write(gateway, b, lambda run: ask_cancel(run, None, time.time()))
        await shows(gateway, "pyoco_runs_in_flight", 2)
        assert await runs_by_status(gateway) == zeros | {"PENDING": 1, "RUNNING": 1, "CANCELLING": 1}
        await write(gateway, a, lambda run: conclude(run, Failed(message="x"), time.time()))
        await ended(gateway, c, Completed())
        await write(gateway, b, lambda run: conclude(run, Completed(), time.time()))
        await shows(gateway, "pyoco_runs_in_flight", 0)
        assert await runs_by_status(gateway) == zeros | {"COMPLETED": 1, "FAILED": 1, "CANCELLED": 1}
        await gateway.backend.runs.withdraw(a, (await stored(gateway, a)).revision)
        await shows(gateway, "pyoco_runs_total", 0, "FAILED")

    async def test_queues_are_told_by_tag_and_empty_ones_left_out(self, gateway: Gateway) -> None:
        now = time.time()
        for number, (tag, age) in enumerate([("gpu", 100.0), ("gpu", 300.0), ("cpu", 7.0)]):
            made: dict[str, Any] = {"submitted_at": now - age, "updated_at": now - age, "heartbeat_at": now - age}
            run = Run(run_id=f"00000000-0000-4000-8000-{number:012d}", flow_name="hello", tag=tag, **made)
            assert isinstance(await gateway.backend.runs.create(run), Stored)
        await shows(gateway, "pyoco_queue_depth", 2, "gpu")
        text = await text_of(gateway)
        assert values(text, "pyoco_queue_depth") == {("gpu",): 2.0, ("cpu",): 1.0}
        ages, late = values(text, "pyoco_queue_oldest_age_seconds"), time.time() - now
        assert ages.keys() == {("gpu",), ("cpu",)}
        assert 300 <= ages["gpu",] <= 300 + late
        assert 7 <= ages["cpu",] <= 7 + late
        await claimed(gateway, "00000000-0000-4000-8000-000000000002")
        await shows(gateway, "pyoco_queue_depth", None, "cpu")
        assert values(await text_of(gateway), "pyoco_queue_oldest_age_seconds").keys() == {("gpu",)}

    async def test_the_lag_of_lists_is_small_when_all_is_well(self, gateway: Gateway) -> None:
        async def is_small() -> bool:
            """On a busy machine not each time."""
            lag = await figure(gateway, "pyoco_index_lag_seconds")
            assert lag is not None
            assert lag >= 0
            return lag < 1

        for _ in range(5):
            await submit(gateway)
            await eventually(is_small)


class TestEnds:
    async def test_an_end_is_counted_once_however_often_the_run_was_taken(self, gateway: Gateway) -> None:
        run_id = await submit(gateway, flow_name="x")
        await claimed(gateway, run_id, ANNA)
        await write(gateway, run_id, lambda run: put_back(run, time.time()))
        await shows(gateway, "pyoco_run_redeliveries_total", 0)
        await claimed(gateway, run_id, BERT)
        await shows(gateway, "pyoco_run_redeliveries_total", 1)
        done = await write(gateway, run_id, lambda run: conclude(run, Completed(), time.time() + 40))
        await shows(gateway, "pyoco_run_duration_seconds_count", 1, "x", "COMPLETED")
        await gateway.backend.runs.withdraw(run_id, (await stored(gateway, run_id)).revision)
        await shows(gateway, "pyoco_runs_total", 0, "COMPLETED")
        text = await text_of(gateway)
        assert values(text, "pyoco_run_duration_seconds_count") == {("x", "COMPLETED"): 1.0}
        assert values(text, "pyoco_run_wait_seconds_count") == {("x", "COMPLETED"): 1.0}
        assert done.start_time is not None
        took = values(text, "pyoco_run_duration_seconds_sum")["x", "COMPLETED"]
        assert took == pytest.approx((done.end_time or 0) - done.start_time)
        buckets = values(text, "pyoco_run_duration_seconds_bucket")
        assert {le: count for (_, le, _), count in buckets.items() if le in ("30.0", "60.0", "+Inf")} == {
            "30.0": 0.0,
            "60.0": 1.0,
            "+Inf": 1.0,
        }
        assert await figure(gateway, "pyoco_run_redeliveries_total") == 1

    async def test_a_gateway_that_starts_does_not_count_history(
        self, link: Link, nats_url: str, tmp_path: Path
    ) -> None:
        """Neither with an index that continues where it stopped, nor with one that is built anew"""
        config = config_for(nats_url, data_dir=str(tmp_path / "a"))
        try:
            async with open_gateway(config) as gateway:
                run_id = await submit(gateway)
                await claimed(gateway, run_id)
                await write(gateway, run_id, lambda run: claim(run, BERT, "attempt-2", time.time()))
                await write(gateway, run_id, lambda run: conclude(run, Completed(), time.time()))
                await shows(gateway, "pyoco_run_wait_seconds_count", 1, "hello", "COMPLETED")
                running = await submit(gateway, flow_name="under way")
                await claimed(gateway, running)
                await write(gateway, running, lambda run: claim(run, BERT, "attempt-2", time.time()))
                await shows(gateway, "pyoco_run_redeliveries_total", 2)
            for data_dir in ("a", "b", "a"):
                async with open_gateway(replace(config, data_dir=str(tmp_path / data_dir))) as gateway:
                    await eventually(partial(is_answered, gateway))
                    beaten = await write(gateway, running, lambda run: beat(run, NOTHING_YET, time.time()))
                    await eventually(partial(is_listed, gateway, beaten))
                    text = await text_of(gateway)
                    assert values(text, "pyoco_run_wait_seconds_count") == {}
                    assert values(text, "pyoco_run_redeliveries_total") == {(): 0.0}
                    assert values(text, "pyoco_runs_total")[("COMPLETED",)] == 1.0
        finally:
            await forget(link, config)

    async def test_an_end_that_nobody_watched_is_not_counted(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        config = config_for(nats_url, data_dir=str(tmp_path / "a"))
        elsewhere = replace(config, data_dir=str(tmp_path / "b"))
        try:
            async with open_gateway(config) as gateway:
                run_id = await submit(gateway)
                await shows(gateway, "pyoco_runs_total", 1, "PENDING")
            async with open_gateway(elsewhere) as other:
                await ended(other, run_id, Completed())
                await eventually(partial(is_answered, other))
            async with open_gateway(config) as gateway:
                await eventually(partial(is_answered, gateway))
                await shows(gateway, "pyoco_runs_total", 1, "COMPLETED")
                assert await figure(gateway, "pyoco_run_wait_seconds_count", "hello", "COMPLETED") is None
        finally:
            await forget(link, config)


async def is_answered(gateway: Gateway) -> bool:
    return (await gateway.client.get("/metrics")).status_code == 200


async def is_listed(gateway: Gateway, run: Run) -> bool:
    """Whether lists, and so the feed, know this state of the run."""
    listed = await shown(gateway)
    return any(line["run_id"] == run.run_id and line["updated_at"] == run.updated_at for line in listed)


class TestWorkers:
    async def test_live_workers_and_their_slots_are_counted(self, gateway: Gateway) -> None:
        """FLOW-131: hidden ones included, silent and stopped ones not"""
        now = time.time()

        async def announce(worker_id: str, state: WorkerState, **more: Any) -> None:
            seen = more.pop("seen", now)
            record = WorkerRecord(
                worker_id=worker_id,
                instance_id=worker_id,
                state=state,
                tags=("default",),
                last_seen_at=seen,
                last_heartbeat_at=seen,
                **more,
            )
            await gateway.backend.registry.announce(record)

        await announce("idle", WorkerState.IDLE, slots=4)
        await announce("ahead", WorkerState.RUNNING, slots=2, running=("a", "b", "c"), hidden=True)
        await announce("busy", WorkerState.RUNNING, slots=8, running=("d",))
        await announce("silent", WorkerState.RUNNING, slots=100, running=("e",), seen=now - 1000)
        await announce("stopped", WorkerState.STOPPED_GRACEFUL, slots=100)
        text = await text_of(gateway)
        names = ("pyoco_workers_alive_total", "pyoco_worker_slots", "pyoco_worker_slots_busy")
        assert [values(text, name)[()] for name in names] == [3, 14, 3]


class TestLetters:
    async def test_dead_letters_are_counted_and_by_reason(self, gateway: Gateway, link: Link) -> None:
        """FLOW-132"""
        for number, reason in enumerate([DeadReason.TIMEOUT, DeadReason.TIMEOUT, DeadReason.INVALID_JOB]):
            letter = DeadLetter(timestamp=1.0, reason=reason, error="x", tag="default", flow_name=f"flow-{number}")
            await gateway.backend.queue.bury(letter, f"letter-{number}")
        await shows(gateway, "pyoco_dead_letters", 2, "timeout")
        text = await text_of(gateway)
        by_reason = {reason: count for (reason,), count in values(text, "pyoco_dead_letters").items()}
        assert by_reason == dict.fromkeys(DeadReason, 0.0) | {"timeout": 2.0, "invalid_job": 1.0}
        await link.store(f"{gateway.config.dlq_subject_prefix}.default", b"no letter at all")
        await shows(gateway, "pyoco_dlq_messages_total", 4)
        await link.api(f"STREAM.PURGE.{gateway.config.dlq_stream}", {}, dict[str, Any])
        assert await figure(gateway, "pyoco_dlq_messages_total") == 0
        await shows(gateway, "pyoco_dead_letters", 0, "timeout")


class TestRequests:
    async def test_answers_are_counted_by_route_and_status(self, gateway: Gateway) -> None:
        name = "pyoco_http_request_duration_seconds_count"
        before = values(await text_of(gateway), name)
        run_id = await submit(gateway)
        for _ in range(3):
            await gateway.client.get(f"/runs/{run_id}")
        await gateway.client.get("/runs/nobody")
        after = values(await text_of(gateway), name)
        grown = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
        assert grown == {
            ("POST", "/runs", "200"): 1,
            ("GET", "/runs/{run_id}", "200"): 3,
            ("GET", "/runs/{run_id}", "404"): 1,
            ("GET", "/metrics", "200"): 1,
        }
        assert [key for key in after if run_id in "".join(key)] == [], "ids are no labels"

    async def test_open_event_streams_are_counted(self, gateway: Gateway) -> None:
        with gateway.app.state.gateway.hub.follow("some run"):
            assert await figure(gateway, "pyoco_watchers") == 1
        assert await figure(gateway, "pyoco_watchers") == 0


class TestTrouble:
    @pytest.mark.virtual_time
    async def test_without_nats_there_are_no_figures(self, memory_nats_server: MemoryServer, tmp_path: Path) -> None:
        """FLOW-135"""
        async with open_gateway(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as gateway:
            await submit(gateway)
            await shows(gateway, "pyoco_runs_total", 1, "PENDING")
            memory_nats_server.kill()
            await eventually(lambda: not gateway.backend.is_up())

            async def ask_in_vain() -> None:
                check_away(await gateway.client.get("/metrics"))

            async with asyncio.timeout(5.0):
                await ask_in_vain()
            memory_nats_server.start()
            await eventually(partial(is_answered, gateway))
            await shows(gateway, "pyoco_runs_total", 1, "PENDING")

    @pytest.mark.parametrize("feeder", ["feeder", "dead_letter_feeder"])
    async def test_lists_that_are_not_whole_yet_give_no_figures(
        self, gateway: Gateway, feeder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ "I could not look" is never told as "there are none\""""

        async def not_yet(_: float) -> bool:
            return False

        monkeypatch.setattr(getattr(gateway.app.state.gateway, feeder), "caught_up", not_yet)
        check_away(await gateway.client.get("/metrics"))

    async def test_any_key_opens_it_and_it_covers_all_tenants(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-45, FLOW-134, FLOW-276"""
        config = config_for(nats_url, data_dir=str(tmp_path), http_auth_mode="api_key")
        try:
            async with open_gateway(config) as gateway:
                keys = []
                for tenant in ("a", "b"):
                    plain, record = make_key(tenant, "", time.time(), secrets.token_hex, secrets.token_urlsafe)
                    await gateway.backend.keys.add(record)
                    keys.append({"X-API-Key": plain})
                for key in keys:
                    assert (await gateway.client.post("/runs", json={"flow_name": "f"}, headers=key)).is_success
                assert (await gateway.client.get("/metrics")).status_code == 401
                for key in keys:
                    text = await text_of(gateway, **key)
                    assert values(text, "pyoco_runs_total")[("PENDING",)] == 2.0
                    assert values(text, "pyoco_queue_depth") == {("default",): 2.0}
        finally:
            await forget(link, config)


def check_away(answer: httpx.Response) -> None:
    assert answer.status_code == 503
    assert answer.json() == error(3, "nats unavailable")
    assert answer.headers["content-type"] == "application/json"
