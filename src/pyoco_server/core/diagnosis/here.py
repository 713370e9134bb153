"""Rules about this machine, its disks and settings, and about the gateway under test."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from pyoco_server.core.diagnosis.facts import Disk, Facts, GatewayFacts, Unknown
from pyoco_server.core.diagnosis.finding import Remark, age, danger, note, ok, size, warning
from pyoco_server.core.diagnosis.nats import is_local

__all__ = [
    "disks",
    "for_tests",
    "keys",
    "open_gateway",
    "pepper",
    "plain_gateway",
    "ready",
    "software",
    "timing",
    "typos",
    "unused",
]

_MIB = 1024 * 1024
#: Free bytes below which a disk is reported: the store of NATS, then any other.
_STORE_DANGER, _STORE_WARNING = 512 * _MIB, 4096 * _MIB
_OTHER_DANGER, _OTHER_WARNING = 64 * _MIB, 1024 * _MIB
_FILES_MIN = 1000


def disks(facts: Facts) -> Iterator[Remark]:
    for disk in facts.machine.disks:
        if isinstance(disk, Unknown):
            yield note(f"cannot check the disk: {disk.why}", "it may be full")
        else:
            yield _disk(disk)


def _disk(disk: Disk) -> Remark:
    low, scarce = (_STORE_DANGER, _STORE_WARNING) if disk.is_store else (_OTHER_DANGER, _OTHER_WARNING)
    what = f"{disk.purpose}: {size(disk.free_bytes)} of {size(disk.total_bytes)} are free at {disk.path}"
    if disk.is_store:
        why = "on a full disk NATS stops taking writes, and keeps streams closed until it is restarted"
        fix = "make room or take a larger disk; then restart NATS"
    elif disk.purpose == "ledger":
        why = "on a full disk no priced run is accepted, and none can end"
        fix = f"make room at {disk.path}"
    else:
        why = "on a full disk lists, wheels and uploads stop working"
        fix = f"make room at {disk.path}"
    if disk.free_files is not None and disk.free_files < _FILES_MIN:
        return danger(f"{disk.purpose}: only {disk.free_files} more files fit at {disk.path}", why, fix, disk.purpose)
    if disk.free_bytes < low:
        return danger(what, why, fix, disk.purpose)
    if disk.free_bytes < scarce:
        return warning(what, why, fix, disk.purpose)
    return ok(what, disk.purpose)


def software(facts: Facts) -> Iterator[Remark]:
    shown = ", ".join(f"{name} {version}" for name, version in facts.machine.versions.items())
    yield ok(f"here: {shown or 'unknown versions'}")


def typos(facts: Facts) -> Iterator[Remark]:
    for name, meant in facts.machine.typos.items():
        yield warning(
            f"the variable {name} does nothing; perhaps {meant} was meant",
            "the setting has no effect",
            f"rename {name} to {meant}, or remove it",
            about=name,
        )


def unused(facts: Facts) -> Iterator[Remark]:
    for name, instead in facts.machine.unused.items():
        yield note(
            f"the variable {name} is no longer used: {instead}",
            "the setting has no effect",
            f"remove {name}",
            about=name,
        )


def for_tests(facts: Facts) -> Iterator[Remark]:
    for name in facts.machine.for_tests:
        yield danger(
            f"{name} is set, which is for tests only",
            "timers, limits or rules differ from what the guarantees need",
            f"unset {name}",
            about=name,
        )


def timing(facts: Facts) -> Iterator[Remark]:
    """Check for settings that are valid by themselves, but not in combination."""
    wishes = facts.wishes
    strange = False
    if 2 * wishes.heartbeat_seconds >= wishes.disconnect_seconds:
        strange = True
        yield warning(
            f"workers count as disconnected after {wishes.disconnect_seconds:g} s, and send a heartbeat every "
            f"{wishes.heartbeat_seconds:g} s",
            "after one late heartbeat a live worker loses its runs",
            f"PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC={4 * wishes.heartbeat_seconds:g}",
            about="heartbeat",
        )
    if 0 < wishes.max_deliver < 6:
        strange = True
        yield warning(
            f"PYOCO_CONSUMER_MAX_DELIVER is {wishes.max_deliver}",
            "deliveries that find the run owned by another worker count too: runs may fail without a second try",
            "PYOCO_CONSUMER_MAX_DELIVER=20",
            about="deliveries",
        )
    if wishes.retention_seconds == 0:
        strange = True
        yield note(
            "ended runs are kept for ever (PYOCO_RUNS_RETENTION_SEC=0)",
            "the disk of NATS grows with every run",
            "PYOCO_RUNS_RETENTION_SEC=2592000",
            about="retention",
        )
    if not strange:
        yield ok("the timing settings are consistent")


def keys(facts: Facts) -> Iterator[Remark]:
    """Check by the settings here, unless a gateway was tested, which is more reliable."""
    if facts.gateway is not None:
        return
    if facts.wishes.wants_key:
        yield ok("gateways with these settings require an API key")
    else:
        yield note(
            "gateways with these settings do not require an API key",
            "anyone who can connect may submit, read and cancel every run",
            "PYOCO_HTTP_AUTH_MODE=api_key, if other machines can reach it",
        )


def pepper(facts: Facts) -> Iterator[Remark]:
    if facts.wishes.wants_key and not facts.wishes.has_pepper:
        yield warning(
            "API keys are on, and PYOCO_AUTH_PEPPER is not set here",
            "guesses of a key can be tested on a copy of the store; keys created with a pepper are rejected without it",
            "set the same long random PYOCO_AUTH_PEPPER for gateways and pyoco-server-admin, and create new keys",
        )


def _host(gateway: GatewayFacts) -> str:
    return urlsplit(gateway.url).hostname or ""


def ready(facts: Facts) -> Iterator[Remark]:
    gateway = facts.gateway
    if gateway is None:
        return
    if gateway.health != 200:
        what = f"{gateway.url}/health says {gateway.health}" if gateway.health else f"no answer from {gateway.url}"
        fix = "pyoco-server gateway, or name the right address: --server"
        yield danger(what, "nothing can be submitted there", fix)
    elif gateway.ready != 200 and not gateway.stores:
        yield danger(
            f"{gateway.url} is alive and not ready: the store of NATS refuses writes, there is no room",
            "nothing can be submitted, and no run can end",
            "make room on the disk of NATS, and restart NATS: it may write nothing before (`pyoco-server up` does it)",
        )
    elif gateway.ready != 200:
        yield danger(
            f"{gateway.url} is alive and not ready: /ready says {gateway.ready or 'nothing'}",
            "it does not reach NATS, or has not read its lists yet; submissions get 503",
            "see the findings about NATS here, and the log of the gateway",
        )
    else:
        yield ok(f"{gateway.url} is ready; it answered in {age(gateway.seconds)}")


def open_gateway(facts: Facts) -> Iterator[Remark]:
    gateway = facts.gateway
    if gateway is None or gateway.health != 200:
        return
    if isinstance(gateway.is_open, Unknown):
        yield note(f"cannot check whether {gateway.url} requires an API key: {gateway.is_open.why}", "it may be open")
    elif not gateway.is_open:
        yield ok(f"{gateway.url} requires an API key")
    elif is_local(_host(gateway)):
        yield ok(f"{gateway.url} requires no API key, and is on this machine")
    else:
        yield warning(
            f"{gateway.url} requires no API key",
            "anyone who can reach it may submit, read and cancel every run",
            "PYOCO_HTTP_AUTH_MODE=api_key, then: pyoco-server-admin api-key create --tenant NAME",
        )


def plain_gateway(facts: Facts) -> Iterator[Remark]:
    gateway = facts.gateway
    if gateway is None or is_local(_host(gateway)):
        return
    if urlsplit(gateway.url).scheme == "https":
        yield ok(f"{gateway.url} uses TLS")
    else:
        yield warning(
            f"{gateway.url} does not use TLS",
            "API keys, params and results can be intercepted",
            "put a TLS proxy in front of it, and use https://",
        )
