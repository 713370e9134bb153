"""Rules about work: jobs without a worker, workers that receive nothing, a missing keeper, stuck runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pyoco_server.core.diagnosis.facts import Facts, Found, Keeper, Unknown, WaitingRuns, Workers, WorkQueueFacts
from pyoco_server.core.diagnosis.finding import Remark, age, danger, note, ok, size, some, warning
from pyoco_server.core.waiting import start_command
from pyoco_server.core.worker_record import WorkerRecord

__all__ = [
    "DEAF_SECONDS",
    "alive",
    "dead_letters",
    "default_tag",
    "hearing",
    "is_deaf",
    "keeper",
    "notices",
    "orphans",
    "registry",
    "repeats",
    "strangers",
    "stuck",
    "tag_queues",
    "unserved",
    "versions",
    "wheels",
]

#: A worker with a free slot gets an answer from the queue every two seconds, and reports it every five.
DEAF_SECONDS = 30.0
#: A keeper processes a notice immediately, and postpones it by a minute at most.
_NOTICE_SECONDS_MAX = 300.0
_REPEATED_MAX = 20
#: An unlucky job can use up fewer deliveries than this: see the settings.
_MAX_DELIVER_MIN = 6


def _alive(facts: Facts, workers: Workers) -> list[WorkerRecord]:
    return [record for record in workers.records if record.is_alive(facts.now, facts.wishes.disconnect_seconds)]


def is_deaf(record: WorkerRecord, now: float, disconnect_seconds: float) -> bool:
    """Return whether it is alive and has free slots, but got no answer from the queue for long, not even "no
    messages"."""
    if record.last_pull_at is None or not record.is_alive(now, disconnect_seconds):
        return False
    return record.load.busy < record.load.slots and now - record.last_pull_at > DEAF_SECONDS


def _unavailable(facts: Facts, what: str, unknown: Unknown) -> Iterator[Remark]:
    """Report facts that could not be read: no remark would look like health. Skipped if nothing has been set up yet."""
    if facts.is_reached and facts.is_set_up:
        yield danger(
            f"cannot read {what}: {unknown.why}",
            "gateways, workers and keepers read the same, and fail too",
            "fix the findings about NATS and the streams first; then run the doctor again",
        )


def _receiving(facts: Facts, workers: Workers) -> list[WorkerRecord]:
    """Return the live workers that receive jobs."""
    seconds = facts.wishes.disconnect_seconds
    return [record for record in _alive(facts, workers) if not is_deaf(record, facts.now, seconds)]


def unserved(facts: Facts) -> Iterator[Remark]:
    if isinstance(facts.queue, Unknown):
        yield from _unavailable(facts, "the queue", facts.queue)
    if not isinstance(facts.queue, WorkQueueFacts) or not isinstance(facts.workers, Workers):
        return
    served = {tag for record in _receiving(facts, facts.workers) for tag in record.tags}
    waiting = _waiting(facts, facts.queue)
    for tag, runs in waiting.items():
        if tag not in served:
            since = f", the oldest for {age(facts.now - runs.oldest_at)}" if runs.oldest_at is not None else ""
            yield danger(
                f"no worker takes the jobs of tag {tag}; waiting: {runs.depth}{since}",
                "these runs are not started",
                start_command(tag),
                about=tag,
            )
    if waiting.keys() <= served:
        yield ok(f"jobs in the queue: {sum(runs.depth for runs in waiting.values())}; every tag has a worker")


def _waiting(facts: Facts, queue: WorkQueueFacts) -> Mapping[str, WaitingRuns]:
    """Return the runs that wait, by tag: as the gateway lists them, so that all doors tell the same (CLI-20).

    Without a gateway that says so, every job in the stream is counted, also those of runs that execute or have ended.
    """
    if facts.gateway is not None and facts.gateway.waiting is not None:
        found = facts.gateway.waiting
    else:
        found = {tag: WaitingRuns(count, queue.oldest_at.get(tag)) for tag, count in queue.jobs.items()}
    return {tag: runs for tag, runs in found.items() if runs.depth}


