"""The glossary explains each word of ours once, and the code has the names that it explains."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections import Counter

import pytest

from support.documented import ROOT

#: Words of the glossary, and the name in the code that each explains. Renaming one of the two fails here.
NAMED_IN_CODE = {
    "attempt": "actions.attempt:Attempt",
    "client queue": "ports.program_queue.port:ClientQueue",
    "client slot": "ports.slots.port:Slot",
    "dead letter": "core.dead_letter:DeadLetter",
    "delivery": "ports.queue.port:Delivery",
    "delivery processor": "loops.delivery_processor:DeliveryProcessor",
    "discovery file": "discovery.server_file:LocalServer",
    "guard": "executors.strays.guard:guarded",
    "hub": "loops.hub:Hub",
    "idempotency lock": "ports.idempotency_locks.port:IdempotencyLocks",
    "idle slot": "loops.programs.idle_slots:IdleSlots",
    "in flight": "loops.programs.in_flight:InFlight",
    "in-flight event": "loops.programs.in_flight_events:InFlightEvent",
    "retry policy": "core.retries.policy:RetryPolicy",
    "room": "loops.programs.client_slots:Room",
    "index": "ports.index.port:Index",
    "intake": "ports.queue.port:Intake",
    "ledger": "ports.ledger.port:Ledger",
    "lane": "loops.lane:Lane",
    "loop": "loops.loop:Loop",
    "notice": "ports.queue.port:Notice",
    "outage": "logs.outages:Outage",
    "outcome": "core.outcome:Outcome",
    "patience": "ports.nats.patience:Patience",
    "pulse": "loops.pulse:Pulse",
    "put back": "core.flow_moves:put_back",
    "reason": "core.outcome:DeadReason",
    "receipt": "ports.receipts.port:Receipt",
    "registration": "loops.registration:Registration",
    "remark": "executors.host.wire:Remark",
    "replica": "ports.program_queue.port:Replica",
    "run": "core.run:Run",
    "schedule": "core.schedules.record:Schedule",
    "tick": "core.schedules.when:Tick",
    "spool": "loops.tcp_worker.spool:Spool",
    "standing": "actions.attempt:Standing",
    "stray": "executors.strays",
    "wakeup": "ports.wakeups.port:Wakeup",
    "warm pool": "executors.host.warm_pool:WarmPool",
    "worker credit": "loops.tcp_worker.credits:CreditAccount",
    "worker description": "core.worker_description:WorkerDescription",
}

#: Other words that docs and source share; whoever adds one explains it.
# fmt: off
WORDS = (
    "flow", "task", "params", "submission", "tag", "job", "claim", "fenced", "heartbeat", "snapshot", "record",
    "revision", "bucket", "stream", "registry", "tenant", "pepper", "caller", "gateway", "worker", "host", "keeper",
    "door", "action", "port", "adapter", "executor", "slot", "drain", "pack", "budget", "micros", "reserve", "settle",
    "refund", "credit", "journal", "lease", "disputed", "audit", "projection", "API key", "claim ahead", "extend",
    "frame door", "grace period", "native worker",
)


def glossary() -> list[str]:
    """The words that the glossary explains."""
    page = (ROOT / "docs" / "GLOSSARY.md").read_text()
    cells = re.findall(r"^\| (\*\*[^|]*) \|", page, re.MULTILINE)
    return [word for cell in cells for word in re.findall(r"\*\*(.+?)\*\*", cell)]


@pytest.mark.parametrize("word", [*NAMED_IN_CODE, *WORDS])
def test_every_word_of_ours_is_explained(word: str) -> None:
    assert word in glossary()


def test_the_glossary_explains_each_word_once() -> None:
    assert [word for word, count in Counter(glossary()).items() if count > 1] == []


@pytest.mark.parametrize(("word", "place"), NAMED_IN_CODE.items(), ids=NAMED_IN_CODE)
def test_the_code_has_the_names_that_the_glossary_explains(word: str, place: str) -> None:
    module, _, name = place.partition(":")
    loaded = importlib.import_module(f"pyoco_server.{module}")
    assert not name or hasattr(loaded, name), f"{word}: {place}"
