"""Priced runs from submit to audit on each stack of the contract: two gateways and a worker, in real processes."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import inspect, text

from pyoco_server.config.priced import AwsSettings
from pyoco_server.ports.aws.client import open_s3, open_sqs
from pyoco_server.ports.ledger import connect
from pyoco_server.ports.ledger.schema import metadata
from pyoco_server.ports.nats.link import open_link
from support.priced.processes import DOLLAR, Gateway, Payer, Site, Worker, admin, at_once, settings_of, until
from support.priced.stacks import ALL_STACKS, SPLIT, SQLITE
from support.servers import NatsServer


@dataclass
class Deployed:
    kind: str
    site: Site
    #: Each with a data directory of its own.
    anna: Gateway
    bert: Gateway
    worker: Worker

    def either(self, number: int) -> Gateway:
        return (self.anna, self.bert)[number % 2]


@pytest.fixture(scope="module", params=ALL_STACKS)
def deployed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Nothing was made before its first process started, and all of them start at once."""
    folder = tmp_path_factory.mktemp("stack")
    nats = NatsServer(folder / "nats")
    nats.start()
    site = Site(folder, nats, settings_of(request.param, folder, request))
    try:
        anna, bert, worker = site.gateway("anna"), site.gateway("bert"), site.worker("worker")
        anna.until_ready()
        bert.until_ready()
        worker.until_ready()
        yield Deployed(request.param, site, anna, bert, worker)
    finally:
        site.end()
        nats.kill()


def test_a_run_is_executed_paid_for_and_read_by_its_signed_address(deployed: Deployed) -> None:
    """PRICED-222, PRICED-12, PRICED-81: what one gateway signs, the other opens"""
    site, anna, bert = deployed.site, deployed.anna, deployed.bert
    payer = site.payer()
    run_id = anna.submitted(payer, options={"inline": 1})
    shown = bert.until_status(payer, run_id, "COMPLETED", "FAILED")
    assert (shown["status"], shown["money_state"]) == ("COMPLETED", "SETTLED")
    assert (shown["cost"]["used_usd"], shown["cost"]["budget_remaining_usd"]) == ("0.0500", "0.9500")
    result = shown["result"]
    assert result["inline"]["data"]["confidence"] == 0.0
    body = _opened(result["presigned_url"], deployed)
    assert hashlib.sha256(body).hexdigest() == result["sha256"]
    until(lambda: (anna.listed(run_id) or {}).get("status") == "COMPLETED", 10, "the list")
    assert [deployed.worker.health(path) for path in ("/healthz", "/readyz")] == [200, 200]
    assert admin(site.environment, "budget", "verify")["ok"]
    sums = admin(site.environment, "budget", "show", "--tenant", payer.tenant_id)
    assert (sums["balance_usd_micros"], sums["held_usd_micros"], sums["charged_usd_micros"]) == (950_000, 0, 50_000)


def _opened(url: str, deployed: Deployed) -> bytes:
    """At the gateway that did not sign it; what is in S3 is opened by S3."""
    if deployed.kind == SQLITE:
        assert url.startswith(deployed.bert.address)
        url = deployed.anna.address + urlsplit(url).path
    answer = httpx.get(url, timeout=100)
    assert answer.status_code == 200, answer.text
    return answer.content


def test_what_is_refused_or_repeated_costs_nothing(deployed: Deployed) -> None:
    """PRICED-222: 402, replay, conflict, a foreign run, a run that never was; across gateways"""
    site, anna, bert = deployed.site, deployed.anna, deployed.bert
    payer, other, poor = site.payer(), site.payer(), site.payer(1_000)
    first = anna.post(payer, "one-key-1")
    again = bert.post(payer, "one-key-1")
    assert (first.status_code, again.status_code) == (202, 202)
    assert (first.json(), again.headers["Idempotency-Replayed"]) == (again.json(), "true")
    run_id = first.json()["run_id"]
    refused = {
        "IDEMPOTENCY_CONFLICT": bert.post(payer, "one-key-1", inputs={"question": "On Monday?"}),
        "BUDGET_DRAINED": bert.post(poor),
        "RUN_NOT_FOUND": bert.get(other, run_id),
    }
    assert {code: answer.json()["reason_code"] for code, answer in refused.items()} == {code: code for code in refused}
    assert [answer.status_code for answer in refused.values()] == [409, 402, 404]
    assert bert.get(other, run_id[:-1] + ("0" if run_id[-1] != "0" else "1")).status_code == 404
    assert anna.client.post("/v1/runs", json={}).status_code == 401
    anna.until_status(payer, run_id, "COMPLETED")
    assert (site.balance(payer), site.balance(poor), site.balance(other)) == (950_000, 1_000, DOLLAR)
    assert (len(site.rows(payer)), site.rows(poor)) == (1, [])
    site.check_money()


def test_after_its_retention_a_run_is_gone_for_its_owner_and_never_was_for_others(deployed: Deployed) -> None:
    """PRICED-222, PRICED-80, PRICED-88, AC-4209: and its key is free again"""
    site, anna, bert = deployed.site, deployed.anna, deployed.bert
    payer, other = site.payer(), site.payer()
    run_id = anna.post(payer, "one-key-1").json()["run_id"]
    anna.until_status(payer, run_id, "COMPLETED")
    engine = connect.engine_for_writing(connect.address(site.priced.ledger_url))
    with engine.begin() as connection:  # as if thirty days had passed
        connection.execute(text("UPDATE runs SET retention_until = created_at WHERE run_id = :id"), {"id": run_id})
    engine.dispose()
    gone = bert.get(payer, run_id)
    assert (gone.status_code, gone.json()["reason_code"]) == (410, "RUN_RETENTION_EXPIRED")
    assert bert.get(other, run_id).status_code == 404
    second = bert.post(payer, "one-key-1")
    assert second.status_code == 202
    assert second.json()["run_id"] != run_id
    anna.until_status(payer, second.json()["run_id"], "COMPLETED")
    assert site.balance(payer) == DOLLAR - 2 * 50_000
    site.check_money()


