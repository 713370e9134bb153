"""Rules about NATS itself: the connection, the server, JetStream and its limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyoco_server.core.diagnosis.facts import Account, Facts, Missing, Monitor, Off, Server, Trouble, Unknown
from pyoco_server.core.diagnosis.finding import Remark, age, danger, note, ok, size, warning

__all__ = [
    "clock",
    "enabled",
    "is_local",
    "limits",
    "login",
    "payload",
    "reachable",
    "storage",
    "sync",
    "tls",
    "version",
]

#: Required for per-message expiry, by which ended runs are removed.
_VERSION_MIN = (2, 11)
#: Before this version, a change of the cluster's members could lose acknowledged writes.
_VERSION_SAFE = (2, 12, 3)
_SLOW_SECONDS = 0.05
_SYNC_SECONDS_MAX = 10.0
_CLOCK_WARNING_SECONDS = 5.0
_CLOCK_DANGER_SECONDS = 60.0
_FULL_WARNING = 0.8
_FULL_DANGER = 0.95


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on this host."""
    host = host.strip("[]").lower()
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def reachable(facts: Facts) -> Iterator[Remark]:
    server, url = facts.server, facts.wishes.nats_url
    if isinstance(server, Server):
        milliseconds = server.round_trip_seconds * 1000
        if server.round_trip_seconds < _SLOW_SECONDS:
            yield ok(f"{url} answers in {milliseconds:.1f} ms")
        else:
            yield warning(
                f"{url} answers in {milliseconds:.0f} ms",
                "every submission and every step of a run waits for NATS several times",
                "run gateways and workers near NATS, in the same data centre",
            )
    elif server.trouble is Trouble.LOGIN_REFUSED:
        yield danger(
            f"{url} refuses the login: {server.why}",
            "no process of ours can start or connect again",
            "put user and password, or a token, in the address: PYOCO_NATS_URL=nats://USER:PASSWORD@HOST:4222",
        )
    elif server.trouble is Trouble.TLS_FAILED:
        yield danger(
            f"the TLS connection to {url} failed: {server.why}",
            "no process of ours can start or connect again",
            "set `tls` in the configuration of NATS; use an address with tls:// and the name in its certificate; "
            "add its authority to this machine's certificates (SSL_CERT_FILE)",
        )
    else:
        yield danger(
            f"no answer from {url}: {server.why}",
            "without NATS nothing is accepted and nothing runs",
            "start NATS (`pyoco-server up` brings its own), or name the right address: --nats-url or PYOCO_NATS_URL",
        )


def version(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.server, Server):
        return
    reported = facts.server.version
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", reported)
    if numbers is None:
        yield note(f"nats-server reports version {reported!r}", "it may be too old")
        return
    found = tuple(int(part or 0) for part in numbers.groups())
    fix = "install nats-server 2.15 or newer; one node after another, with SIGTERM"
    if found < _VERSION_MIN:
        why = "it cannot expire single records: ended runs fill the disk, and the buckets cannot be created"
        yield danger(f"nats-server {reported} is too old; 2.12 or newer is needed", why, fix)
    elif found < _VERSION_SAFE:
        why = "before 2.12.3 a change of the cluster's members could lose what had been acknowledged"
        yield warning(f"nats-server {reported} has known defects", why, fix)
    else:
        yield ok(f"nats-server {reported}")


def payload(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.server, Server):
        return
    allowed, needed = facts.server.payload_bytes_max, facts.wishes.payload_bytes
    if allowed >= needed:
        yield ok(f"messages may have {size(allowed)}; ours have at most {size(needed)}")
    else:
        yield danger(
            f"messages may have at most {size(allowed)}; ours may have {size(needed)}",
            "runs with a large flow.yaml or many task records cannot be accepted or ended",
            f"set max_payload: {needed} in the configuration of NATS, "
            "or lower PYOCO_WORKFLOW_YAML_MAX_BYTES and PYOCO_MAX_RUN_SNAPSHOT_BYTES",
        )


def _is_exposed(facts: Facts, server: Server) -> bool:
    """Return whether other machines may reach it, judging by the address it reports and the address we connect to."""
    listens = [server.listens_on] if server.listens_on else []
    return not all(map(is_local, [*listens, *facts.wishes.nats_hosts]))


def login(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.server, Server):
        return
    if facts.server.wants_login:
        yield ok("NATS requires a login")
    elif _is_exposed(facts, facts.server):
        yield warning(
            "NATS requires no login, and other machines can reach it",
            "anyone who can reach its port may read all runs and execute any code on your workers",
            "set `authorization` (or accounts) in the configuration of NATS, or let it listen on 127.0.0.1; "
            "for `pyoco-server up`: leave --nats-listen-host away",
        )
    else:
        yield ok("NATS requires no login, and only this machine can reach it")


def tls(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.server, Server):
        return
    if facts.server.wants_tls:
        yield ok("connections to NATS use TLS")
    elif _is_exposed(facts, facts.server):
        yield warning(
            "connections to NATS do not use TLS, and other machines can reach it",
            "passwords, params and results can be intercepted",
            "set `tls` in the configuration of NATS and use addresses with tls://",
        )
    else:
        yield ok("connections to NATS do not use TLS, and stay on this machine")


