"""`/metrics` of programs: exact after a known set of jobs, at a gateway and at processes with counters of their own."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyoco_server.actions.programs.cancel import cancel_job
from pyoco_server.actions.programs.claim import Passed, claim_job, free_slot
from pyoco_server.actions.programs.finish import Settlement, finish_job, finish_reported
from pyoco_server.actions.programs.measure import ProgramFigures
from pyoco_server.actions.programs.put_back import Why, put_back
from pyoco_server.actions.programs.set_cap import set_cap
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.percentile import p95
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.http.probe_server import metrics_server
from pyoco_server.doors.http.program_exposition import LABELS_MAX, PROGRAM_METRICS, limited, render_figures
from pyoco_server.errors import UsageError
from pyoco_server.loops.programs.meter import NAMES_MAX, Gauges, ProgramMeter
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.door_records.port import DoorRecord, DoorState
from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway, open_gateway
from support.grid.acts import DONE, FAILED, an_ask, claimed, job_submitted, run_of, slot_of, taken
from support.grid.http_jobs import fresh_grid_gateway, group_of, post_job
from support.grid.stores import a_job
from support.waiting import eventually

Samples = dict[tuple[str, tuple[str, ...]], float]
#: The order of the contract; Prometheus has them by name.
LABELS = ("group", "exec", "client", "status", "reason", "code", "role", "worker", "le")


def samples(text: str) -> Samples:
    """By name and the values of the labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in LABELS if name in sample.labels)
            found[sample.name, labels] = sample.value
    return found


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_grid_gateway(link, nats_url, tmp_path, {"exec_worker_down_delay_sec": 0.01}) as gateway:
        yield gateway


async def scraped(gateway: Gateway) -> Samples:
    answer = await gateway.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


async def end(backend: Backend, exec_name: str, seconds: float, *, fails: bool = False) -> None:
    run = (await job_submitted(backend, exec_name=exec_name)).run
    attempt = await claimed(backend, run)
    report = replace(FAILED if fails else DONE, run_seconds=seconds)
    assert await finish_job(backend, attempt, report, ()) is Settlement.RECORDED
    assert attempt.slot is not None
    await free_slot(backend, attempt.slot)


async def test_counters_are_exact_after_a_known_set_of_jobs(gateway: Gateway) -> None:
    """GRID-171, P25: and after the gateway was started anew"""
    backend, dice, group = gateway.backend, random.Random(25), group_of(gateway)
    times = {name: [dice.uniform(0, 40) for _ in range(25)] for name in ("calcA", "calcB")}
    for name, all_of in times.items():
        for number, seconds in enumerate(all_of):
            await end(backend, name, seconds, fails=number < 5)
    run = (await job_submitted(backend, exec_name="retried")).run
    for why in (Why.WORKER_DOWN, Why.WORKER_DOWN):
        attempt = await claimed(backend, run)
        await put_back(backend, attempt, why)
        assert attempt.slot is not None
        await free_slot(backend, attempt.slot)
    waiting = (await job_submitted(backend, exec_name="calcA")).run
    cancelled = (await job_submitted(backend, exec_name="calcA")).run
    await cancel_job(backend, cancelled.run_id, None, None)
    await set_cap(backend, group, "clientA", 7, "http")

    async def is_exact(gateway: Gateway) -> bool:
        found = await scraped(gateway)
        wanted: dict[str, Any] = {}
        for name, all_of in times.items():
            wanted |= {
                f"jobs_total {group} {name} COMPLETED": 20,
                f"jobs_total {group} {name} FAILED": 5,
                f"dlq_total {group} {name} execution_error": 5,
                f"run_seconds_count {name}": 25,
                f"run_seconds_p95 {name}": pytest.approx(p95(all_of)),
            }
            for bound in (0.5, 10.0, 30.0):
                wanted[f"run_seconds_bucket {name} {bound}"] = sum(seconds <= bound for seconds in all_of)
        wanted |= {
            f"jobs_total {group} calcA CANCELLED": 1,
            f"retries_total {group} retried worker_down": 2,
            "dlq_messages": 10,
            f"queued {group} calcA": 1,
            f"queued {group} retried": 1,
            f"inflight {group} calcA": 0,
            f"client_cap {group} clientA": 7,
            f"client_inflight {group} clientA": 0,
            "corrupt_records": 0,
        }
        told = {" ".join((name.removeprefix("pyoco_exec_"), *labels)): value for (name, labels), value in found.items()}
        wrong.clear()
        wrong.update({name: told.get(name) for name in wanted if told.get(name) != wanted[name]})
        return not wrong

    wrong: dict[str, float | None] = {}
    await eventually(lambda: is_exact(gateway))
    assert waiting.run_id
    assert backend.programs is not None
    async with open_gateway(gateway.config, backend.programs.config) as again:
        await eventually(lambda: is_exact(again))


