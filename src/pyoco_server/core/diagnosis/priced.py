"""Rules about priced runs: the ledger, the budgets, their queue and their results."""

from __future__ import annotations

from collections.abc import Iterator

from pyoco_server.core.diagnosis.facts import Facts, Found, Unknown
from pyoco_server.core.diagnosis.finding import Remark, danger, note, ok, some, warning
from pyoco_server.core.diagnosis.priced_facts import Absent, BucketFacts, LedgerFacts, PricedFacts, Redis, Sqs

__all__ = [
    "bucket",
    "dead_letters",
    "disputed",
    "file",
    "identity",
    "inputs_bucket",
    "overdue",
    "queue",
    "reachable",
    "redis",
    "secret",
    "version",
]

_NO_MONEY = "priced runs are neither accepted nor ended; flows continue"
#: Anyone who has one URL of a result can test guesses of the secret against it.
_SECRET_LENGTH_MIN = 16


def _ledger(facts: Facts) -> LedgerFacts | None:
    known = facts.priced
    return known.ledger if isinstance(known, PricedFacts) and isinstance(known.ledger, LedgerFacts) else None


def reachable(facts: Facts) -> Iterator[Remark]:
    known = facts.priced
    if not isinstance(known, PricedFacts):
        return
    if isinstance(known.ledger, LedgerFacts):
        yield ok(f"the ledger answers: {known.ledger.where}")
    elif isinstance(known.ledger, Absent):
        yield note(
            f"there is no ledger at {known.ledger.where}",
            "processes here accept, execute and end no priced runs",
            "`pyoco-server up` creates it unless the deployment uses another ledger; "
            "PYOCO_LEDGER_URL names another, --data-dir another folder; "
            "PYOCO_PRICED_ENABLED=0 where none is wanted",
        )
    else:
        yield danger(
            f"the ledger does not answer: {known.ledger.why}",
            _NO_MONEY,
            "start its database, or correct PYOCO_LEDGER_URL",
        )


def version(facts: Facts) -> Iterator[Remark]:
    ledger = _ledger(facts)
    if ledger is None:
        return
    if ledger.is_current:
        yield ok(f"the ledger's tables are of version {ledger.version}")
    elif not ledger.is_known:
        yield danger(
            f"the ledger's tables are of version {ledger.version}, and {ledger.wanted} is the newest known here",
            f"processes of this version refuse them: {_NO_MONEY}",
            "update pyoco-server here, too",
        )
    else:
        found = "has no tables" if ledger.version is None else f"has tables of version {ledger.version}"
        yield danger(
            f"the ledger {found}, and {ledger.wanted} is needed",
            f"processes of this version refuse it: {_NO_MONEY}",
            "stop processes of an older version, back the ledger up; pyoco-server-admin ledger migrate",
        )


def identity(facts: Facts) -> Iterator[Remark]:
    """SAFE-12: whether this is the ledger that the deployment uses."""
    known, remembered = facts.priced, facts.remembered_ledger
    if not isinstance(known, PricedFacts) or isinstance(known.ledger, Unknown) or not isinstance(remembered, str):
        return
    found = known.ledger.ledger_id if isinstance(known.ledger, LedgerFacts) else None
    if found == remembered:
        yield ok(f"the ledger is the one that this deployment uses: {found}")
        return
    here = f"the ledger at {known.ledger.where} has the id {found}" if found else f"no ledger at {known.ledger.where}"
    yield danger(
        f"{here}, and this deployment uses the ledger {remembered}",
        "gateways do not start with it; processes that run already refuse priced runs and move no money",
        "correct PYOCO_LEDGER_URL or --data-dir, or put that ledger back; to change to this one on purpose: "
        "pyoco-server-admin ledger adopt",
    )


def file(facts: Facts) -> Iterator[Remark]:
    """Check the file only: the busy timeout is a fixed property of each process."""
    ledger = _ledger(facts)
    if ledger is None or ledger.mode is None:
        return
    strange = False
    if ledger.mode & 0o077:
        strange = True
        yield warning(
            f"users other than its owner may open {ledger.where} (mode {ledger.mode:o})",
            "it contains every tenant's money and the inputs of priced runs",
            f"chmod 600 {ledger.where}",
            about="permissions",
        )
    if ledger.journal != "wal":
        strange = True
        yield warning(
            f"{ledger.where} has journal mode {ledger.journal}, not WAL",
            "readers and writers wait for each other; a file system without shared memory (NFS) does not support WAL",
            "put the ledger on a local disk, or into PostgreSQL",
            about="journal",
        )
    if not strange:
        yield ok(f"only its owner can open {ledger.where}, which is in WAL mode")


def disputed(facts: Facts) -> Iterator[Remark]:
    ledger = _ledger(facts)
    if ledger is not None and ledger.disputed:
        yield danger(
            f"priced runs whose money facts contradict each other: {some(ledger.disputed)}",
            "they do not end, and their money stays reserved, until an operator decides",
            "pyoco-server-admin budget disputes, then: pyoco-server-admin budget resolve --run-id ID --refund --memo …",
        )


