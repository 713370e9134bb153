"""Rules about our streams, buckets and object stores: whether they lose accepted data or refuse new data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyoco_server.core.diagnosis.facts import Facts, Found, Missing, NodeFacts, Server, StreamFacts, Unknown
from pyoco_server.core.diagnosis.finding import Remark, age, danger, note, ok, size, some, warning

__all__ = [
    "ages",
    "medium",
    "peers",
    "present",
    "programs",
    "records",
    "replicas",
    "retention",
    "room",
    "subjects",
    "writable",
]

_SECOND = 1_000_000_000
_FULL_WARNING = 0.8
_FULL_DANGER = 0.95
_LAG_MAX = 1000
_SILENT_SECONDS = 5.0

#: The fix for settings that cannot be changed in place.
_ANEW = "let runs finish and stop everything; `nats stream rm {name}`; start a gateway, which creates it again, empty"


def _found(facts: Facts) -> Iterator[tuple[StreamFacts, Found]]:
    for stream in facts.streams:
        if isinstance(stream.state, Found):
            yield stream, stream.state


def _limit(settings: Any, name: str) -> int:
    """Return a limit; 0: none. The server stores -1, our settings omit it."""
    return max(0, int(settings.get(name) or 0))


def _or_ok(remarks: Sequence[Remark], facts: Facts, what: str) -> Iterator[Remark]:
    yield from remarks
    if not remarks and any(True for _ in _found(facts)):
        yield ok(what)


def present(facts: Facts) -> Iterator[Remark]:
    if not facts.is_reached or not facts.streams:
        return
    missing = [stream.name for stream in facts.streams if isinstance(stream.state, Missing)]
    unread = [stream for stream in facts.streams if isinstance(stream.state, Unknown)]
    if len(missing) == len(facts.streams):
        yield warning(
            "this NATS has none of our streams yet",
            "nothing was ever started here, or this is not the intended server or account",
            "start a gateway, which creates what it needs; or check PYOCO_NATS_URL and the names in your settings",
        )
        return
    for name in missing:
        yield danger(
            f"{name} is missing, while others exist",
            "its contents are lost, and requests that need it fail; a running keeper creates queues again within 30 s, "
            "and nothing else",
            f"pyoco-server-admin restore --from DIR --only {name}; or, to create it empty, pyoco-server-admin prepare",
            about=name,
        )
    for stream in unread:
        assert isinstance(stream.state, Unknown)
        yield danger(
            f"{stream.name} does not answer: {stream.state.why}",
            "a stream without a leader can be neither read nor written",
            f"start the nodes that are down; `nats stream info {stream.name}` shows which hold it",
            about=stream.name,
        )
    if not missing and not unread:
        yield ok(f"all {len(facts.streams)} streams, buckets and object stores exist")


def medium(facts: Facts) -> Iterator[Remark]:
    found = [
        danger(
            f"{stream.name} is kept in memory",
            "everything in it is lost when NATS stops",
            _ANEW.format(name=stream.name),
            about=stream.name,
        )
        for stream, state in _found(facts)
        if state.settings.get("storage", "file") != "file"
    ]
    yield from _or_ok(found, facts, "everything is kept on disk")


def retention(facts: Facts) -> Iterator[Remark]:
    found = [
        danger(
            f"{stream.name} has retention {state.settings.get('retention')!r}, not {stream.wanted['retention']!r}",
            "records are removed too early, or finished jobs stay and fill the disk",
            _ANEW.format(name=stream.name),
            about=stream.name,
        )
        for stream, state in _found(facts)
        if state.settings.get("retention", "limits") != stream.wanted["retention"]
    ]
    yield from _or_ok(found, facts, "the retention of every stream is right")


def subjects(facts: Facts) -> Iterator[Remark]:
    found = []
    for stream, state in _found(facts):
        have, wanted = set(state.settings.get("subjects") or ()), set(stream.wanted["subjects"])
        fix = f"nats stream edit {stream.name} --subjects='{','.join(sorted(wanted))}'"
        if wanted - have:
            why = "writes to these subjects fail"
            found.append(
                danger(f"{stream.name} does not listen on {some(sorted(wanted - have))}", why, fix, stream.name)
            )
        elif have - wanted:
            why = "foreign messages are stored among our records"
            found.append(warning(f"{stream.name} also listens on {some(sorted(have - wanted))}", why, fix, stream.name))
    yield from _or_ok(found, facts, "the subjects of every stream are right")


def ages(facts: Facts) -> Iterator[Remark]:
    """Check the maximum ages. 0 keeps messages for ever."""
    found = []
    for stream, state in _found(facts):
        have, wanted = _limit(state.settings, "max_age"), _limit(stream.wanted, "max_age")
        fix = f"nats stream edit {stream.name} --max-age={wanted // _SECOND}s"
        if have and not wanted:
            what = f"{stream.name} forgets everything after {age(have / _SECOND)}; it should keep it"
            why = "accepted data disappears"
            found.append(danger(what, why, fix, stream.name))
        elif have and have < wanted:
            what = f"{stream.name} forgets after {age(have / _SECOND)}; the settings say {age(wanted / _SECOND)}"
            found.append(warning(what, "data may already have been removed", fix, stream.name))
        elif have != wanted:
            what = f"{stream.name} forgets {f'after {age(have / _SECOND)}' if have else 'nothing'}"
            why = f"the settings say {age(wanted / _SECOND)}; existing streams are not changed, and use more disk space"
            found.append(note(what, why, fix, stream.name))
    yield from _or_ok(found, facts, "nothing is forgotten before its time")


def room(facts: Facts) -> Iterator[Remark]:
    """Check for limits that drop old messages or refuse new ones."""
    found: list[Remark] = []
    for stream, state in _found(facts):
        settings, name = state.settings, stream.name
        limits = {key: _limit(settings, key) for key in ("max_msgs", "max_bytes")}
        history = _limit(stream.wanted, "max_msgs_per_subject")
        is_limited = any(limits.values()) or (_limit(settings, "max_msgs_per_subject") and not history)
        drops = bool(is_limited) and settings.get("discard", "old") == "old"
        if drops and stream.wanted.get("discard") != "old":  # the oldest dead letters are dropped by design
            what = f"{name} drops its oldest messages when it is full"
            why = "accepted jobs or records are lost silently"
            fix = f"nats stream edit {name} --max-msgs=-1 --max-bytes=-1 --max-msgs-per-subject={history or -1}"
            found.append(danger(what, why, fix, name))
        elif not drops:
            found += _fullness(name, state, limits)
        biggest, needed = _limit(settings, "max_msg_size"), facts.wishes.payload_bytes
        needed = _limit(stream.wanted, "max_msg_size") or needed  # jobs of programs are small by design
        if biggest and biggest < needed:
            what = f"{name} accepts messages of at most {size(biggest)}; ours may have {size(needed)}"
            why = "larger runs cannot be accepted or ended"
            found.append(danger(what, why, f"nats stream edit {name} --max-msg-size=-1", name))
    yield from _or_ok(found, facts, "no stream is full or drops accepted messages")


def _fullness(name: str, state: Found, limits: dict[str, int]) -> Iterator[Remark]:
    used = {"max_msgs": state.messages, "max_bytes": state.size_bytes}
    for key, limit in limits.items():
        if limit and used[key] >= limit * _FULL_WARNING:
            say = danger if used[key] >= limit * _FULL_DANGER else warning
            shown = str if key == "max_msgs" else size
            yield say(
                f"{name} is at {shown(used[key])} of {key} {shown(limit)}",
                "when it is full, it accepts nothing more: submissions fail",
                f"nats stream edit {name} --{key.replace('_', '-')}=-1",
                name,
            )


#: A setting, the value that blocks or endangers writes, its description, and the consequence.
_TRAPS: tuple[tuple[str, object, str, str], ...] = (
    ("sealed", True, "is sealed", "nothing can be written to it"),
    ("no_ack", True, "does not acknowledge", "every write times out"),
    ("persist_mode", "async", "acknowledges before it has written", "a crash of NATS loses what was accepted"),
    ("allow_rollup_hdrs", False, "does not accept rollups", "no file can be stored in it"),
    ("deny_purge", True, "cannot be purged", "removed and replaced files stay on disk forever"),
)


def writable(facts: Facts) -> Iterator[Remark]:
    found = []
    for stream, state in _found(facts):
        name = stream.name
        for setting, bad, what, why in _TRAPS:
            if setting in {"allow_rollup_hdrs", "deny_purge"} and not name.startswith("OBJ_"):
                continue  # only files are replaced and purged
            if state.settings.get(setting, False) == bad:
                say = warning if setting == "deny_purge" else danger
                fix = (
                    _ANEW.format(name=name)
                    if setting != "allow_rollup_hdrs"
                    else f"nats stream edit {name} --allow-rollup"
                )
                found.append(say(f"{name} {what}", why, fix, name))
        if state.settings.get("mirror"):
            what = f"{name} mirrors another stream"
            found.append(danger(what, "nothing can be written to it", _ANEW.format(name=name), name))
    yield from _or_ok(found, facts, "the settings of every stream allow acknowledged writes; none was tried")


def records(facts: Facts) -> Iterator[Remark]:
    """Check how a bucket keeps single records, and expires them."""
    found = []
    for stream, state in _found(facts):
        name, settings, wanted = stream.name, state.settings, stream.wanted
        if wanted.get("allow_msg_ttl") and not settings.get("allow_msg_ttl"):
            what, why = (
                f"{name} cannot expire single records",
                "ended runs and old workers stay forever: the disk fills",
            )
            found.append(warning(what, why, f"nats stream edit {name} --allow-msg-ttl", name))
        elif wanted.get("subject_delete_marker_ttl") and not settings.get("subject_delete_marker_ttl"):
            what, why = f"{name} does not report expired records", "lists may keep showing removed runs"
            found.append(warning(what, why, f"nats stream edit {name} --subject-del-markers-ttl=24h", name))
        history = _limit(settings, "max_msgs_per_subject")
        if wanted.get("max_msgs_per_subject") == 1 and history != 1:
            what = f"{name} keeps {history or 'all'} versions of each record, not one"
            why = "when the newest expires an older one comes back: an ended run would seem to run again"
            found.append(warning(what, why, f"nats stream edit {name} --max-msgs-per-subject=1", name))
    yield from _or_ok(found, facts, "buckets keep the newest record of each kind, and let it expire")


def programs(facts: Facts) -> Iterator[Remark]:
    """Check that the queue keeps one message per run: no component for programs starts on a queue that could keep two,
    or drop one."""
    found = []
    of_programs = [each for each in _found(facts) if each[0].wanted.get("discard_new_per_subject")]
    for stream, state in of_programs:
        if not state.settings.get("discard_new_per_subject") or state.settings.get("max_msgs_per_subject") != 1:
            what = f"{stream.name} may hold more than one message of a job, or drop one"
            why = "gateways, doors and workers of programs refuse to start"
            found.append(danger(what, why, _ANEW.format(name=stream.name), stream.name))
    yield from found
    if of_programs and not found:
        yield ok("the queue of programs stores each job once")


def replicas(facts: Facts) -> Iterator[Remark]:
    """Check what the loss of one node would lose."""
    streams = list(_found(facts))
    if not streams or not isinstance(facts.server, Server):
        return
    by_count: dict[int, list[str]] = {}
    for stream, state in streams:
        by_count.setdefault(int(state.settings.get("num_replicas") or 1), []).append(stream.name)
    fix = "pyoco-server-admin replicas 3; and PYOCO_JETSTREAM_REPLICAS=3 in all processes"
    if not facts.server.cluster:
        yield ok("one copy of everything, on one server: keep backups (pyoco-server-admin backup --to DIR)")
        return
    if 1 in by_count:
        yield danger(
            f"one copy only, on a cluster: {some(by_count[1])}",
            "the loss of one node loses them; while that node is down nothing works",
            fix,
        )
    if 2 in by_count:
        yield warning(
            f"two copies only: {some(by_count[2])}",
            "when one of the two nodes is down, nothing can be written: three are needed to survive the loss of one",
            fix,
        )
    if not by_count.keys() & {1, 2}:
        yield ok(f"copies of everything: {min(by_count)}")
    elif len(by_count) > 1:
        yield note("not all streams have the same number of copies", "the weakest decides what survives")
    if facts.wishes.replicas < 3 and not by_count.keys() & {1, 2}:
        yield warning(
            f"PYOCO_JETSTREAM_REPLICAS is {facts.wishes.replicas} here, and this is a cluster",
            "new streams get too few replicas",
            "PYOCO_JETSTREAM_REPLICAS=3, in all processes",
            about="PYOCO_JETSTREAM_REPLICAS",
        )


def peers(facts: Facts) -> Iterator[Remark]:
    """Check that the copies exist and are up to date. A node in trouble affects many streams, but is reported once."""
    if not isinstance(facts.server, Server) or not facts.server.cluster:
        return
    troubled: dict[tuple[Callable[..., Remark], str, str], list[str]] = {}
    for stream, state in _found(facts):
        away = [peer.name for peer in state.peers if _is_away(peer)]
        behind = [peer.name for peer in state.peers if not _is_away(peer) and not _keeps_up(peer)]
        if not state.leader:
            trouble = (danger, "no node leads", "nothing can be read or written")
        elif 2 * len(away) > len(state.peers):
            trouble = (danger, f"most replicas are offline, on {some(away)}", "nothing can be written")
        elif away:
            why = "it works, but does not survive the loss of another node"
            trouble = (warning, f"a replica is offline, on {some(away)}", why)
        elif behind:
            why = "until it has caught up, the loss of another node may stop everything"
            trouble = (warning, f"a replica is behind, on {some(behind)}", why)
        else:
            continue
        troubled.setdefault(trouble, []).append(stream.name)
    fix = "start the nodes that are down, and wait until they have caught up: `nats stream info {name}` shows it"
    found = [
        say(f"{what}: {some(names)}", why, fix.format(name=names[0]), what)
        for (say, what, why), names in troubled.items()
    ]
    yield from _or_ok(found, facts, "all replicas are online and up to date")


def _is_away(peer: NodeFacts) -> bool:
    """Return whether the node is unreachable. NATS reports a killed node as offline only after a minute."""
    return peer.is_offline or (not peer.is_current and peer.silent_seconds > _SILENT_SECONDS)


def _keeps_up(peer: NodeFacts) -> bool:
    return peer.is_current and peer.lag <= _LAG_MAX