async def test_what_is_in_flight_shows(gateway: Gateway) -> None:
    backend, group = gateway.backend, group_of(gateway)
    attempt = await claimed(backend, (await job_submitted(backend)).run)

    async def shows() -> bool:
        found = await scraped(gateway)
        return (
            found.get(("pyoco_exec_inflight", (group, "calcA"))) == 1
            and found.get(("pyoco_exec_client_inflight", (group, "clientA"))) == 1
        )

    await eventually(shows)
    await finish_job(backend, attempt, DONE, ())


async def test_repeats_and_dropped_results_are_counted(gateway: Gateway) -> None:
    group = group_of(gateway)
    job_id = an_ask(gateway.backend).job_id
    for _ in range(3):
        assert (await post_job(gateway, job_id=job_id)).status_code == 200
    run = await run_of(gateway.backend, (await post_job(gateway, job_id=job_id)).json()["run_id"])
    attempt = await claimed(gateway.backend, run)
    assert await finish_reported(gateway.backend, run.run_id, "another", "w9", DONE, ()) is Settlement.STALE
    await finish_job(gateway.backend, attempt, DONE, ())

    async def shows() -> bool:
        found = await scraped(gateway)
        return (
            found.get(("pyoco_exec_duplicate_submits_total", (group,))) == 3
            and found.get(("pyoco_exec_stale_results_total", (group,))) == 1
        )

    await eventually(shows)


async def test_messages_that_are_no_job_are_counted_by_their_letters(gateway: Gateway, link: Link) -> None:
    """GRID-84"""
    backend, group = gateway.backend, group_of(gateway)
    job = a_job(group, "calcA", "clientA")
    await link.store(f"pyoco.exec.{group}.calcA.clientA.{job.run_id}", b"no json")
    run = (await job_submitted(backend)).run
    delivery, slot = await taken(backend, run), await slot_of(backend, run)
    assert isinstance(await claim_job(backend, delivery, slot, worker_id="w", holder="h"), Passed)
    await eventually(lambda: has(gateway, ("pyoco_exec_dlq_total", (group, "calcA", "invalid_job")), 1))
    assert program_of(run).group == group


async def has(gateway: Gateway, key: tuple[str, tuple[str, ...]], value: float) -> bool:
    return (await scraped(gateway)).get(key) == value


async def test_a_record_that_cannot_be_read_is_counted(gateway: Gateway, link: Link) -> None:
    """Section 26.1"""
    subject = f"$KV.{gateway.config.runs_kv_bucket}.6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01"
    await link.store(subject, b"spoilt")
    await eventually(lambda: has(gateway, ("pyoco_exec_corrupt_records", ()), 1))
    await link.store(subject, b"", {"KV-Operation": "DEL"})
    await eventually(lambda: has(gateway, ("pyoco_exec_corrupt_records", ()), 0))


async def test_doors_and_workers_tell_through_their_records(gateway: Gateway) -> None:
    programs = gateway.backend.programs
    assert programs is not None
    before = sum(each.connections for each in programs.doors.all())
    await programs.doors.announce(
        DoorRecord(
            door_id=group_of(gateway),
            addr="127.0.0.1:1",
            group=group_of(gateway),
            state=DoorState.SERVING,
            started_at=1.0,
            connections=7,
        )
    )
    now = gateway.backend.clock()
    worker = WorkerRecord(
        worker_id="w1", instance_id="i", state=WorkerState.IDLE, tags=(), last_seen_at=now, last_heartbeat_at=now
    )
    await gateway.backend.registry.announce(replace(worker, patterns=("calc*",), credits=3, cpu=0.5))
    found = await scraped(gateway)
    assert found["pyoco_exec_connections", ("all",)] >= before + 7
    assert found["pyoco_exec_credits", ("w1",)] == 3
    assert found["pyoco_exec_worker_cpu", ("w1",)] == 0.5
    await programs.doors.remove(group_of(gateway))