def overdue(facts: Facts) -> Iterator[Remark]:
    ledger = _ledger(facts)
    if ledger is not None and ledger.overdue:
        yield danger(
            f"priced runs that a keeper should have ended minutes ago: {some(ledger.overdue)}",
            "their money stays reserved until a keeper ends them",
            "pyoco-keeper, with the same PYOCO_LEDGER_URL and PYOCO_BUDGET_URL as the gateways; or see its log",
        )


def redis(facts: Facts) -> Iterator[Remark]:
    known = facts.priced
    if not isinstance(known, PricedFacts) or known.redis is None:
        return
    if isinstance(known.redis, Unknown):
        yield danger(
            f"the Redis of budgets does not answer: {known.redis.why}",
            _NO_MONEY,
            "start it, or correct PYOCO_BUDGET_URL",
        )
    elif known.redis.unfit:
        yield danger(known.redis.unfit, "no process of ours starts with it", "use a single Redis 7 or newer")
    else:
        yield from _fitness(known.redis)


def _fitness(found: Redis) -> Iterator[Remark]:
    for each in found.dangers:
        yield danger(
            each,
            "budgets that Redis loses must be rebuilt from the journal, and nothing can be spent meanwhile",
            "set `maxmemory-policy noeviction` and `appendonly yes` in its configuration",
        )
    if not found.dangers:
        yield ok("the Redis of budgets answers, evicts nothing and stores every write on disk")


def queue(facts: Facts) -> Iterator[Remark]:
    known = facts.priced
    if not isinstance(known, PricedFacts) or known.sqs is None:
        return
    if isinstance(known.sqs, Sqs):
        yield ok(f"{known.sqs.name} answers; messages: {known.sqs.waiting}")
    elif isinstance(known.sqs, Absent):
        yield warning(
            f"there is no queue {known.sqs.where}",
            "nothing was started yet, or this is not the intended account or region",
            "start a gateway, which creates it; or check PYOCO_PACK_QUEUE_URL, AWS_REGION and AWS_ENDPOINT_URL",
        )
    else:
        yield danger(
            f"the queue of priced runs does not answer: {known.sqs.why}",
            "submissions are rejected, and nothing starts",
            "check PYOCO_PACK_QUEUE_URL, AWS_REGION, AWS_ENDPOINT_URL and the keys of AWS",
        )


def dead_letters(facts: Facts) -> Iterator[Remark]:
    """Report the number of letters; the queue has no other details."""
    known = facts.priced
    if not isinstance(known, PricedFacts):
        return
    count = known.sqs.dead_letters if isinstance(known.sqs, Sqs) else 0
    for stream in facts.streams:
        if stream.name == known.dead_letters_stream and isinstance(stream.state, Found):
            count = stream.state.messages
    if count:
        yield note(
            f"messages of priced runs that were delivered three times and not processed: {count}",
            "workers could not start these runs; each is refunded after its maximum waiting time",
            "check the logs of workers: the ledger was unreachable, or workers crashed repeatedly",
        )


def bucket(facts: Facts) -> Iterator[Remark]:
    known = facts.priced
    if not isinstance(known, PricedFacts) or known.bucket is None:
        return
    if isinstance(known.bucket, BucketFacts):
        yield ok(f"{known.bucket.name} answers")
    else:
        yield danger(
            f"the bucket of results does not answer: {known.bucket.why}",
            "no priced run can complete, and no result can be read",
            "check PYOCO_RESULTS_URL, AWS_REGION, AWS_ENDPOINT_URL and the keys of AWS; a gateway creates the bucket",
        )


def inputs_bucket(facts: Facts) -> Iterator[Remark]:
    known = facts.priced
    if not isinstance(known, PricedFacts) or known.inputs_bucket is None:
        return
    if isinstance(known.inputs_bucket, BucketFacts):
        yield ok(f"{known.inputs_bucket.name} answers")
    else:
        yield danger(
            f"the bucket of inputs does not answer: {known.inputs_bucket.why}",
            "no file can be uploaded, and workers take no priced run",
            "check PYOCO_PACK_INPUT_BUCKET, AWS_REGION, AWS_ENDPOINT_URL and the keys of AWS; a gateway creates it",
        )


def secret(facts: Facts) -> Iterator[Remark]:
    known = facts.priced
    if not isinstance(known, PricedFacts) or known.secret_length is None:
        return
    if known.secret_length < _SECRET_LENGTH_MIN:
        yield warning(
            f"PYOCO_RESULTS_SECRET has {known.secret_length} characters",
            "anyone who guesses it can read every result",
            "unset it, and one is generated and stored in NATS; or set 32 random characters, the same for all gateways",
        )