def patiently(gateway: Gateway, payer: Payer, key: str) -> httpx.Response:
    """The answer, unless a busy machine has made a store too slow for one; the same key is the same run."""
    for _ in range(5):
        answer = gateway.post(payer, key)
        if answer.status_code != 503:
            break
    return answer


def test_one_key_at_two_gateways_is_one_run_and_one_hold(deployed: Deployed) -> None:
    """PRICED-104, PRICED-227: who comes too early is told to come again, and gets the same receipt then"""
    site = deployed.site
    payer = site.payer()

    def submit(number: int) -> str:
        while (answer := patiently(deployed.either(number), payer, "the-same-key")).status_code == 409:
            assert answer.json()["reason_code"] == "IDEMPOTENCY_IN_PROGRESS"
            time.sleep(0.2)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    [run_id] = set(at_once(64, submit))
    deployed.anna.until_status(payer, run_id, "COMPLETED")
    assert [row.run_id for row in site.rows(payer)] == [run_id]
    assert (site.balance(payer), site.sums(payer).charged_usd_micros) == (950_000, 50_000)
    site.check_money()


def test_a_nearly_empty_budget_is_never_overdrawn_by_two_gateways(deployed: Deployed) -> None:
    """PRICED-228: 64 at once, and money for ten"""
    site = deployed.site
    payer = site.payer(10 * 250_000)
    answers = at_once(64, lambda number: patiently(deployed.either(number), payer, f"key-{number:05d}"))
    counted = Counter(answer.status_code for answer in answers)
    assert counted.keys() == {202, 402}
    # A run that has ended by now has given back what it did not need.
    assert counted[202] >= 10
    assert all(float(answer.headers["X-DPP-Budget-Remaining"]) >= 0 for answer in answers)
    rows = until(lambda: (found := site.rows(payer)) and all(row.has_ended for row in found) and found, what="the end")
    assert len(rows) == counted[202]
    sums = site.sums(payer)
    assert (sums.held_usd_micros, sums.charged_usd_micros) == (0, 50_000 * len(rows))
    assert site.balance(payer) == 10 * 250_000 - 50_000 * len(rows) >= 0
    site.check_money()


def test_gateways_share_the_rate_limit_of_a_tenant(deployed: Deployed) -> None:
    """PRICED-172, PRICED-175: sixty in all, and one more for each second that passes; POST has a bucket of its own"""
    site = deployed.site
    payer = site.payer(per_minute=None)
    began = time.monotonic()
    answers = at_once(80, lambda number: deployed.either(number).get(payer, "no-such-run"))
    allowed = sum(answer.status_code == 404 for answer in answers)
    assert 60 <= allowed <= 61 + (time.monotonic() - began)
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) + allowed == 80
    for answer in refused:
        assert (answer.json()["reason_code"], answer.headers["Retry-After"]) == ("RATE_LIMITED", "30")
    assert deployed.bert.post(payer).status_code == 202


def test_whatever_is_missing_is_made_at_the_start(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRICED-107, PRICED-164: tables, queue, dead letters, bucket, lifecycle, access block"""
    site = deployed.site
    engine = connect.engine_for_reading(connect.address(site.priced.ledger_url))
    with engine.connect() as connection:
        assert set(metadata.tables) <= set(inspect(connection).get_table_names())
    engine.dispose()
    for name, value in site.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    asyncio.run(_look_at_queue(deployed))
    asyncio.run(_look_at_results(deployed))


async def _look_at_queue(deployed: Deployed) -> None:
    if deployed.kind != SPLIT:
        assert {"DPP_RUNS", "DPP_RUNS_DLQ"} <= await _streams(deployed)
        return
    async with open_sqs(AwsSettings.read(deployed.site.environment)) as sqs:
        name = deployed.site.priced.pack_queue_url.removeprefix("sqs://")
        url = (await sqs.get_queue_url(QueueName=name))["QueueUrl"]
        found = (await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]
        letters = (await sqs.get_queue_url(QueueName=f"{name}-dlq"))["QueueUrl"]
    assert found["VisibilityTimeout"] == "120"
    assert '"maxReceiveCount":3' in found["RedrivePolicy"].replace(" ", "").replace('"3"', "3")
    assert letters.rpartition("/")[2] in found["RedrivePolicy"]


async def _look_at_results(deployed: Deployed) -> None:
    if deployed.kind == SQLITE:
        assert "OBJ_dpp-results" in await _streams(deployed)
        return
    bucket = deployed.site.priced.results_url.removeprefix("s3://")
    async with open_s3(AwsSettings.read(deployed.site.environment)) as s3:
        rules = (await s3.get_bucket_lifecycle_configuration(Bucket=bucket))["Rules"]
        block = (await s3.get_public_access_block(Bucket=bucket))["PublicAccessBlockConfiguration"]
    assert [rule["Expiration"]["Days"] for rule in rules] == [30]
    assert [rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] for rule in rules] == [7]
    assert all(block.values())
    assert len(block) == 4


async def _streams(deployed: Deployed) -> set[str]:
    link = await open_link(deployed.site.nats.url, "tests")
    try:
        found = await link.api("STREAM.NAMES", {}, dict[str, Any])
    finally:
        await link.close()
    return set(found["streams"])