class TestMeter:
    """What a door or a worker counts itself"""

    async def test_everything_it_was_told_is_rendered(self) -> None:
        meter = ProgramMeter("g1")
        for seconds in (0.1, 0.2, 3.0):
            meter.end("calcA", "COMPLETED", seconds)
        meter.end("calcA", "FAILED")
        meter.retry("calcA", "ack_timeout")
        meter.dead_letter("calcA", "max_attempts")
        meter.stale()
        meter.duplicate()
        meter.duplicate()
        meter.error("BAD_CREDIT")
        gauges = Gauges(
            connections={"client": 2, "worker": 1}, credits={"w1": 4}, cpu={"w1": 0.25}, inflight={"calcA": 5}
        )
        found = samples((await render_figures(meter.figures(gauges))).decode())
        wanted = {
            ("pyoco_exec_jobs_total", ("g1", "calcA", "COMPLETED")): 3,
            ("pyoco_exec_jobs_total", ("g1", "calcA", "FAILED")): 1,
            ("pyoco_exec_retries_total", ("g1", "calcA", "ack_timeout")): 1,
            ("pyoco_exec_dlq_total", ("g1", "calcA", "max_attempts")): 1,
            ("pyoco_exec_run_seconds_bucket", ("calcA", "0.1")): 1,
            ("pyoco_exec_run_seconds_bucket", ("calcA", "+Inf")): 3,
            ("pyoco_exec_run_seconds_p95", ("calcA",)): 3.0,
            ("pyoco_exec_stale_results_total", ("g1",)): 1,
            ("pyoco_exec_duplicate_submits_total", ("g1",)): 2,
            ("pyoco_exec_protocol_errors_total", ("BAD_CREDIT",)): 1,
            ("pyoco_exec_connections", ("client",)): 2,
            ("pyoco_exec_connections", ("worker",)): 1,
            ("pyoco_exec_credits", ("w1",)): 4,
            ("pyoco_exec_worker_cpu", ("w1",)): 0.25,
            ("pyoco_exec_inflight", ("g1", "calcA")): 5,
        }
        assert {key: found.get(key) for key in wanted} == wanted
        assert not [name for name, _ in found if name in {"pyoco_exec_dlq_messages", "pyoco_exec_corrupt_records"}]
        assert any(name == "process_cpu_seconds_total" for name, _ in found)

    def test_programs_beyond_a_thousand_are_counted_together(self) -> None:
        """GRID-171"""
        meter = ProgramMeter("g1")
        for number in range(NAMES_MAX + 5):
            meter.end(f"p{number}", "COMPLETED", 1.0)
        meter.end("p1", "COMPLETED", 1.0)
        figures = meter.figures(Gauges())
        assert figures.ended["g1", "other", "COMPLETED"] == 5
        assert figures.ended["g1", "p1", "COMPLETED"] == 2
        assert len(figures.seconds) == NAMES_MAX + 1

    async def test_it_is_served_on_a_port_of_its_own(self, unused_port: int) -> None:
        meter = ProgramMeter("g1")
        meter.duplicate()
        async with (
            metrics_server("127.0.0.1", 0, lambda: render_figures(meter.figures(Gauges()))) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            answer = await client.get("/metrics")
            assert (answer.status_code, answer.headers["content-type"]) == (
                200,
                "text/plain; version=0.0.4; charset=utf-8",
            )
            assert samples(answer.text)["pyoco_exec_duplicate_submits_total", ("g1",)] == 1
            assert (await client.get("/else")).status_code == 404
            assert (await client.post("/metrics")).status_code == 405
            with pytest.raises(UsageError, match=rf"--metrics-port {port} cannot be used"):
                async with metrics_server("127.0.0.1", port, lambda: render_figures(ProgramFigures())):
                    pass
        async with metrics_server("127.0.0.1", None, lambda: render_figures(ProgramFigures())) as port:
            assert port is None


def test_label_values_beyond_a_thousand_fall_under_other() -> None:
    """GRID-171: the largest keep their names"""
    series: dict[tuple[str, ...], float] = {("g", f"c{number:05}"): float(number) for number in range(LABELS_MAX + 50)}
    found = dict(limited(series))
    assert len(found) == LABELS_MAX + 1
    assert found["g", "other"] == sum(range(50))
    assert found["g", f"c{LABELS_MAX + 49:05}"] == LABELS_MAX + 49
    assert limited({}) == []
    assert sum(value for value in found.values() if isinstance(value, float)) == sum(series.values())


def test_the_table_is_that_of_the_contract() -> None:
    """Section 23.1"""
    names = Counter(each.name for each in PROGRAM_METRICS)
    assert set(names.values()) == {1}
    assert {name.removeprefix("pyoco_exec_") for name in names} == set(
        re.findall(
            r"\w+",
            """queued inflight client_inflight client_cap jobs_total retries_total dlq_total dlq_messages run_seconds
            run_seconds_p95 stale_results_total duplicate_submits_total protocol_errors_total connections credits
            worker_cpu corrupt_records""",
        )
    )


async def test_many_scrapes_at_once_are_answered(gateway: Gateway) -> None:
    found = await asyncio.gather(*(scraped(gateway) for _ in range(5)))
    assert all("pyoco_exec_dlq_messages" in {name for name, _ in each} for each in found)
