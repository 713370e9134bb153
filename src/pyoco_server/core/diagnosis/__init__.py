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
    Check("nats.login", "NATS requires a login, if other machines reach it", nats.login),
    Check("nats.tls", "connections to NATS use TLS, if other machines reach it", nats.tls),
    Check("nats.sync", "how often NATS syncs to disk: what a power cut takes", nats.sync),
    Check("nats.clock", "the clock of this machine agrees with that of NATS", nats.clock),
    Check("jetstream.enabled", "JetStream is on for our account", nats.enabled),
    Check("jetstream.storage", "JetStream is not full", nats.storage),
    Check("jetstream.limits", "the limits of the account are sufficient", nats.limits),
    Check("stream.present", "every stream, bucket and object store is there and answers", streams.present),
    Check("stream.storage", "they lie on disk, not in memory", streams.medium),
    Check("stream.retention", "finished jobs are removed, records are kept", streams.retention),
    Check("stream.subjects", "they cover the subjects that we write to", streams.subjects),
    Check("stream.age", "nothing is forgotten before its time", streams.ages),
    Check("stream.room", "none is full or drops accepted messages", streams.room),
    Check("stream.writable", "they accept writes, and acknowledge them once stored", streams.writable),
    Check("stream.records", "buckets keep one version of a record, and let it expire", streams.records),
    Check("stream.programs", "the queue of programs stores each job once", streams.programs),
    Check("stream.replicas", "what the loss of one NATS node would lose", streams.replicas),
    Check("stream.peers", "all replicas are online and up to date", streams.peers),
    Check("queue.unserved", "jobs whose tag no worker serves", work.unserved),
    Check("queue.lanes", "queues that are paused, too limited, or created with other settings", work.tag_queues),
    Check("queue.strangers", "consumers of other software that take jobs", work.strangers),
    Check("queue.repeats", "jobs that are redelivered again and again", work.repeats),
    Check("worker.alive", "workers are running", work.alive),
    Check("worker.hearing", "live workers that receive nothing from the queue", work.hearing),
    Check("worker.default_tag", "a worker serves the default tag", work.default_tag),
    Check("worker.versions", "workers have the same software", work.versions),
    Check("worker.wheels", "workers could install the wheels", work.wheels),
    Check("worker.records", "records of workers can be read", work.registry),
    Check("keeper.alive", "a keeper is running", work.keeper),
    Check("keeper.notices", "jobs that the queue gave up are processed", work.notices),
    Check("runs.stuck", "runs that workers left behind are taken over or ended", work.stuck),
    Check("runs.readable", "records of runs can be read", work.readable),
    Check("letters.count", "dead letters, and how new they are", work.dead_letters),
    Check("objects.orphans", "file parts that belong to no file", work.orphans),
    Check("ledger.reachable", "the ledger of priced runs answers", priced.reachable),
    Check("ledger.version", "its tables are of this version", priced.version),
    Check("ledger.identity", "it is the ledger that this deployment uses", priced.identity),
    Check("ledger.file", "only its owner can open its file, which is in WAL mode", priced.file),
    Check("ledger.disputed", "priced runs whose money waits for an operator", priced.disputed),
    Check("ledger.overdue", "priced runs that a keeper should have ended", priced.overdue),
    Check("budget.redis", "the Redis of budgets answers, and loses no data", priced.redis),
    Check("packs.queue", "the queue of priced runs answers (SQS)", priced.queue),
    Check("packs.letters", "messages of priced runs that no worker could process", priced.dead_letters),
    Check("packs.installed", "third-party packs work, and the configured ones are installed", packs.installed),
    Check("packs.executed", "every offered pack is executed by some worker", packs.executed),
    Check("packs.files", "files that the settings of packs name can be used", packs.files),
    Check("packs.ocr", "an OCR engine is installed here, with the usual languages", packs.reads_images),
    Check("packs.test_allow", "the url pack follows its rules", packs.test_allow),
    Check("results.bucket", "the bucket of results answers (S3)", priced.bucket),
    Check("inputs.bucket", "the bucket of files that packs read answers (S3)", priced.inputs_bucket),
    Check("gateway.ready", "the gateway answers and is ready (with --server)", here.ready),
    Check("gateway.open", "it requires an API key, if other machines reach it (with --server)", here.open_gateway),
    Check("gateway.tls", "connections to it use TLS, if it is another machine (with --server)", here.plain_gateway),
    Check("settings.keys", "these settings require API keys (without --server)", here.keys),
    Check("settings.pepper", "API keys have a pepper", here.pepper),
    Check("settings.secret", "the secret of results cannot be guessed", priced.secret),
    Check("settings.timing", "timing settings are consistent", here.timing),
    Check("settings.typos", "variables that look like a misspelt setting", here.typos),
    Check("settings.unused", "variables that are no longer used", here.unused),
    Check("settings.tests", "variables that are for tests only", here.for_tests),
    Check("machine.disk", "free space on the disks used by this machine", here.disks),
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
