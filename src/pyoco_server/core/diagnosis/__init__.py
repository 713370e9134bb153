"""Diagnosis of a deployment: facts in, findings out. Pure; performs no I/O.

facts.py      the facts
finding.py    the findings
nats.py, streams.py, work.py, priced.py, packs.py, here.py    the rules: each reads the facts and covers one topic
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyoco_server.core.diagnosis import here, nats, packs, priced, streams, work
from pyoco_server.core.diagnosis.facts import Facts
from pyoco_server.core.diagnosis.finding import Finding, Level, Remark, danger, worst

__all__ = ["BAD_SETTING", "CHECKS", "Check", "Facts", "Finding", "Level", "diagnose", "settings_refused", "worst"]


@dataclass(frozen=True)
class Check:
    """One check."""

    #: Stable: scripts rely on its meaning.
    id: str
    #: What it checks, in a few words.
    asks: str
    rule: Callable[[Facts], Iterator[Remark]]


#: In the order in which a person would check.
CHECKS: tuple[Check, ...] = (
    Check("nats.reachable", "NATS answers, and fast", nats.reachable),
    Check("nats.version", "nats-server is new enough", nats.version),
    Check("nats.payload", "NATS takes messages as large as ours", nats.payload),
    Check("nats.login", "NATS asks who comes, if other machines reach it", nats.login),
    Check("nats.tls", "NATS is spoken to with TLS, if other machines reach it", nats.tls),
    Check("nats.sync", "how often NATS syncs to disk: what a power cut takes", nats.sync),
    Check("nats.clock", "the clock of this machine agrees with that of NATS", nats.clock),
    Check("jetstream.enabled", "JetStream is on for our account", nats.enabled),
    Check("jetstream.storage", "JetStream is not full", nats.storage),
    Check("jetstream.limits", "the account may make what we need", nats.limits),
    Check("stream.present", "every stream, bucket and object store is there and answers", streams.present),
    Check("stream.storage", "they lie on disk, not in memory", streams.medium),
    Check("stream.retention", "jobs leave when done, records do not", streams.retention),
    Check("stream.subjects", "they listen where we write", streams.subjects),
    Check("stream.age", "nothing is forgotten before its time", streams.ages),
    Check("stream.room", "none is full, none drops what was accepted", streams.room),
    Check("stream.writable", "they take writes, and acknowledge when it is stored", streams.writable),
    Check("stream.records", "buckets keep one version of a record, and let it expire", streams.records),
    Check("stream.programs", "the queue of programs holds each job once", streams.programs),
    Check("stream.replicas", "what the loss of one NATS node takes", streams.copies),
    Check("stream.peers", "every copy is there and up to date", streams.peers),
    Check("queue.unserved", "jobs whose tag no worker serves", work.unserved),
    Check("queue.lanes", "queues that are paused, too narrow, or made with other settings", work.lanes),
    Check("queue.strangers", "consumers that are not a worker's and take jobs", work.strangers),
    Check("queue.repeats", "jobs that come again and again", work.repeats),
    Check("worker.alive", "workers are there", work.alive),
    Check("worker.hearing", "workers that live and do not hear the queue", work.hearing),
    Check("worker.default_tag", "somebody serves the default tag", work.default_tag),
    Check("worker.versions", "workers have the same software", work.versions),
    Check("worker.wheels", "workers could install the wheels", work.wheels),
    Check("worker.records", "records of workers can be read", work.registry),
    Check("keeper.alive", "a keeper is there", work.keeper),
    Check("keeper.notices", "jobs that were given up are dealt with", work.notices),
    Check("runs.stuck", "runs that workers left behind are taken over or ended", work.stuck),
    Check("runs.readable", "records of runs can be read", work.readable),
    Check("letters.count", "dead letters, and how new they are", work.letters),
    Check("objects.orphans", "parts of files that belong to none", work.orphans),
    Check("ledger.reachable", "the ledger of priced runs answers", priced.reachable),
    Check("ledger.version", "its tables are of this version", priced.version),
    Check("ledger.identity", "it is the ledger that this deployment uses", priced.identity),
    Check("ledger.file", "its file is nobody else's, and in WAL mode", priced.file),
    Check("ledger.disputed", "priced runs whose money waits for an operator", priced.disputed),
    Check("ledger.overdue", "priced runs that a keeper should have ended", priced.overdue),
    Check("budget.redis", "the Redis of budgets answers, and forgets nothing", priced.redis),
    Check("packs.queue", "the queue of priced runs answers (SQS)", priced.queue),
    Check("packs.letters", "messages of priced runs that nobody could deal with", priced.letters),
    Check("packs.installed", "the packs of others work, and those that are asked for are there", packs.installed),
    Check("packs.executed", "some worker executes each pack that is offered", packs.executed),
    Check("packs.files", "files that the settings of packs name can be used", packs.files),
    Check("packs.ocr", "something here reads images, in the usual languages", packs.reads_images),
    Check("packs.test_allow", "the url pack keeps to its rules", packs.test_allow),
    Check("results.bucket", "the bucket of results answers (S3)", priced.bucket),
    Check("inputs.bucket", "the bucket of files that packs read answers (S3)", priced.inputs_bucket),
    Check("gateway.ready", "the gateway answers and is ready (with --server)", here.ready),
    Check("gateway.open", "it asks for an API key, if other machines reach it (with --server)", here.open_gateway),
    Check("gateway.tls", "it is spoken to with TLS, if it is another machine (with --server)", here.plain_gateway),
    Check("settings.keys", "these settings ask for API keys (without --server)", here.keys),
    Check("settings.pepper", "API keys have a pepper", here.pepper),
    Check("settings.secret", "the secret of results cannot be guessed", priced.secret),
    Check("settings.timing", "times in the settings fit together", here.timing),
    Check("settings.typos", "variables that look like a misspelt setting", here.typos),
    Check("settings.unused", "variables that are no longer used", here.unused),
    Check("settings.tests", "variables that are for tests alone", here.for_tests),
    Check("machine.disk", "room on the disks that are used from here", here.disks),
    Check("machine.software", "what is installed here", here.software),
)

#: The one finding that needs no facts: without valid settings, none can be gathered.
BAD_SETTING = "settings.value"


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Return the remarks of every check, in the order of the checks. A check without applicable facts returns none."""
    return tuple(
        Finding(remark.level, remark.what, remark.why, remark.fix, remark.about, check.id)
        for check in CHECKS
        for remark in check.rule(facts)
    )


def settings_refused(problem: str) -> Finding:
    """Return the finding for an invalid setting, with which none of our processes start."""
    remark = danger(problem, "no process of ours starts with such a value", "correct it, or remove it for the default")
    return Finding(remark.level, remark.what, remark.why, remark.fix, remark.about, BAD_SETTING)