def tag_queues(facts: Facts) -> Iterator[Remark]:
    """Check for consumers that are stalled, or were created with other settings."""
    if not isinstance(facts.queue, WorkQueueFacts):
        return
    stream = facts.wishes.work_stream
    found: list[Remark] = []
    for queue in facts.queue.tag_queues:
        slots = 0
        if isinstance(facts.workers, Workers):
            slots = sum(record.slots for record in _alive(facts, facts.workers) if queue.tag in record.tags)
        anew = (
            f"nats consumer rm {stream} pyoco_worker_{queue.tag} while no job is in progress: a worker creates it again"
        )
        if queue.is_paused:
            what, why = f"the queue of tag {queue.tag} is paused", "none of its jobs is delivered"
            found.append(danger(what, why, f"nats consumer resume {stream} pyoco_worker_{queue.tag}", queue.tag))
        if 0 < queue.max_deliver < _MAX_DELIVER_MIN:
            what = f"jobs of tag {queue.tag} are delivered at most {queue.max_deliver} times"
            why = "deliveries that find the run owned by another worker count too: runs may fail without a second try"
            found.append(warning(what, why, f"PYOCO_CONSUMER_MAX_DELIVER=20, then {anew}", queue.tag))
        if 0 < queue.in_hand_max < slots:
            what = (
                f"tag {queue.tag} may have {queue.in_hand_max} unacknowledged jobs, and its workers have {slots} slots"
            )
            fix = f"PYOCO_CONSUMER_MAX_ACK_PENDING={2 * slots}, then {anew}"
            found.append(warning(what, "the other slots stay empty", fix, queue.tag))
        wishes = facts.wishes
        have = (queue.ack_wait_seconds, queue.max_deliver, queue.in_hand_max)
        if have != (wishes.ack_wait_seconds, wishes.max_deliver, wishes.in_hand_max):
            what = f"the queue of tag {queue.tag} has settings other than those here"
            why = (
                f"ack wait {have[0]:g} s, deliveries {have[1]}, in hand {have[2]}; the settings say "
                f"{wishes.ack_wait_seconds:g} s, {wishes.max_deliver}, {wishes.in_hand_max}; what exists is left"
            )
            found.append(note(what, why, anew, queue.tag))
    yield from found
    if not found and facts.queue.tag_queues:
        yield ok(f"queues of tags: {some(queue.tag for queue in facts.queue.tag_queues)}")


def strangers(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.queue, WorkQueueFacts):
        return
    for name in facts.queue.strangers:
        yield danger(
            f"the consumer {name} takes jobs, and belongs to no worker",
            "each job goes to one consumer only: runs are never executed, or workers cannot bind",
            f"nats consumer rm {facts.wishes.work_stream} {name}",
            about=name,
        )


def repeats(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.queue, WorkQueueFacts):
        return
    for queue in facts.queue.tag_queues:
        if queue.repeated >= _REPEATED_MAX:
            yield warning(
                f"redelivered jobs of tag {queue.tag} that are not finished: {queue.repeated}",
                "workers crash or lose their connection during execution: such runs are restarted again and again",
                f"look at the logs of the workers of tag {queue.tag}, and at `pyoco-client dlq list`",
                about=queue.tag,
            )


def alive(facts: Facts) -> Iterator[Remark]:
    if isinstance(facts.workers, Unknown):
        yield from _unavailable(facts, "the registry of workers", facts.workers)
        return
    living = _alive(facts, facts.workers)
    if living:
        slots = sum(record.slots for record in living)
        others = len(facts.workers.records) - len(living)
        yield ok(f"workers: {len(living)}, with {slots} slots; stopped or disconnected: {others}")
    elif facts.is_set_up:
        yield warning("no worker is running", "accepted runs wait", "pyoco-worker --flow-resolver MODULE:CALLABLE")


def hearing(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.workers, Workers):
        return
    good = {tag for record in _receiving(facts, facts.workers) for tag in record.tags}
    for record in facts.workers.records:
        if is_deaf(record, facts.now, facts.wishes.disconnect_seconds):
            say = warning if set(record.tags) <= good else danger
            yield say(
                f"worker {record.worker_id} has a free slot and has received nothing from the queue for "
                f"{age(facts.now - (record.last_pull_at or 0.0))}",
                "it is alive but takes no work, unless it is stopping",
                "restart it, and look at its log for `queue is silent`",
                about=record.worker_id,
            )


def default_tag(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.workers, Workers):
        return
    living = _alive(facts, facts.workers)
    tag = facts.wishes.default_tag
    if living and not any(tag in record.tags for record in living):
        yield warning(
            f"no worker serves the default tag {tag}",
            "submissions without a tag wait forever",
            f"{start_command(tag)}, or set PYOCO_DEFAULT_TAG to a tag that is served",
        )


def versions(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.workers, Workers):
        return
    living = _alive(facts, facts.workers)
    for package in ("pyoco-server", "pyoco"):
        seen = Counter(record.versions[package] for record in living if package in record.versions)
        here = facts.machine.versions.get(package)
        if seen and (len(seen) > 1 or (here is not None and here not in seen)):
            shown = ", ".join(f"{version} on {count}" for version, count in sorted(seen.items()))
            yield warning(
                f"{package} differs: {shown}; here: {here or 'none'}",
                "during an update this is expected; afterwards, runs may behave differently on different workers",
                "update the others, and stop the old workers with SIGTERM",
                about=package,
            )
        elif seen:
            yield ok(f"{package} {next(iter(seen))} everywhere", about=package)


