"""A look at the stores of priced runs, on real ones: what is there, what is wrong, and nothing is made by looking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import AwsSettings, NatsBackendConfig, PricedConfig
from pyoco_server.core.diagnosis.facts import Unknown
from pyoco_server.core.diagnosis.priced_facts import Absent, BucketFacts, LedgerFacts, PricedFacts, Redis, Sqs
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.ports.aws.client import open_s3, open_sqs
from pyoco_server.ports.deployment.priced import look_at_priced
from pyoco_server.ports.inputs.s3 import S3Inputs
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.port import LedgerTx
from pyoco_server.ports.pack_queue.sqs import SqsPackQueue
from pyoco_server.ports.results.s3 import S3Results
from pyoco_server.wiring.priced import priced_openers
from support.priced.aws_clients import settings_of
from support.priced.ledgers import FAILS, Skew, a_reserved_run, sqlite_ledger, sqlite_url
from support.priced.servers import Aws

HOUR = 3_600


async def look(aws: AwsSettings | None = None, data_dir: Path | None = None, **settings: Any) -> PricedFacts:
    config, priced = NatsBackendConfig(data_dir=str(data_dir or "nowhere")), PricedConfig(**settings)
    return await look_at_priced(config, priced, priced_openers(config, priced, aws or AwsSettings()))


async def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    seen = await look(data_dir=tmp_path)
    assert seen.ledger == Absent(str(tmp_path / "ledger.db"))
    assert (seen.redis, seen.sqs, seen.bucket, seen.inputs_bucket) == (None, None, None, None)
    assert list(tmp_path.iterdir()) == []


async def test_a_ledger_that_is_well_is_seen_so(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    path = Path(url.removeprefix("sqlite:///"))
    path.chmod(0o600)
    found = (await look(ledger_url=url)).ledger
    assert isinstance(found, LedgerFacts)
    assert found.is_current
    assert (found.where, found.mode, found.journal) == (str(path), 0o600, "wal")
    assert (found.disputed, found.overdue) == ((), ())
    assert found.ledger_id == migrate.stored_id_at(url) is not None
    path.chmod(0o644)
    found = (await look(ledger_url=url)).ledger
    assert isinstance(found, LedgerFacts)
    assert found.mode == 0o644


async def test_a_database_without_tables_is_seen_and_left_so(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "ledger.db").touch()
    for url in (f"sqlite:///{tmp_path / 'ledger.db'}", postgres_url):
        for _ in range(2):  # a look makes no tables
            found = (await look(ledger_url=url)).ledger
            assert isinstance(found, LedgerFacts), found
            assert (found.version, found.is_current, found.is_known) == (None, False, True)


async def test_a_database_that_does_not_answer_is_told_without_its_password(unused_port: int, tmp_path: Path) -> None:
    seen = await look(ledger_url=f"postgresql://pyoco:geheim@127.0.0.1:{unused_port}/pyoco")
    assert isinstance(seen.ledger, Unknown)
    assert "geheim" not in repr(seen)
    (tmp_path / "ledger.db").write_bytes(b"geheim" * 1000)
    seen = await look(data_dir=tmp_path)
    assert isinstance(seen.ledger, Unknown)
    assert "geheim" not in repr(seen)


async def test_runs_that_wait_for_an_operator_or_for_a_keeper_are_named(tmp_path: Path) -> None:
    """PRICED-157: an hour is over for one that is late, and the keeper has had its five minutes."""
    skew = Skew()

    def disputed(tx: LedgerTx) -> str:
        run = a_reserved_run(tx)
        claimed = tx.ends.claim(run.run_id, run.version, Basis.SEND_FAILED, "t", Actor.API, FAILS)
        assert isinstance(claimed, PricedRun)
        assert isinstance(tx.ends.dispute(claimed.run_id, claimed.version, "t"), PricedRun)
        return claimed.run_id

    async with sqlite_ledger(tmp_path, skew) as ledger:
        skew.move(-(HOUR + 400))
        late = await ledger.transact(lambda tx: a_reserved_run(tx).run_id)
        skew.move(300)
        await ledger.transact(a_reserved_run)
        skew.move(HOUR + 100)
        torn = await ledger.transact(disputed)
        found = (await look(ledger_url=ledger._url)).ledger
    assert isinstance(found, LedgerFacts)
    assert (found.disputed, found.overdue) == ((torn,), (late,))


async def test_a_redis_that_would_forget_is_told_and_one_that_is_away_too(
    redis_url: str, unused_port: int, tmp_path: Path
) -> None:
    """PRICED-42: that of the tests keeps nothing on disk."""
    found = (await look(data_dir=tmp_path, budget_url=redis_url)).redis
    assert isinstance(found, Redis)
    assert not found.unfit
    assert len(found.dangers) == 1
    assert "appendonly" in found.dangers[0]
    away = await look(data_dir=tmp_path, budget_url=f"redis://:geheim@127.0.0.1:{unused_port}/0")
    assert isinstance(away.redis, Unknown)
    assert "geheim" not in repr(away)


async def test_sqs_and_s3_are_seen_as_they_are(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unused_port: int
) -> None:
    settings = settings_of(aws, monkeypatch)
    asked: dict[str, Any] = {
        "data_dir": tmp_path,
        "pack_queue_url": "sqs://looked-at",
        "results_url": "s3://looked-at/some/where",
    }
    seen = await look(settings, **asked)
    assert seen.sqs == Absent("looked-at")
    assert isinstance(seen.bucket, Unknown)
    assert (await look(settings, **asked)).sqs == Absent("looked-at")  # a look makes none
    async with open_sqs(settings) as sqs, open_s3(settings) as s3:
        queue = SqsPackQueue(sqs, "sqs://looked-at", 30)
        await queue.start()
        await queue.send(b"{}", "one")
        await S3Results(s3, "s3://looked-at", settings.region, 86_400).start()
        assert isinstance((await look(settings, **asked)).inputs_bucket, Unknown)
        await S3Inputs(s3, PricedConfig(), settings.region).start()
    seen = await look(settings, **asked)
    assert (seen.sqs, seen.bucket) == (Sqs("looked-at", 1, 0), BucketFacts("looked-at"))
    assert seen.inputs_bucket == BucketFacts("dpp-inputs")
    gone = replace(settings, endpoint_url=f"http://127.0.0.1:{unused_port}")
    seen = await look(gone, **asked)
    assert isinstance(seen.sqs, Unknown)
    assert isinstance(seen.bucket, Unknown)


async def test_a_secret_is_measured_and_not_told(tmp_path: Path) -> None:
    seen = await look(data_dir=tmp_path, results_secret="geheim")
    assert seen.secret_length == 6
    assert "geheim" not in repr(seen)
    assert (await look(data_dir=tmp_path)).secret_length is None