def sync(facts: Facts) -> Iterator[Remark]:
    """Check what a power failure would lose."""
    if not isinstance(facts.server, Server):
        return
    own, monitor = facts.own_nats, facts.monitor
    if isinstance(monitor, Monitor):
        seconds, where = monitor.sync_seconds, "`sync_interval: always` (or 1s) below `jetstream` in its configuration"
    elif own is not None:
        seconds, where = own.sync_seconds, "PYOCO_NATS_SYNC=always (or 1s), and start `pyoco-server up` again"
    else:
        reason = f": {monitor.why}" if isinstance(monitor, Unknown) else ""
        yield note(
            f"cannot check how often NATS syncs to disk{reason}",
            "the default is every two minutes: a power failure loses what was accepted since",
            "check that its configuration has `sync_interval: always` (or 1s) below `jetstream`; "
            "with a monitoring port: pyoco-server doctor --nats-http http://HOST:8222",
        )
        return
    if seconds == 0:
        yield ok("NATS syncs to disk before each answer")
    elif seconds <= _SYNC_SECONDS_MAX:
        yield ok(f"NATS syncs to disk every {age(seconds)}: a power failure loses no more than that")
    else:
        yield warning(
            f"NATS syncs to disk every {age(seconds)} only",
            "a power failure loses all that was accepted since",
            f"set {where}",
        )


def clock(facts: Facts) -> Iterator[Remark]:
    ahead = facts.clock_ahead_seconds
    if isinstance(ahead, Unknown):
        if facts.is_reached and facts.is_set_up:
            yield note(f"cannot read the clock of NATS: {ahead.why}", "the clocks may differ")
        return
    difference = f"{age(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"
    fix = "set the clock by NTP here and where NATS runs: timedatectl set-ntp true"
    if abs(ahead) <= _CLOCK_WARNING_SECONDS:
        yield ok("the clocks of this machine and of NATS agree")
    elif abs(ahead) <= _CLOCK_DANGER_SECONDS:
        yield warning(
            f"the clock of this machine is {difference} that of NATS",
            "runs use the clock of NATS; the times in logs and in the output of tasks differ from it",
            fix,
        )
    else:
        yield danger(
            f"the clock of this machine is {difference} that of NATS",
            "one of the two is wrong: certificates and keys expire at the wrong time, and runs are removed too early "
            "or too late",
            fix,
        )


def enabled(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.server, Server):
        return
    if isinstance(facts.account, Account):
        yield ok(f"JetStream is on; streams: {facts.account.streams}, consumers: {facts.account.consumers}")
    elif isinstance(facts.account, Off):
        yield danger(
            f"JetStream does not answer: {facts.account.why}",
            "everything is kept in JetStream: without it nothing is accepted and nothing runs",
            "put `jetstream { store_dir: /var/lib/nats }` in the configuration of NATS, "
            "and `jetstream: enabled` in the account that we use",
        )
    else:
        yield danger(
            f"JetStream gave no answer: {facts.account.why}",
            "the cluster may have lost most of its nodes, or the user lacks permissions",
            "start the nodes that are down; let the user publish to `$JS.API.>` and subscribe to `_INBOX.>`",
        )


def storage(facts: Facts) -> Iterator[Remark]:
    """Check how much of the JetStream storage limits is in use."""
    if not isinstance(facts.account, Account):
        return
    account, own, monitor = facts.account, facts.own_nats, facts.monitor
    kinds = [("disk", account.storage_bytes, account.storage_bytes_max, "the account")]
    if isinstance(monitor, Monitor):
        kinds.append(("disk", monitor.storage_bytes, monitor.storage_bytes_max or None, "the server"))
    elif own is not None:
        kinds.append(("disk", account.storage_bytes, own.storage_bytes_max, "the server"))
    kinds.append(("memory", account.memory_bytes, account.memory_bytes_max, "the account"))
    full = [remark for kind in kinds if (remark := _fullness(*kind)) is not None]
    yield from full
    if not full:
        known = [limit for _, _, limit, _ in kinds[:-1] if limit is not None]
        of = f" of {size(min(known))}" if known else ", without a limit that can be seen from here"
        yield ok(f"JetStream keeps {size(account.storage_bytes)}{of}")


def _fullness(kind: str, used: int, limit: int | None, whose: str) -> Remark | None:
    if limit is None or used < limit * _FULL_WARNING or (kind == "memory" and not used):  # memory is not needed by us
        return None
    setting = "max_file_store" if kind == "disk" else "max_memory_store"
    where = (
        f"raise {setting} below `jetstream`" if whose == "the server" else "raise the JetStream limits of the account"
    )
    say = danger if used >= limit * _FULL_DANGER else warning
    return say(
        f"JetStream uses {size(used)} of the {size(limit)} of {kind} that {whose} may use",
        "when it is full, nothing is accepted and no run can end",
        f"{where}, or keep less: PYOCO_RUNS_RETENTION_SEC, PYOCO_DLQ_MAX_BYTES",
        about=kind,
    )


def limits(facts: Facts) -> Iterator[Remark]:
    """Check whether the streams that are still missing can be created."""
    if not isinstance(facts.account, Account):
        return
    account = facts.account
    missing = sum(isinstance(stream.state, Missing) for stream in facts.streams)
    fix = "raise the JetStream limits of the account that we use"
    tight = False
    if account.streams_max is not None and account.streams + missing > account.streams_max:
        tight = True
        yield danger(
            f"the account may have {account.streams_max} streams; it has {account.streams}, and we need {missing} more",
            "they cannot be created: no process of ours can start",
            fix,
            about="streams",
        )
    if account.wants_stream_limits and missing:
        tight = True
        yield danger(
            "the account requires a byte limit for each stream, and ours have none",
            "they cannot be created: no process of ours can start",
            "turn max_bytes_required of the account off",
            about="max_bytes",
        )
    if account.consumers_max is not None and account.consumers >= account.consumers_max * _FULL_WARNING:
        tight = True
        say = danger if account.consumers >= account.consumers_max else warning
        yield say(
            f"the account has {account.consumers} of the {account.consumers_max} consumers it may have",
            "each tag, gateway and download needs one; without it, work on a tag stops or lists are not updated",
            fix,
            about="consumers",
        )
    if not tight:
        yield ok("the limits of the account are sufficient")