def wheels(facts: Facts) -> Iterator[Remark]:
    if not isinstance(facts.workers, Workers):
        return
    for record in _alive(facts, facts.workers):
        sync = record.wheel_sync or {}
        failed = sync.get("failed")
        if sync.get("status") != "error" and not failed:
            continue
        entries = failed if isinstance(failed, list) else []
        failures = [f"{each.get('wheel_name')}: {each.get('error')}" for each in entries if isinstance(each, dict)]
        yield warning(
            f"worker {record.worker_id} could not install wheels: {some(failures, 2) or 'it does not say which'}",
            "its runs keep using the previous code",
            "upload a newer one that can be installed, or remove it: pyoco-client wheel delete NAME",
            about=record.worker_id,
        )


def registry(facts: Facts) -> Iterator[Remark]:
    if isinstance(facts.workers, Workers) and facts.workers.unreadable:
        yield warning(
            f"records of workers that cannot be read: {some(facts.workers.unreadable)}",
            "these workers are missing from lists, and their runs may count as abandoned",
            "find out who writes to the bucket of workers; a restarted worker writes its record again",
        )


def keeper(facts: Facts) -> Iterator[Remark]:
    if isinstance(facts.keeper, Unknown):
        yield from _unavailable(facts, "the keepers' records", facts.keeper)
    elif not facts.is_set_up:
        return
    elif facts.keeper.is_listening:
        yield ok("a keeper is running")
    else:
        yield danger(
            "no keeper is running" if facts.keeper.was_here else "no keeper has ever run here",
            "cancelled runs without a worker, and runs whose job was lost or given up, never end",
            "pyoco-keeper (one is enough), or `pyoco-server up` without --no-keeper",
        )


def notices(facts: Facts) -> Iterator[Remark]:
    found = facts.keeper
    if not isinstance(found, Keeper) or not found.notices or found.oldest_at is None:
        return
    waited = facts.now - found.oldest_at
    if waited > _NOTICE_SECONDS_MAX:
        yield danger(
            f"given-up jobs that were not processed: {found.notices}, the oldest for {age(waited)}",
            "their runs hang: they are neither executed again nor ended",
            "start a keeper, or look at its log: pyoco-keeper",
        )


def stuck(facts: Facts) -> Iterator[Remark]:
    """Check the runs that workers owned when their heartbeats stopped: not every run is read."""
    if isinstance(facts.left_behind, Unknown):
        yield from _unavailable(facts, "the runs of disconnected workers", facts.left_behind)
        return
    seconds = max(facts.wishes.abandon_seconds, 2 * facts.wishes.ack_wait_seconds) + 60
    for run in facts.left_behind:
        silent = facts.now - max(run.updated_at, run.heartbeat_at)
        if not run.is_terminal and silent > seconds:
            yield danger(
                f"run {run.run_id} is {run.status} on worker {run.worker_id}, without a heartbeat for {age(silent)}",
                "no worker has taken it over, and no keeper has ended it",
                f"start a worker of its tag ({start_command(run.tag)}) and a keeper (pyoco-keeper)",
                about=run.run_id,
            )


def readable(facts: Facts) -> Iterator[Remark]:
    """SAFE-16: run records that cannot be decoded."""
    found = facts.unreadable
    if not facts.is_reached or not facts.is_set_up:
        return
    if isinstance(found, Unknown):
        yield note("cannot check the records of runs", found.why)
        return
    for run_id in found.run_ids:
        yield danger(
            f"the record of run {run_id} cannot be read",
            "the state of the run is unknown; requests for it are answered with 503",
            f"restore it from a backup; or remove it: pyoco-server-admin run discard {run_id}",
            about=run_id,
        )
    part = "" if found.is_all else "; not all were checked in time"
    if not found.run_ids:
        yield ok(f"all {found.looked_at} checked records of runs can be read{part}")


def dead_letters(facts: Facts) -> Iterator[Remark]:
    for stream in facts.streams:
        if isinstance(stream.state, Found) and stream.name == facts.wishes.dead_letters_stream:
            state = stream.state
            if not state.messages:
                yield ok("no dead letters")
                continue
            newest = f"; the newest came {age(facts.now - state.last_at)} ago" if state.last_at is not None else ""
            why = "each describes a failed run, with its reason; they expire by themselves"
            yield note(f"dead letters: {state.messages}{newest}", why, "pyoco-client dlq list")


def orphans(facts: Facts) -> Iterator[Remark]:
    for each in facts.orphans:
        if isinstance(each, Unknown):
            if facts.is_set_up:
                yield note(f"not every file was checked: {each.why}", "there may be parts that belong to no file")
        elif each.count:
            yield note(
                f"{each.bucket} holds file parts that belong to no file: {each.count}, up to {size(each.size_bytes)}",
                "a crash interrupted an upload; they use disk space and do no other harm",
                "pyoco-keeper (it removes them within half an hour)",
                about=each.bucket,
            )
